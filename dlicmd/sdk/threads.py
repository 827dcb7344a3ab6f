"""Calls of the client in threads, for asyncio: the base of the asynchronous client, which is generated.

Each call has a thread of its own until it returns, so calls that wait long do not keep others from starting. The
threads are daemons: they do not delay the end of the program. A cancelled call stops at its next pause or chunk (see
`dlicmd.sdk.cancel`); its result is dropped.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, Generic, TypeVar

from dlicmd.sdk import cancel
from dlicmd.sdk.transport import Answer

T = TypeVar("T")
#: The number of items that an iteration may be ahead of its reader.
AHEAD = 1000


async def in_thread(call: Callable[..., T], *args: Any, **named: Any) -> T:
    """Return `call(*args, **named)`, which runs in a thread. A cancellation ends the call soon."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    flag = cancel.Flag()

    def deliver(result: T | None, problem: BaseException | None) -> None:
        if done.done():
            return
        if problem is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(problem)

    def work() -> None:
        cancel.use(flag)
        result: T | None = None
        problem: BaseException | None = None
        try:
            result = call(*args, **named)
            if isinstance(result, Answer):
                result.hold()  # its content arrives in this thread, too
        except cancel.CallCancelled:
            return
        except StopIteration:
            problem = RuntimeError("StopIteration cannot be awaited")
        except BaseException as found:
            problem = found
        _tell(loop, deliver, result, problem)

    _start(work)
    try:
        return await done
    finally:
        flag.is_set = True


def _start(work: Callable[[], None]) -> None:
    threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True, name="dlicmd").start()


def _tell(loop: asyncio.AbstractEventLoop, receive: Callable[..., None], *args: Any) -> None:
    """Call a function in the thread of the loop. A loop that has been closed waits for nothing."""
    try:
        loop.call_soon_threadsafe(receive, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


async def items(begin: Callable[[], Iterator[T]]) -> AsyncGenerator[T, None]:
    """Yield the items of an iterator that is read in one thread, ahead of this iteration.

    The thread starts with the first item. It ends soon after the iteration has ended, for example with a `break`.
    """
    loop = asyncio.get_running_loop()
    reading: _Reading[T] = _Reading(loop)
    _start(lambda: reading.read(begin))
    try:
        while True:
            while reading.items:
                reading.free.release()
                yield reading.items.popleft()
            if reading.has_ended:
                break
            reading.news.clear()
            await reading.news.wait()
    finally:
        reading.flag.is_set = True
    if reading.problem is not None:
        raise reading.problem


class _Reading(Generic[T]):
    """What the thread of one iteration and its loop share. Only the loop changes it, except for `free`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.items: deque[T] = deque()
        self.has_ended = False
        self.problem: BaseException | None = None
        self.news = asyncio.Event()
        self.flag = cancel.Flag()
        #: Items that the thread may still read ahead.
        self.free = threading.Semaphore(AHEAD)
        self._loop = loop

    def read(self, begin: Callable[[], Iterator[T]]) -> None:
        """Read all items, in a thread."""
        cancel.use(self.flag)
        problem: BaseException | None = None
        try:
            for item in begin():
                while not self.free.acquire(timeout=cancel.SLICE):
                    cancel.check()
                cancel.check()
                _tell(self._loop, self._add, item)
        except cancel.CallCancelled:
            return
        except BaseException as found:
            problem = found
        _tell(self._loop, self._end, problem)

    def _add(self, item: T) -> None:
        self.items.append(item)
        self.news.set()

    def _end(self, problem: BaseException | None) -> None:
        self.has_ended, self.problem = True, problem
        self.news.set()
