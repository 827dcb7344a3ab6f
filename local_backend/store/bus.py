"""The bus of a server process: wakes the readers of the event stream after every commit with new events.

The bus carries no events. A reader that is woken reads the stream from its last id on. So a slow reader delays nothing
and needs no memory, and a reader misses no event if it subscribes before it reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterator

_log = logging.getLogger(__name__)

#: Wakes a reader. Called on the writer thread of the database, so it must not block.
Wake = Callable[[], object]


class Bus:
    """The subscribed readers. Safe for use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Id of an exec → its readers; None → readers of all execs.
        self._readers: dict[str | None, list[Wake]] = {}
        #: Grows with every commit that has new events.
        self.count = 0

    def publish(self, exec_ids: Collection[str]) -> None:
        """Wake the readers of these execs, once each. A reader that cannot be woken is dropped."""
        with self._lock:
            self.count += 1
            woken = [(key, wake) for key in (None, *exec_ids) for wake in self._readers.get(key, ())]
        for key, wake in woken:
            try:
                wake()
            except Exception as problem:  # the event loop of the reader is closed; the writer must go on
                _log.warning("dropped a reader of events: %s", problem)
                self.unsubscribe(wake, key)

    def subscribe(self, wake: Wake, exec_id: str | None = None) -> None:
        """Call `wake` after every commit with new events of this exec, or of any exec."""
        with self._lock:
            self._readers.setdefault(exec_id, []).append(wake)

    def unsubscribe(self, wake: Wake, exec_id: str | None = None) -> None:
        """End a subscription. Does nothing if it has ended."""
        with self._lock:
            readers = self._readers.get(exec_id, [])
            if wake in readers:
                readers.remove(wake)
            if not readers:
                self._readers.pop(exec_id, None)

    @property
    def readers(self) -> int:
        """The number of subscriptions."""
        with self._lock:
            return sum(len(readers) for readers in self._readers.values())

    @contextlib.contextmanager
    def listening(self, exec_id: str | None = None) -> Iterator[asyncio.Event]:
        """Yield an event of the running event loop that is set after every commit with new events of this exec, or of
        any exec. The reader clears it before it reads."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(news.set)

        self.subscribe(wake, exec_id)
        try:
            yield news
        finally:
            self.unsubscribe(wake, exec_id)
