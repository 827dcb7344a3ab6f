"""The contents of the files that the programs of execs wrote, for pages: parts, first rows, pictures, histograms.

The files come from untrusted programs. They are parsed in processes of their own, with limits.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from local_backend import limited_work
from local_backend.curves import summaries
from local_backend.data import sample
from local_backend.limited_work import LimitExceeded, WorkLimits
from local_backend.services.browsing import MOST_BYTES
from local_backend.services.execs import ExecService
from local_backend.store.execs import ExecRow

#: Rows of a table that a page shows.
ROWS = 100
#: Libraries for tables reserve more memory than they use.
_TABLES, _EVENTS = WorkLimits(seconds=10, memory=4 << 30), WorkLimits(seconds=10, memory=512 << 20)
#: Seconds of wall time beyond the CPU time.
_SLACK = 10
_ROWS_OF, _SUMMARIES_OF = f"{sample.__name__}:of_descriptor", f"{summaries.__name__}:of_descriptor"


@dataclass(frozen=True)
class RunFileService:
    """Queries about the contents of files. All raise NotFound (`exec.no_file`)."""

    execs: ExecService

    def part(self, row: ExecRow, path: str, start: int = 0, most: int = MOST_BYTES) -> tuple[bytes, int]:
        """Return at most `most` bytes of a file from a place on, and the size of the file. A negative `start` counts
        from the end."""
        with self.execs.file(row, path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, start + size) if start < 0 else min(start, size))
            return file.read(min(most, MOST_BYTES)), size

    def rows(self, row: ExecRow, path: str) -> dict[str, Any]:
        """Return the first rows of a table as data.sample does, with `ok`, and the reason in `message`."""
        with self.execs.file(row, path) as file:
            try:
                found: dict[str, Any] = limited_work.call(_ROWS_OF, [path, ROWS], _TABLES, _SLACK, file.fileno())
            except (LimitExceeded, OSError):
                return {"ok": False, "message": "The first rows of this file need too much time or memory."}
            return found

    def summaries(self, row: ExecRow, path: str) -> dict[str, Any]:
        """Return the pictures and histograms of an event file of TensorBoard as curves.summaries does."""
        with self.execs.file(row, path) as file:
            try:
                found: dict[str, Any] = limited_work.call(_SUMMARIES_OF, [], _EVENTS, _SLACK, file.fileno())
            except (LimitExceeded, OSError):
                return {"pictures": {}, "histograms": {}, "complete": False}
            return found
