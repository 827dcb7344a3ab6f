"""News of an exec until it has ended: state and output, even if the server is away for a while."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

from dlicmd.contract import wire
from dlicmd.sdk import cancel, hints
from dlicmd.sdk.errors import Denied, NoSuchExec, ServerError, Unreachable, WaitTimeout
from dlicmd.sdk.exec_calls import ExecCalls
from dlicmd.sdk.messages import warn
from dlicmd.sdk.objects import Exec, Line, News
from dlicmd.sdk.retry import PASSING

#: Seconds that the server may hold back the answer to a follow call: usually, and in a call that can be cancelled.
LONG_POLL, CANCELLABLE_POLL = 20, 2
#: Seconds for which a lost server is tried again.
PATIENCE = 120.0
#: Seconds between two polls of a server without the follow call: at first, and at most.
POLL_FIRST, POLL_LAST = 0.25, 3.0

T = TypeVar("T")


class Clock:
    """The time limit of a wait. Raises WaitTimeout when it is over; the message names the command to come back with."""

    def __init__(
        self, exec_id: str, seconds: float | None, again: str = "--follow", method: str = "Client.wait",
    ) -> None:
        self._exec_id, self._seconds, self._again, self._method = exec_id, seconds, again, method
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self, most: float) -> float:
        """Return the seconds that may pass now, at most `most`. Raises WaitTimeout."""
        if self._end is None:
            return most
        left = self._end - time.monotonic()
        if left <= 0:
            again = hints.either(hints.command(self._again, self._exec_id), f"{self._method}({self._exec_id!r})")
            raise WaitTimeout(
                f"{self._exec_id} has not ended within {self._seconds} s and continues; "
                f"come back with: {again}"
            )
        return min(most, left)

    def sleep(self, seconds: float) -> None:
        """Sleep, but not beyond the time limit. Raises WaitTimeout."""
        cancel.sleep(self.left(seconds))


def watch(client: ExecCalls, exec_id: str, clock: Clock) -> Iterator[News]:
    """Yield news of an exec until it has ended. Raises WaitTimeout, NoSuchExec, Unreachable.

    A server that cannot be reached at first is an error. A server that becomes unreachable later is tried again.
    """
    offered = wire.EXT_FOLLOW in client.extensions()
    client = client.impatient()
    yield from _long_poll(client, exec_id, clock) if offered else _poll(client, exec_id, clock, with_output=True)


def wait(client: ExecCalls, exec_id: str, clock: Clock) -> Exec:
    """Wait until an exec has ended, and return it. Raises WaitTimeout, NoSuchExec, Unreachable."""
    found = client.exec(exec_id)
    for news in _poll(client.impatient(), exec_id, clock, with_output=False):
        found = news.exec
    return found


def _long_poll(client: ExecCalls, exec_id: str, clock: Clock) -> Iterator[News]:
    """Yield news from a server with the follow call, until the exec has ended and all its output is delivered."""
    cursor = ""
    held = CANCELLABLE_POLL if cancel.is_possible() else LONG_POLL
    while True:
        cancel.check()
        news = patiently(clock, lambda: client.follow(exec_id, cursor, int(clock.left(held))))  # noqa: B023
        cursor = news.cursor
        yield news
        if news.exec.is_over and not news.lines:
            return
        if int(clock.left(held)) < 1:
            clock.sleep(POLL_FIRST)


def _poll(client: ExecCalls, exec_id: str, clock: Clock, with_output: bool) -> Iterator[News]:
    """Yield news from any server, by polling."""
    pause = POLL_FIRST
    seen = ""
    while True:
        found = patiently(clock, lambda: client.exec(exec_id))
        lines: list[Line] = []
        if with_output:
            text = patiently(clock, lambda: _log(client, exec_id))
            if not found.is_over:
                text = text[: text.rfind("\n") + 1]
            lines = [Line(line) for line in added_lines(seen, text)]
            seen = text
        yield News(found, lines)
        if found.is_over:
            return
        pause = POLL_FIRST if lines else min(POLL_LAST, pause * 1.3)
        clock.sleep(pause)


def _log(client: ExecCalls, exec_id: str) -> str:
    """Return the whole log, or "" while there is none."""
    try:
        return client.train_log(exec_id).text()
    except (Denied, NoSuchExec):
        raise
    except ServerError:
        return ""


def added_lines(before: str, after: str) -> list[str]:
    """Return the lines of `after` that are not in `before`. A log of several workers grows in the middle, too."""
    if after.startswith(before):
        return after[len(before):].splitlines()
    known = Counter(before.splitlines())
    added = []
    for line in after.splitlines():
        if known[line] > 0:
            known[line] -= 1
        else:
            added.append(line)
    return added


def patiently(clock: Clock, call: Callable[[], T]) -> T:
    """Return `call()`. Repeat the call while the server cannot be reached, for example during its restart."""
    end = time.monotonic() + PATIENCE
    pause = 0.5
    while True:
        try:
            return call()
        except (Unreachable, ServerError) as problem:
            passing = isinstance(problem, Unreachable) or problem.status in PASSING
            if not passing or time.monotonic() > end:
                raise
            if pause == 0.5:
                warn(f"{problem}; trying again")
        clock.sleep(pause)
        pause = min(5.0, pause * 1.5)
