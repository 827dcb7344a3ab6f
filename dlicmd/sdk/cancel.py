"""Cancellation of a call that runs in a thread: the caller sets a flag, and the call ends at its next check.

The call checks the flag in each pause, and for each chunk of an upload or download. Without a flag, a check does
nothing.
"""

from __future__ import annotations

import time
from contextvars import ContextVar

#: Seconds after which a pause checks the flag, and for an interrupt: a Ctrl-C in the moment before a sleep begins is
#: only noticed when that sleep ends.
SLICE = 0.5


class CallCancelled(BaseException):
    """The caller no longer waits for this call."""


class Flag:
    """A request to end the calls of one context."""

    def __init__(self) -> None:
        self.is_set = False


_flag: ContextVar[Flag | None] = ContextVar("_flag", default=None)


def use(flag: Flag) -> None:
    """Let later calls in this context end when `flag` is set."""
    _flag.set(flag)


def is_possible() -> bool:
    """Return whether calls in this context can be cancelled."""
    return _flag.get() is not None


def check() -> None:
    """Raise CallCancelled if the flag of this context is set."""
    flag = _flag.get()
    if flag is not None and flag.is_set:
        raise CallCancelled


def sleep(seconds: float) -> None:
    """Sleep. Raises CallCancelled when the flag of this context is set in the meantime."""
    end = time.monotonic() + seconds
    check()
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, SLICE))
        check()
