"""Repetition of a request after an error that may pass, without making the server do anything twice."""

from __future__ import annotations

import os
import time

from dlicmd.contract import wire
from dlicmd.sdk.cancel import sleep
from dlicmd.sdk.errors import ConnectFailed, ConnectionLost, UsageProblem
from dlicmd.sdk.messages import warn
from dlicmd.sdk.transport import Answer, Request, Transport

VARIABLE, TIMEOUT_VARIABLE = "DLICMD_RETRIES", "DLICMD_TIMEOUT"
#: How often a call is repeated: by default, and at most.
RETRIES, MOST_RETRIES = 3, 20
#: The longest timeout in seconds: a day.
MOST_SECONDS = 86_400
IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE"})
#: HTTP codes of a server, or of a gateway in front of it, that another attempt may not get.
PASSING = frozenset({429, 502, 503, 504})
OK, FAILED, IN_FLIGHT = 200, 500, 409
#: Seconds before the second attempt, the factor for each next pause, and the longest pause.
FIRST_PAUSE, GROWTH, LONGEST_PAUSE = 0.2, 4.0, 15.0
#: Seconds for which a server that cannot be reached is tried again without a message.
_QUIET = 6.0
#: The longest Retry-After of a server that is obeyed, in seconds. After a longer one, the call is not repeated.
MOST_RETRY_AFTER = 60.0


def retries_wanted() -> int:
    """Return how often a call is repeated, from DLICMD_RETRIES or by default. Raises UsageProblem."""
    found = _wanted(VARIABLE, 0, MOST_RETRIES)
    return RETRIES if found is None else found


def timeout_wanted() -> int | None:
    """Return the seconds that a server may stay silent, from DLICMD_TIMEOUT; None when it is not set. Raises
    UsageProblem."""
    return _wanted(TIMEOUT_VARIABLE, 1, MOST_SECONDS)


def _wanted(variable: str, least: int, most: int) -> int | None:
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and least <= int(text[:18]) <= most):
        raise UsageProblem(f"{variable}: '{text}' is not a whole number from {least} to {most}")
    return int(text)


class Repeating:
    """A transport that repeats a request up to `retries` times, with growing pauses.

    A request that was never sent is always repeated. If the request may have arrived, or the server was overloaded,
    only an idempotent request is repeated. A request is idempotent by its method, by a key (`Request.keyed`), or by
    its effect (`Request.harmless`). A repetition is reported, unless no server could be reached
    for some seconds only: then the error says so.
    """

    def __init__(self, transport: Transport, retries: int) -> None:
        self._transport, self._retries = transport, retries

    def send(self, request: Request) -> Answer:
        """Return the answer, whatever its status. `Answer.repeated` says whether an earlier attempt may have arrived.

        Raises Unreachable.
        """
        left, count, lost, silent = self._retries, 0, False, False
        began = time.monotonic()
        patience = began + request.timeout
        while True:
            try:
                answer = self._once(request)
                why, asked = _trouble(request, answer)
                answer.repeated, silent = lost, False
                # The server still works on our earlier attempt. This wait is not a failure and does not count as a
                # repetition.
                waiting = answer.status == IN_FLIGHT and time.monotonic() < patience
                if not why or not (left or waiting) or (asked or 0.0) > MOST_RETRY_AFTER:
                    return answer
            except (ConnectFailed, ConnectionLost) as problem:
                arrived = isinstance(problem, ConnectionLost)
                if not left or (arrived and not _may_repeat(request)):
                    raise
                why = problem.why if isinstance(problem, ConnectFailed) else str(problem)
                lost, asked, waiting, silent = lost or arrived, None, False, not arrived
            pause = _pause(count) if asked is None else asked
            count += 1
            left -= 0 if waiting else 1
            if not silent or time.monotonic() + pause - began > _QUIET:
                what = f"{request.method} {request.target.partition('?')[0].removeprefix(wire.BASE)}"
                warn(f"{what}: {why}; trying again in {pause:.1f} s")
            sleep(pause)

    def _once(self, request: Request) -> Answer:
        if request.body is not None and not isinstance(request.body, bytes):
            request.body.rewind()
        answer = self._transport.send(request)
        if not request.streamed:
            # Read the body here, so that an answer that is cut is requested again.
            answer.hold()
            if (request.method == "GET" or request.keyed) and _is_headless(answer):
                raise ConnectionLost("the connection broke: the answer is incomplete")
        return answer


def _is_headless(answer: Answer) -> bool:
    """Return whether an answer seems to be cut within its headers: a success without content.

    HTTP libraries take the end of the connection for the end of the headers.
    """
    told = answer.headers.get("content-length") == "0" or "transfer-encoding" in answer.headers
    return answer.status == OK and not told and not answer.body()


def _may_repeat(request: Request) -> bool:
    return request.method in IDEMPOTENT or request.keyed or request.harmless


def _trouble(request: Request, answer: Answer) -> tuple[str, float | None]:
    """Return why an answer is not final ("" if it is), and the seconds of its Retry-After, or None."""
    passing = PASSING | {FAILED, IN_FLIGHT} if request.keyed else PASSING
    if answer.status not in passing or request.final or not _may_repeat(request):
        return "", None
    why = "the server still processes an earlier attempt" if answer.status == IN_FLIGHT else f"HTTP {answer.status}"
    return why, _retry_after(answer.headers.get("retry-after", ""))


def _retry_after(text: str) -> float | None:
    """Return the seconds of a Retry-After header, given as a number or a date; None when the header is unusable."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    if not text:
        return None
    from email.utils import parsedate_to_datetime  # only for a date

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _pause(count: int) -> float:
    """Return the seconds before the next attempt, after `count` repetitions. The random spread keeps clients from
    returning at the same time."""
    import random  # takes time, for a repetition alone

    return float(min(LONGEST_PAUSE, FIRST_PAUSE * GROWTH**count)) * random.uniform(0.75, 1.25)
