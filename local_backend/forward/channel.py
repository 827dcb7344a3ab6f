"""What carries metrics to a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from local_backend.forward.source import Line

#: Seconds to connect, and for everything that is done with one batch.
CONNECT = 10.0
WHOLE = 30.0


class SendError(Exception):
    """Not all was handed over. The first `done` lines surely were."""

    def __init__(self, text: str, done: int = 0) -> None:
        super().__init__(text)
        self.done = done


class Trouble(SendError):
    """It did not work now and may later; `after` is how many seconds the other side asks to be left alone."""

    def __init__(self, text: str, done: int = 0, after: float = 0.0) -> None:
        super().__init__(text, done)
        self.after = after


class Refused(SendError):
    """The other side does not take this content, now or later."""


class Channel(Protocol):
    """A way to one target."""

    #: Where it leads, as a log may show it.
    name: str

    def send(self, lines: Sequence[Line]) -> None:
        """Hand over all lines, in their order. Raises Trouble or Refused."""

    def close(self) -> None:
        """Let go of a connection."""
