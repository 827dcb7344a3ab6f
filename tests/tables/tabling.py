"""Shared parts of the table tests: a meter that can cancel, and an export that is read back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from local_backend.data.export import TableLimits, export_table
from local_backend.data.kind import TableFamily
from local_backend.data.progress import Cancelled


@dataclass
class Tally:
    """A meter that raises Cancelled once `unwanted` returns true."""

    unwanted: Callable[[], bool] = lambda: False
    size: int = 0
    files: int = 0
    words: list[str] = field(default_factory=list)

    def expect(self, size: int | None, files: int | None = None) -> None:
        assert size is None

    def advance(self, size: int, files: int = 0) -> None:
        self.size, self.files = self.size + size, self.files + files

    def say(self, text: str) -> None:
        self.words.append(text)

    def check(self) -> None:
        if self.unwanted():
            raise Cancelled


def exported(family: Any, location: Mapping[str, Any], folder: Path,
             limits: TableLimits = TableLimits()) -> pyarrow.Table:
    """Export a table, and read the files as a program does."""
    assert isinstance(family, TableFamily)
    tally = Tally()
    delivered = export_table(family, location, folder, tally, limits)
    files = list(folder.iterdir())
    assert (delivered.files, delivered.size) == (len(files), sum(file.stat().st_size for file in files))
    assert (tally.files, tally.size) == (delivered.files, delivered.size)
    return pyarrow.parquet.read_table(folder)


def row(family: Any, location: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Export exactly one row and return it."""
    (found,) = exported(family, location, folder).to_pylist()
    return dict(found)


def types(table: pyarrow.Table) -> dict[str, str]:
    """Return column name → type of a table."""
    return {column.name: str(column.type) for column in table.schema}
