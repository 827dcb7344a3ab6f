"""The interface through which metrics are sent to a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from local_backend.forward.source import SourceLine

#: Seconds to connect; seconds for all work on one batch.
CONNECT = 10.0
WHOLE = 30.0


class SendError(Exception):
    """Not all lines were sent. The first `done` lines certainly were."""

    def __init__(self, text: str, done: int = 0) -> None:
        super().__init__(text)
        self.done = done


class Trouble(SendError):
    """Sending failed now and may work later. `after` is the number of seconds that the receiver asks to wait."""

    def __init__(self, text: str, done: int = 0, after: float = 0.0) -> None:
        super().__init__(text, done)
        self.after = after


class RecordRefused(SendError):
    """The receiver does not accept this content, now or later."""


class MetricsChannel(Protocol):
    """A channel to one target."""

    #: The target, as a log may show it.
    name: str

    def send(self, lines: Sequence[SourceLine]) -> None:
        """Send all lines, in their order. Raises Trouble or Refused."""

    def close(self) -> None:
        """Close the connection, if one is open."""
