"""The contents of the files that the programs of execs wrote, for pages: parts, first rows, pictures, histograms.

The files come from untrusted programs. They are parsed in processes of their own, with limits.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from local_backend import limited_work
from local_backend.curves import summaries
from local_backend.data import rows
from local_backend.limited_work import LimitExceeded, WorkLimits
from local_backend.runtime.written import Written
from local_backend.services.browsing import MOST_BYTES
from local_backend.services.execs import ExecService
from local_backend.store.execs import ExecRow

#: Rows of a table that a page shows.
ROWS = 100
#: Libraries for tables reserve more memory than they use.
_TABLES, _EVENTS = WorkLimits(seconds=10, memory=4 << 30), WorkLimits(seconds=10, memory=512 << 20)
#: Seconds of wall time beyond the CPU time.
_SLACK = 10
_ROWS_OF, _SUMMARIES_OF = f"{rows.__name__}:of_descriptor", f"{summaries.__name__}:of_descriptor"


@dataclass(frozen=True)
class WrittenFolder:
    """A folder with files that a program wrote: its path for users, the number and bytes of the files in it and in all
    folders below, and the time of the newest change in epoch nanoseconds."""

    path: str
    files: int
    size: int
    modified: int


@dataclass(frozen=True)
class ListedFolder:
    """What is directly in a folder, in the order of the paths; all files `below` it; and whether the list of the run's
    files is `complete`."""

    folders: list[WrittenFolder]
    files: list[Written]
    below: list[Written]
    complete: bool


@dataclass(frozen=True)
class RunFileService:
    """Queries about files and their contents. Those about one file raise NotFound (`exec.no_file`)."""

    execs: ExecService

    def folder(self, row: ExecRow, path: str) -> ListedFolder:
        """Return what is in a folder, empty for the top. A folder without files is empty."""
        written, complete = self.execs.written(row).listed()
        prefix = f"{path}/" if path else ""
        below = [file for file in written if file.path.startswith(prefix)]
        folders: dict[str, list[Written]] = {}
        direct: list[Written] = []
        for file in below:
            name, slash, _ = file.path[len(prefix):].partition("/")
            folders.setdefault(prefix + name, []).append(file) if slash else direct.append(file)
        listed = [WrittenFolder(name, len(files), sum(one.size for one in files), max(one.modified for one in files))
                  for name, files in folders.items()]
        return ListedFolder(listed, direct, below, complete)

    def part(self, row: ExecRow, path: str, start: int = 0, most: int = MOST_BYTES) -> tuple[bytes, int]:
        """Return at most `most` bytes of a file from a place on, and the size of the file. A negative `start` counts
        from the end."""
        with self.execs.file(row, path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, start + size) if start < 0 else min(start, size))
            return file.read(min(most, MOST_BYTES)), size

    def rows(self, row: ExecRow, path: str, at: int = 0) -> dict[str, Any]:
        """Return the first ROWS rows of a table from a place on as data.rows does, with `ok`, and the reason in
        `message`."""
        with self.execs.file(row, path) as file:
            try:
                found: dict[str, Any] = limited_work.call(_ROWS_OF, [path, ROWS, at], _TABLES, _SLACK, file.fileno())
            except (LimitExceeded, OSError):
                return {"ok": False, "message": "The rows of this file need too much time or memory."}
            return found

    def summaries(self, row: ExecRow, path: str) -> dict[str, Any]:
        """Return the pictures and histograms of an event file of TensorBoard as curves.summaries does."""
        with self.execs.file(row, path) as file:
            try:
                found: dict[str, Any] = limited_work.call(_SUMMARIES_OF, [], _EVENTS, _SLACK, file.fileno())
            except (LimitExceeded, OSError):
                return {"pictures": {}, "histograms": {}, "complete": False}
            return found
