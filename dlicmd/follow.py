"""Following an exec to its end: its state, progress and program output, even if the server is away for a while."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dlicmd import hints
from dlicmd.client import Client
from dlicmd.console import warn
from dlicmd.contract import states, wire
from dlicmd.contract.exits import Exit
from dlicmd.errors import Denied, NoSuchExec, ServerError, Unreachable, WaitTimeout
from dlicmd.rest.retry import PASSING
from dlicmd.show.views import View

#: Seconds that the server may hold back the answer to a follow call, and for which a lost server is tried again.
LONG_POLL = 20
PATIENCE = 120.0
#: Seconds between two polls of a server without the follow call: at first, and at most.
POLL_FIRST, POLL_LAST = 0.25, 3.0

T = TypeVar("T")


@dataclass(frozen=True)
class Line:
    """A line of the program's output, without its newline. `stream` is stdout or stderr."""

    text: str
    task: str = ""
    stream: str = "stdout"


@dataclass(frozen=True)
class News:
    """The exec as it is now, and the output of its program since the last news."""

    exec: dict[str, Any]
    lines: list[Line] = field(default_factory=list)


class Clock:
    """The time limit of a wait. Raises WaitTimeout when it is over; the message names the command to come back with."""

    def __init__(self, exec_id: str, seconds: int | None, again: str = "--follow") -> None:
        self._exec_id, self._seconds, self._again = exec_id, seconds, again
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self, most: float) -> float:
        """Return the seconds that may pass now, at most `most`. Raises WaitTimeout."""
        if self._end is None:
            return most
        left = self._end - time.monotonic()
        if left <= 0:
            raise WaitTimeout(
                f"{self._exec_id} has not ended within {self._seconds} s and continues; "
                f"come back with: {hints.command(self._again, self._exec_id)}"
            )
        return min(most, left)

    def sleep(self, seconds: float) -> None:
        """Sleep, but not beyond the time limit. Raises WaitTimeout."""
        time.sleep(self.left(seconds))


def follow(client: Client, exec_id: str, view: View, clock: Clock) -> dict[str, Any]:
    """Show an exec until it has ended, and return it. Raises WaitTimeout, NoSuchExec, Unreachable.

    A server that cannot be reached at first is an error. A server that becomes unreachable later is tried again.
    """
    offered = wire.EXT_FOLLOW in client.extensions()
    client = client.impatient()
    source = _long_poll(client, exec_id, clock) if offered else _poll(client, exec_id, clock, with_output=True)
    return _show(source, view)


def wait(client: Client, exec_id: str, view: View, clock: Clock) -> dict[str, Any]:
    """Wait silently until an exec has ended, and return it."""
    client.exec(exec_id)
    return _show(_poll(client.impatient(), exec_id, clock, with_output=False), view)


def exit_code(found: dict[str, Any], pass_exit_code: bool) -> int:
    """Return dlicmd's exit code for an exec that has ended."""
    state = found.get(wire.STATE)
    own = found.get(wire.EXIT_CODE)
    if state == states.FINISHED:
        return Exit.DONE
    if found.get(wire.REASON) == wire.NEVER_SCHEDULABLE:
        return Exit.NEVER_SCHEDULABLE
    if state == states.KILLED:
        return Exit.JOB_KILLED
    if pass_exit_code and isinstance(own, int) and not isinstance(own, bool) and own % 256:
        return own % 256
    return Exit.JOB_ERROR


def is_over(found: dict[str, Any]) -> bool:
    """Return whether a longer wait makes no sense: the exec has ended, or can never be scheduled."""
    return states.is_terminal(str(found.get(wire.STATE, ""))) or found.get(wire.REASON) == wire.NEVER_SCHEDULABLE


def _show(source: Iterator[News], view: View) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for news in source:
        found = news.exec
        over = is_over(found)
        if not over:
            view.state(found)
        for line in news.lines:
            view.line(line.text, line.task, line.stream)
        if over:
            view.state(found)
    return found


def _long_poll(client: Client, exec_id: str, clock: Clock) -> Iterator[News]:
    """Yield news from a server with the follow call, until the exec has ended and all its output is delivered."""
    cursor = ""
    while True:
        answer = patiently(clock, lambda: client.follow(exec_id, cursor, int(clock.left(LONG_POLL))))  # noqa: B023
        found, lines = answer.get(wire.EXEC), answer.get(wire.LINES)
        if not isinstance(found, dict) or not isinstance(lines, list):
            raise ServerError("the server sent an invalid answer to the follow call", 200)
        cursor = str(answer.get(wire.CURSOR, ""))
        yield News(found, [_line(line) for line in lines if isinstance(line, dict)])
        if is_over(found) and not lines:
            return
        if int(clock.left(LONG_POLL)) < 1:
            clock.sleep(POLL_FIRST)


def _line(line: dict[str, Any]) -> Line:
    return Line(str(line.get(wire.TEXT, "")), str(line.get(wire.TASK, "")), str(line.get(wire.STREAM, "stdout")))


def _poll(client: Client, exec_id: str, clock: Clock, with_output: bool) -> Iterator[News]:
    """Yield news from any server, by polling."""
    pause = POLL_FIRST
    seen = ""
    while True:
        found = patiently(clock, lambda: client.exec(exec_id))
        lines: list[Line] = []
        if with_output:
            text = patiently(clock, lambda: _log(client, exec_id))
            if not is_over(found):
                text = text[: text.rfind("\n") + 1]
            lines = [Line(line) for line in added_lines(seen, text)]
            seen = text
        yield News(found, lines)
        if is_over(found):
            return
        pause = POLL_FIRST if lines else min(POLL_LAST, pause * 1.3)
        clock.sleep(pause)


def _log(client: Client, exec_id: str) -> str:
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
