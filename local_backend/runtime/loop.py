"""A background loop of the server: a named thread that works in turns.

A turn returns the moment when the next one is due. A turn also begins after `wake`, and when a watched descriptor
becomes readable. A turn that fails is repeated after a pause.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import psutil
from sqlalchemy.exc import SQLAlchemyError

from local_backend.measures import TURNED

_log = logging.getLogger(__name__)
#: Errors of database, disk and processes. Their text says enough; all other errors are logged with a traceback.
_KNOWN = (SQLAlchemyError, OSError, psutil.Error)

#: Does the work that is due. Gets the readable descriptors; returns when the next turn is due on the monotonic clock,
#: None if only an event makes it due. May raise LoopEnd.
Turn = Callable[[Set[int]], "float | None"]


class LoopEnd(Exception):
    """Raised in a turn to end its loop."""


@dataclass
class Backoff:
    """The growing pauses in seconds between the tries of an operation that fails."""

    first: float = 1.0
    longest: float = 60.0
    #: Failures since the last success.
    failures: int = 0
    _last: tuple[type, str] | None = None

    def failed(self, problem: Exception) -> bool:
        """Count a failure. Return whether it differs from the one before, so that each is logged once."""
        self.failures += 1
        before, self._last = self._last, (type(problem), str(problem))
        return self._last != before

    def succeeded(self) -> int:
        """Return the number of failures before this success."""
        before, self.failures, self._last = self.failures, 0, None
        return before

    @property
    def pause(self) -> float:
        """The seconds before the next try."""
        return min(self.longest, self.first * 2.0 ** min(self.failures - 1, 20))


class Loop:
    """A loop. Call `start` and `stop` at most once; the other methods from any thread."""

    def __init__(
        self, name: str, turn: Turn, *, descriptors: Callable[[], Iterable[int]] = tuple,
        session: Callable[[], AbstractContextManager[object]] = nullcontext, backoff: Backoff | None = None,
    ) -> None:
        """`descriptors` returns the descriptors to watch until the next turn. The loop enters a `session` before the
        first turn, and leaves it at the end; after a failed turn it leaves it, and enters another one."""
        self.name = name
        self._turn, self._descriptors, self._session = turn, descriptors, session
        self._backoff = backoff or Backoff()
        self._closing = threading.Lock()
        self._waiter, self._waker = socket.socketpair()
        for end in (self._waiter, self._waker):
            end.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stopping = False
        #: Turns that ended without an error; when the present turn or the start of its session began (monotonic).
        self._turns = 0
        self._turns_change = threading.Condition()
        self._busy_since: float | None = None
        #: When the last turn without an error ended (epoch seconds).
        self.turned: float | None = None

    def start(self) -> None:
        """Start the thread, which begins with a turn."""
        self._thread.start()

    def wake(self) -> None:
        """Begin a turn now, or once the present one has ended. Does nothing before the start and after the end."""
        # The lock keeps the descriptor open meanwhile. The buffer may be full: then the thread wakes anyway.
        with self._closing, contextlib.suppress(OSError):
            self._waker.send(b"!")

    def stop(self, wait: float | None = None) -> None:
        """End the thread after the present turn. Return when it has ended, at the latest after `wait` seconds."""
        self._stopping = True
        self.wake()
        if not self._thread.ident:
            self._close()
        elif self._thread is not threading.current_thread():
            self._thread.join(wait)

    def pause(self, seconds: float) -> None:
        """Sleep in a turn, to give time to other threads. Raises LoopEnd if the loop is to end."""
        time.sleep(seconds)
        if self._stopping:
            raise LoopEnd

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def failures(self) -> int:
        """The number of turns that have failed since the last one without an error."""
        return self._backoff.failures

    @property
    def busy(self) -> float:
        """The seconds that the present turn has taken; 0 between turns."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def completes_turn(self, seconds: float) -> bool:
        """Return whether the loop completes a turn without an error within `seconds`."""
        with self._turns_change:
            before = self._turns
            self.wake()
            return self._turns_change.wait_for(lambda: self._turns != before, seconds)

    def _run(self) -> None:
        try:
            while not self._stopping:
                try:
                    self._busy_since = time.monotonic()
                    with self._session():
                        self._work()
                except LoopEnd:
                    return
                except Exception as problem:  # one failed turn must not end the thread
                    self._failed(problem)
        finally:
            self._close()

    def _work(self) -> None:
        """Take turns until the loop is to end. Raises the errors of a turn."""
        ready: Set[int] = frozenset()
        while not self._stopping:
            self._busy_since = time.monotonic()
            due = self._turn(ready)
            self._busy_since = None
            self.turned = time.time()
            TURNED.labels(self.name).set(self.turned)
            if failures := self._backoff.succeeded():
                _log.warning("the %s loop works again after %d failures", self.name, failures)
            with self._turns_change:
                self._turns += 1
                self._turns_change.notify_all()
            ready = self._wait(due, self._descriptors())

    def _failed(self, problem: Exception) -> None:
        """Log an error, and pause. `wake` ends the pause, because the cause of the error may be gone."""
        self._busy_since = None
        if self._backoff.failed(problem):
            _log.error("the %s loop failed, trying again in %g s: %s", self.name, self._backoff.pause, problem,
                       exc_info=not isinstance(problem, _KNOWN))
        # Descriptors are not watched: one that the failed turn did not handle would end every pause at once.
        self._wait(time.monotonic() + self._backoff.pause, ())

    def _wait(self, due: float | None, descriptors: Iterable[int]) -> Set[int]:
        """Sleep until `due`, `wake`, `stop` or an event. Return the readable descriptors."""
        poll = select.poll()
        for fd in (self._waiter.fileno(), *descriptors):
            poll.register(fd, select.POLLIN)
        # One more millisecond, because poll rounds down.
        ready = {fd for fd, _ in poll.poll(None if due is None else max(0.0, due - time.monotonic()) * 1000 + 1)}
        with contextlib.suppress(BlockingIOError):
            while self._waiter.recv(4096):
                pass
        return ready - {self._waiter.fileno()}

    def _close(self) -> None:
        with self._closing:
            self._waker.close()
            self._waiter.close()
