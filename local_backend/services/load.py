"""A fair share of the server for each user. Bulk work, calls that compute or read much, is apart from the small calls.

Each kind of bulk work has its own few threads. Users take turns: the user with the longest wait is next,
however many calls another user has sent. So a bulk call waits for at most one bulk call of each other user, and a small
call waits for none. Users take turns with their small calls, too: few calls of one user are computed at the same time,
and a user who makes more calls per second than the quota waits.
All methods run in the event loop of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from local_backend.errors import Busy
from local_backend.settings import Quotas

T = TypeVar("T")

#: Kinds of bulk work: results and files; logs, metrics, curves and code; submissions; previews; tests of connections;
#: large JSON bodies.
PACKING, READING, UPLOAD, PREVIEW, TEST = "packing", "reading", "submissions", "previews", "tests of connections"
BODY = "bodies"
#: Threads that compute for each kind of bulk work, and those of one user on a server for several. Submissions of one
#: user in parallel are not faster, because of the interpreter's lock, and they delay small calls of others.
_WORKERS = {PACKING: (2, 1), READING: (2, 1), UPLOAD: (4, 1), PREVIEW: (4, 2), TEST: (4, 2), BODY: (2, 1)}
#: The same for threads that read the pieces of answers.
_STREAMING = (4, 2)
#: Small calls that the server computes at the same time, of one user on a server for several, and the maximum number of
#: small calls of one user that wait.
_CALLS, _CALLS_OF_USER, MOST_CALLS = 16, 2, 1000
#: Maximum number of calls of one user that wait for a turn, and seconds after which a refused client asks again.
MOST_WAITING = 32
_AGAIN = 5
#: Longest wait of a call of a user above the rate, in seconds, and maximum number of users with a stored rate.
_LONGEST_WAIT, _MOST_PACED = 10.0, 10_000
_MINUTE = 60.0
_END = object()


class FairTurns:
    """The turns of users in one kind of work. At most `each` calls of one user work at the same time. At most `most`
    wait."""

    def __init__(self, name: str, workers: int, each: int, most: float = MOST_WAITING) -> None:
        self._name, self._free, self._each, self._most = name, workers, each, most
        self._working: Counter[str] = Counter()
        #: The calls that wait, by user; the user whose turn is next comes first.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def waiting(self, user: str) -> int:
        """Return the number of calls of a user that wait."""
        return len(self._waiting.get(user, ()))

    def check(self, user: str) -> None:
        """Raise Busy if no further call of the user may wait."""
        found = self.waiting(user)
        if found >= self._most:
            raise _busy(self._name, f"{found} other calls of {user} are waiting ({self._name}); wait until "
                        "some of them have finished")

    async def begin(self, user: str) -> None:
        """Return when it is the user's turn. Call `end` once after it."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(turn)
        self._next()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.end(user)
            raise

    def end(self, user: str) -> None:
        """End a turn of the user."""
        self._free += 1
        self._working[user] -= 1
        self._next()

    def _next(self) -> None:
        """Give free turns to the users who wait."""
        for user in list(self._waiting):
            waiting = self._waiting[user]
            while waiting and waiting[0].done():  # its call was cancelled
                waiting.popleft()
            if not waiting:
                del self._waiting[user]
            elif self._free and self._working[user] < self._each:
                self._free -= 1
                self._working[user] += 1
                waiting.popleft().set_result(None)
                self._waiting.move_to_end(user)
        self._working += Counter()  # forget the users without calls


class FairThreads(FairTurns):
    """Threads for the turns of users in one kind of bulk work."""

    def __init__(self, name: str, workers: int, each: int, most: float = MOST_WAITING) -> None:
        super().__init__(name, workers, each, most)
        self._threads = ThreadPoolExecutor(workers, f"bulk-{name}")

    async def run(self, user: str, work: Callable[[], T]) -> T:
        """Run `work` in a thread when it is the user's turn, and return its result. Raises Busy."""
        self.check(user)
        await self.begin(user)
        context = contextvars.copy_context()
        working = asyncio.get_running_loop().run_in_executor(self._threads, context.run, work)
        # The turn lasts as long as its thread works, even if the call is cancelled: a thread cannot be interrupted.
        working.add_done_callback(functools.partial(self._ended, user))
        return await asyncio.shield(working)

    def _ended(self, user: str, working: asyncio.Future[T]) -> None:
        if not working.cancelled():
            working.exception()  # the caller, who may be gone, reports it
        self.end(user)


class CallPace:
    """The calls per second of each user. A user may begin the calls of one second at once (GCRA, ITU-T I.371)."""

    def __init__(self, per_second: int) -> None:
        self._rate = per_second
        #: When the next call of a user is due, if the user makes calls at exactly the permitted rate.
        self._due: dict[str, float] = {}

    def wait(self, user: str) -> float:
        """Count a call of a user. Return the seconds until it may begin. Raises Busy (`load.busy`) if the wait
        is too long; the call then does not count."""
        now = time.monotonic()
        due = max(self._due.get(user, 0.0), now)
        wait = max(0.0, due - now - 1.0 + 1 / self._rate)
        if wait > _LONGEST_WAIT:
            raise _busy("small calls", f"{user} makes more than {self._rate} calls per second, the limit of this "
                        f"server; the next call would wait {wait:.0f} s; make fewer calls")
        if len(self._due) >= _MOST_PACED:
            self._due = {name: at for name, at in self._due.items() if at > now}
        self._due[user] = due + 1 / self._rate
        return wait


class CallTurn:
    """The turn of one small call: from `begin` to `end`, except while it rests."""

    def __init__(self, turns: FairTurns, pace: CallPace | None) -> None:
        self._turns, self._pace = turns, pace
        self._user: str | None = None

    async def begin(self, user: str, paced: bool = True) -> None:
        """Wait for the turn of the user. With `paced` false, `user` is the address of a caller without a known user.
        Raises Busy (`load.busy`)."""
        self.end()
        if paced and self._pace is not None and (wait := self._pace.wait(user)):
            await asyncio.sleep(wait)
        self._turns.check(user)
        await self._turns.begin(user)
        self._user = user

    @contextlib.asynccontextmanager
    async def resting(self) -> AsyncIterator[None]:
        """Let other calls have the turn in the block, which waits and does not compute. Wait for a turn after it."""
        user = self._user
        self.end()
        yield
        if user is not None:
            await self._turns.begin(user)
            self._user = user

    def end(self) -> None:
        """End the turn, if there is one."""
        user, self._user = self._user, None
        if user is not None:
            self._turns.end(user)


def refusal_of(kind: str) -> str:
    """Return the code of the error when too many calls of one user wait for a turn in this kind of bulk work."""
    return _busy(kind, "").code


def _busy(kind: str, sentence: str) -> Busy:
    if kind == PREVIEW:
        return Busy("data.previews", sentence, retry_after=_AGAIN)
    if kind == TEST:
        return Busy("connection.tests", sentence, retry_after=_AGAIN)
    return Busy("load.busy", sentence, retry_after=_AGAIN)


@dataclass
class UserLoads:
    """What each user takes of the server: streams, uploads, and submissions of the last minute."""

    quotas: Quotas
    #: User → number of open streams; user → number of uploads. Other users have none.
    streams: Counter[str] = field(default_factory=Counter)
    uploads: Counter[str] = field(default_factory=Counter)
    _submitted: dict[str, deque[float]] = field(default_factory=dict)

    def stream(self, user: str) -> contextlib.AbstractContextManager[None]:
        """Count an open stream in the block. Raises Busy (`quota.streams`)."""
        full = Busy("quota.streams", f"{user} has {self.streams[user]} open streams (followed jobs, logs, downloads), "
                    "the limit of this server; end one of them first", retry_after=_AGAIN)
        return _counted(self.streams, user, self.quotas.streams, full)

    def upload(self, user: str) -> contextlib.AbstractContextManager[None]:
        """Count an upload in the block. Raises Busy (`quota.uploads`)."""
        full = Busy("quota.uploads", f"{user} has {self.uploads[user]} uploads in progress, the limit of this server; "
                    "let one of them finish first", retry_after=_AGAIN)
        return _counted(self.uploads, user, self.quotas.uploads, full)

    def submission(self, user: str) -> None:
        """Count a submission. Raises Busy (`quota.rate`)."""
        most = self.quotas.submissions_per_minute
        if most is None:
            return
        now = time.monotonic()
        times = self._submitted.setdefault(user, deque())
        while times and times[0] <= now - _MINUTE:
            times.popleft()
        if len(times) >= most:
            wait = int(times[0] + _MINUTE - now) + 1
            raise Busy("quota.rate", f"{user} has submitted {len(times)} jobs within a minute, the limit of this "
                       f"server; submit again in {wait} s", retry_after=wait)
        times.append(now)


@contextlib.contextmanager
def _counted(counts: Counter[str], user: str, most: int | None, full: Busy) -> Iterator[None]:
    if most is not None and counts[user] >= most:
        raise full
    counts[user] += 1
    try:
        yield
    finally:
        counts[user] -= 1
        if not counts[user]:
            del counts[user]


class Load:
    """The bulk work of one server. Without `shared`, the server has one user, who may use all threads."""

    def __init__(self, quotas: Quotas, shared: bool) -> None:
        self.users = UserLoads(quotas)
        self._calls = FairTurns("small calls", _CALLS, _CALLS_OF_USER if shared else _CALLS, MOST_CALLS)
        self._pace = CallPace(quotas.calls_per_second) if quotas.calls_per_second is not None else None

        def turns(name: str, threads: tuple[int, int], most: float = MOST_WAITING) -> FairThreads:
            workers, of_user = threads
            return FairThreads(name, workers, of_user if shared else workers, most)

        self._turns = {name: turns(name, threads) for name, threads in _WORKERS.items()}
        # The quota of streams limits those that wait.
        self._streaming = turns("streaming", _STREAMING, math.inf)

    def waiting(self, user: str) -> int:
        """Return the number of calls of a user that wait for a turn."""
        return self._calls.waiting(user) + sum(turns.waiting(user) for turns in self._turns.values())

    def call(self) -> CallTurn:
        """Return the turn of a call, which has not begun."""
        return CallTurn(self._calls, self._pace)

    async def run(self, name: str, user: str, work: Callable[[], T]) -> T:
        """Run `work` in the user's turn of this kind of bulk work. Raises Busy."""
        return await self._turns[name].run(user, work)

    async def pieces(self, user: str, chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the pieces of an answer to a user. Each is computed in a turn of the user."""
        while (piece := await self._streaming.run(user, functools.partial(next, chunks, _END))) is not _END:
            assert isinstance(piece, bytes)
            if piece:
                yield piece
