"""Types shared by the code that requests data, the fetcher, and the families that talk to servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Connection:
    """A server that holds data, and the credentials for it. `values` hold secrets: never show, log or store them in
    clear."""

    kind: str
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Name that users see; empty for a connection that is written out in the data source.
    name: str = ""


@dataclass(frozen=True)
class Delivered:
    """Data that is completely on this machine."""

    path: Path
    files: int
    size: int
    #: Distinguishes this content from another of the same name (ETag, modification time, checksum); empty if unknown.
    version: str = ""


class Meter(Protocol):
    """Records the progress of a delivery. Methods may be called from any thread.

    `check` raises Cancelled when no job needs the data any more. Code that fetches data calls `check` at least every
    second.
    """

    def expect(self, size: int | None, files: int | None = None) -> None:
        """Begin a delivery, or begin it anew, of `size` bytes and `files` files in all; None means unknown."""

    def resume(self, size: int, files: int = 0) -> None:
        """Record `size` bytes and `files` files that are already here from before."""

    def advance(self, size: int, files: int = 0) -> None:
        """Record `size` more bytes and `files` more files; negative for bytes that must be fetched again."""

    def say(self, text: str) -> None:
        """Show a short status until the next report, such as `comparing checksums`."""

    def check(self) -> None:
        """Raise Cancelled when no job needs the data any more."""


class Cancelled(Exception):
    """No job needs the data any more."""


def columns_of(schema: Any) -> list[dict[str, str]]:
    """Return the columns of a pyarrow schema as users see them: name and type."""
    return [{"name": column.name, "type": str(column.type)} for column in schema]
