"""Limits the restarts of a killed driver. Pure."""

from __future__ import annotations


class Restarts:
    """Counts all restarts, and consecutive restarts without progress."""

    MOST = 3

    def __init__(self) -> None:
        self.count = 0
        self._fruitless = 0
        self._furthest = float("-inf")

    def again(self, furthest: float) -> bool:
        """Return whether to restart the driver, and count the restart if so; `furthest` is the highest step ever
        reported."""
        if furthest > self._furthest:
            self._furthest, self._fruitless = furthest, 0
        if self._fruitless >= self.MOST:
            return False
        self._fruitless += 1
        self.count += 1
        return True
