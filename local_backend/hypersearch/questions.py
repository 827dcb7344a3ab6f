"""Questions to algorithms: threads that each wait for the answer of a process, which a canceled question kills."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SuggesterLost(Exception):
    """The process ended, or took too long. The same question can be asked again, and has the same answer."""


class SuggesterFailed(Exception):
    """The algorithm cannot answer this question. The text says why."""


class Hold:
    """Kills the process that answers one question, when the question is dropped: now, or as soon as it starts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kill: Callable[[], None] | None = None
        self._dropped = False

    @contextmanager
    def of(self, kill: Callable[[], None]) -> Iterator[None]:
        """Call `kill`, at most once, if the question is dropped before the end of the block. `kill` must not block."""
        with self._lock:
            self._kill = kill
            if self._dropped:
                kill()
        try:
            yield
        finally:
            with self._lock:
                self._kill = None

    def drop(self) -> None:
        """Kill the process, if one runs. A later one is killed when it starts."""
        with self._lock:
            if self._kill is not None and not self._dropped:
                self._kill()
            self._dropped = True


class Question(Future[T], Generic[T]):
    """A question, and its answer when it arrives. `cancel` lets go of it at any time: its process is killed, and its
    thread is free for another question."""

    def __init__(self, drop: Callable[[], object]) -> None:
        super().__init__()
        self._drop = drop

    def cancel(self) -> bool:
        """Let go of the question. Return whether it had not begun yet; after its beginning, it fails soon."""
        self._drop()
        return super().cancel()


class Questions:
    """Threads that wait for answers. The others of more than `most` questions wait for a thread."""

    def __init__(self, most: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(most, name)
        self._lock = threading.Lock()
        self._open: set[Future[Any]] = set()
        self._closed = False

    def ask(self, work: Callable[[Hold], T]) -> Question[T]:
        """Call `work` in a thread, and return its result as it arrives. `work` holds its process by the hold."""
        hold = Hold()
        answer: Question[T] = Question(hold.drop)

        def find() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(work(hold))
            except BaseException as problem:
                answer.set_exception(problem)

        with self._lock:
            if not self._closed:
                self._open.add(answer)
                self._pool.submit(find)
            else:
                answer.set_exception(SuggesterLost("the server ends"))
        answer.add_done_callback(self._done)
        return answer

    def _done(self, answer: Future[Any]) -> None:
        with self._lock:
            self._open.discard(answer)

    def close(self) -> None:
        """Let go of all questions, and wait until their processes have ended. Later questions fail."""
        with self._lock:
            self._closed = True
            last = list(self._open)
        for one in last:
            one.cancel()
        self._pool.shutdown()
