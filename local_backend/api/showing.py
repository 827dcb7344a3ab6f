"""What the API shows of an exec: its row, its files, and what the server knows beside them."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlicmd.contract import wire
from local_backend.api.as_json import encoded
from local_backend.api.objects import exec_object, is_parked, pending
from local_backend.files import full_disk, read_json
from local_backend.runtime.paths import ExecPaths
from local_backend.store.execs import ExecRow

if TYPE_CHECKING:
    from local_backend.api.backend import Backend


class Endings:
    """JSON objects of execs that are over, the newest that were asked for; from any thread.

    An exec that is over changes no more, but for its row and whether its model folder holds anything. Both are part of
    the key, so that nothing has to be told when they change.
    """

    #: How many are kept, and characters of a submission and its object beyond which one is not: 40 MB at the very most.
    MOST, LONGEST = 1000, 16 << 10

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[ExecRow, str, bool], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, row: ExecRow, base_url: str, has_result: bool, make: Callable[[], bytes]) -> bytes:
        """The object that was kept, or the one that `make` gives."""
        key = (row, base_url, has_result)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        found = make()
        if len(row.spec) + len(found) <= self.LONGEST:
            with self._lock:
                self._kept[key] = found
                if len(self._kept) > self.MOST:
                    self._kept.popitem(last=False)
        return found


def show(backend: Backend, row: ExecRow, base_url: str) -> dict[str, Any]:
    """The exec object of a row, with what its program last said about its progress."""
    paths = backend.paths(row)
    return _show(backend, row, base_url, holds_anything(paths.model) if row.terminal else None)


def show_json(backend: Backend, rows: Iterable[ExecRow], base_url: str) -> list[bytes]:
    """`show` of each row, as JSON."""
    return [_as_json(backend, row, base_url) for row in rows]


def _as_json(backend: Backend, row: ExecRow, base_url: str) -> bytes:
    if not row.terminal:
        return encoded(_show(backend, row, base_url, None))
    has_result = holds_anything(backend.paths(row).model)
    return backend.endings.get(row, base_url, has_result, lambda: encoded(_show(backend, row, base_url, has_result)))


def _show(backend: Backend, row: ExecRow, base_url: str, has_result: bool | None) -> dict[str, Any]:
    progress = progress_of(backend.paths(row))
    return exec_object(row, progress, base_url.rstrip("/"), has_result) | told(backend, row)


def told(backend: Backend, row: ExecRow) -> dict[str, Any]:
    """What the server knows better than the row of an exec that is not over: why it waits, that its disk is full."""
    reason = backend.reason(row)
    shown = {} if reason is None else pending(reason, is_parked(row))
    trouble = None if row.terminal else full_disk(backend.paths(row).state)
    return shown | {wire.MESSAGE: trouble} if trouble else shown


def progress_of(paths: ExecPaths) -> Any:
    """What the driver of an exec has written down; None when that cannot be read."""
    try:
        return read_json(paths.progress)
    except OSError:
        return None  # whatever a program did to this file: one exec must not spoil the list of all


def holds_anything(folder: Path) -> bool:
    """Whether there is anything in a folder; there is not in one that cannot be read."""
    try:
        with os.scandir(folder) as found:
            return any(found)
    except OSError:
        return False
