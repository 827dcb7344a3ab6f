"""progress.json: the progress of the program, written at most five times a second."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from local_backend.files import write_json

_EVERY = 0.2


class Progress:
    """The latest values; `flush` writes them when they are due. Not durable: the next value replaces a lost one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: dict[str, Any] = {}
        self._written = -_EVERY
        #: When the values are due to be written; None when all are written.
        self.due: float | None = None

    def update(self, values: dict[str, Any]) -> None:
        """Take new values; values not named here stay. Only scalars are kept."""
        self._values |= {
            name: value for name, value in values.items() if isinstance(value, str | int | float | None)
        }
        if self.due is None:
            self.due = max(time.monotonic(), self._written + _EVERY)
        self.flush()

    def flush(self, now: bool = False) -> None:
        """Write the new values if they are due, or at once with `now`."""
        moment = time.monotonic()
        if self.due is None or (moment < self.due and not now):
            return
        self.due, self._written = None, moment
        try:
            write_json(self._path, self._values, durable=False)
        except OSError:
            return  # the disk is full; progress is no reason to fail
