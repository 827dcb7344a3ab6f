"""Sending a request again when it failed in a way that passes, so that the server does nothing twice by that."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from dlicmd.console import warn
from dlicmd.contract import wire
from dlicmd.errors import ConnectFailed, ConnectionLost, UsageProblem

if TYPE_CHECKING:
    from dlicmd.rest.transport import Answer, Request, Transport

VARIABLE, TIMEOUT_VARIABLE = "DLICMD_RETRIES", "DLICMD_TIMEOUT"
#: How often a call is repeated when the environment does not say, and at most.
RETRIES, MOST_RETRIES = 3, 20
#: The longest that a server may be told to take: a day.
MOST_SECONDS = 86_400
IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE"})
#: Answers of a server, or of a gateway in front of it, that another attempt may not get.
PASSING = frozenset({429, 502, 503, 504})
OK, FAILED, IN_FLIGHT = 200, 500, 409
#: Seconds before the second attempt, how many times longer each next pause is, and the longest.
FIRST_PAUSE, GROWTH, LONGEST_PAUSE = 0.2, 4.0, 15.0
#: Seconds after which a pause looks whether it was interrupted.
SLICE = 0.5
#: The most seconds that a server's Retry-After is obeyed; one that wants more is not waited for.
MOST_RETRY_AFTER = 60.0


def retries_wanted() -> int:
    """How often a call is repeated, as DLICMD_RETRIES has it. Raises UsageProblem."""
    found = _wanted(VARIABLE, 0, MOST_RETRIES)
    return RETRIES if found is None else found


def timeout_wanted() -> int | None:
    """Seconds that a server may be silent, as DLICMD_TIMEOUT has it, None when it does not say. Raises UsageProblem."""
    return _wanted(TIMEOUT_VARIABLE, 1, MOST_SECONDS)


def _wanted(variable: str, least: int, most: int) -> int | None:
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and least <= int(text[:18]) <= most):
        raise UsageProblem(f"{variable}: '{text}' is not a whole number from {least} to {most}")
    return int(text)


class Repeating:
    """A transport that sends what may be repeated up to `retries` times more, with growing pauses.

    Whatever the request, it is sent again when it never left. When it may have arrived, or the server was overloaded,
    only requests are that are idempotent by their method, by a key (`Request.keyed`), or by what they ask for
    (`Request.harmless`). Each repetition is told.
    """

    def __init__(self, transport: Transport, retries: int) -> None:
        self._transport, self._retries = transport, retries

    def send(self, request: Request) -> Answer:
        """The answer, whatever its status; `Answer.repeated` says whether an earlier attempt may have arrived.

        Raises Unreachable.
        """
        left, count, lost = self._retries, 0, False
        patience = time.monotonic() + request.timeout
        while True:
            try:
                answer = self._once(request)
                why, asked = _trouble(request, answer)
                answer.repeated = lost
                # Ours, sent earlier, is still being worked on: no failure, so that it is no matter of how many times.
                waiting = answer.status == IN_FLIGHT and time.monotonic() < patience
                if not why or not (left or waiting) or (asked or 0.0) > MOST_RETRY_AFTER:
                    return answer
            except (ConnectFailed, ConnectionLost) as problem:
                arrived = isinstance(problem, ConnectionLost)
                if not left or (arrived and not _may_repeat(request)):
                    raise
                why = problem.why if isinstance(problem, ConnectFailed) else str(problem)
                lost, asked, waiting = lost or arrived, None, False
            pause = _pause(count) if asked is None else asked
            count += 1
            left -= 0 if waiting else 1
            what = f"{request.method} {request.target.partition('?')[0].removeprefix(wire.BASE)}"
            warn(f"{what}: {why}; trying again in {pause:.1f} s")
            sleep(pause)

    def _once(self, request: Request) -> Answer:
        if request.body is not None and not isinstance(request.body, bytes):
            request.body.rewind()
        answer = self._transport.send(request)
        if not request.streamed:
            # Read here, so that an answer that is cut is asked for again.
            answer.hold()
            if (request.method == "GET" or request.keyed) and _is_headless(answer):
                raise ConnectionLost("the connection broke: the answer was cut")
        return answer


def _is_headless(answer: Answer) -> bool:
    """Whether this is what an answer looks like that was cut within its headers: a success that says nothing.

    HTTP libraries take the end of the connection for the end of the headers.
    """
    told = answer.headers.get("content-length") == "0" or "transfer-encoding" in answer.headers
    return answer.status == OK and not told and not answer.body()


def _may_repeat(request: Request) -> bool:
    return request.method in IDEMPOTENT or request.keyed or request.harmless


def _trouble(request: Request, answer: Answer) -> tuple[str, float | None]:
    """Why an answer is not the last word ("" when it is), and the seconds that the server wants to be left alone."""
    passing = PASSING | {FAILED, IN_FLIGHT} if request.keyed else PASSING
    if answer.status not in passing or request.final or not _may_repeat(request):
        return "", None
    why = "an earlier attempt is still being worked on" if answer.status == IN_FLIGHT else f"HTTP {answer.status}"
    return why, _retry_after(answer.headers.get("retry-after", ""))


def _retry_after(text: str) -> float | None:
    """The seconds that a Retry-After header asks for, as a number or as a date; None when it says nothing usable."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    if not text:
        return None
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def sleep(seconds: float) -> None:
    """Sleep, in slices: a Ctrl-C that comes in the moment before a sleep begins is only noticed when that one ends."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, SLICE))


def _pause(count: int) -> float:
    """Seconds before the next attempt, `count` repetitions having been made; spread, so that clients do not return
    in step."""
    import random

    return float(min(LONGEST_PAUSE, FIRST_PAUSE * GROWTH**count)) * random.uniform(0.75, 1.25)
