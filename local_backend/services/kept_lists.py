"""The last lists of execs, for as long as the database does not change. Many open pages ask for the same list."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

from local_backend.store.database import Database

T = TypeVar("T")


class KeptLists:
    """Keeps what was read from a database. Safe for use from any thread."""

    #: Maximum number of entries. Each has the numbers of one page, or a few counts.
    MOST = 256

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        """Return what was read under this key since the last write, or what `read` returns now."""
        now = self._database.changes
        with self._lock:
            found = self._kept.get(key)
            if found is not None and found[0] == now:
                self._kept.move_to_end(key)
                return cast("T", found[1])
        made = read()
        with self._lock:
            self._kept[key] = now, made
            self._kept.move_to_end(key)
            if len(self._kept) > self.MOST:
                self._kept.popitem(last=False)
        return made
