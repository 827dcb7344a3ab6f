"""The speed of a test's training: slow until the test lets it run at full speed."""

from __future__ import annotations

import os
import time
from typing import Any

from torch.utils.data import default_collate

#: Seconds by which each batch takes longer than the previous one, after the first `batches` batches.
SLOWER = 0.02


class Paced:
    """A collate function that takes `pace` seconds until the file `hurry` exists.

    After `batches` batches of all workers together, each batch takes longer than the one before. So a training with a
    fixed number of steps does not end on a busy machine before a new worker has joined.
    """

    def __init__(self, hurry: str, pace: float, batches: int) -> None:
        self._hurry = hurry
        self._pace = pace
        self._batches = batches

    def __call__(self, samples: list[Any]) -> Any:
        if self._pace and not os.path.exists(self._hurry):
            time.sleep(self._pace + SLOWER * max(0, self._count() - self._batches))
        return default_collate(samples)

    def _count(self) -> int:
        """Add 1 to the number of batches so far, which is the size of a file, and return it."""
        with open(f"{self._hurry}.batches", "ab") as file:
            file.write(b".")
            file.flush()
            return file.tell()
