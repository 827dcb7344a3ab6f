"""What those who ask for data, those who fetch it and those who know how to talk to a kind of server have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Connection:
    """A server that has data, and how to get in. `values` hold secrets: never shown, logged or stored in clear."""

    kind: str
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: What people call it; empty for one that was written into the data source itself.
    name: str = ""


@dataclass(frozen=True)
class Delivered:
    """Data that lies on this machine now, whole."""

    path: Path
    files: int
    size: int
    #: What tells this content from another of the same name (ETag, time of change, checksum); empty when unknown.
    version: str = ""


class Meter(Protocol):
    """Takes note of how far a delivery is. Methods may be called from any thread.

    `check` raises Cancelled when nobody wants the data any more; whoever fetches calls it at least every second.
    """

    def expect(self, size: int | None, files: int | None = None) -> None:
        """A delivery begins, or begins anew: so many bytes in so many files are to be here in all; None for unknown."""

    def resume(self, size: int, files: int = 0) -> None:
        """So many bytes are here from before."""

    def advance(self, size: int, files: int = 0) -> None:
        """So many bytes more have come; negative for some that have to be fetched again."""

    def say(self, text: str) -> None:
        """What is going on, in a few words, until the next: `waiting for another job that fetches the same`."""

    def check(self) -> None:
        """Raises Cancelled."""


class Cancelled(Exception):
    """Nobody wants the data any more."""


def columns_of(schema: Any) -> list[dict[str, str]]:
    """The columns of a pyarrow schema as they are shown: name and type."""
    return [{"name": column.name, "type": str(column.type)} for column in schema]
