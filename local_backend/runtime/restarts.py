"""How often a driver that is killed is started again. Pure."""

from __future__ import annotations


class Restarts:
    """Counts restarts, and those in a row that brought no progress."""

    MOST = 3

    def __init__(self) -> None:
        self.count = 0
        self._fruitless = 0
        self._furthest = float("-inf")

    def again(self, furthest: float) -> bool:
        """Whether to start it once more, and if so, count it; `furthest` is the highest step it has ever told."""
        if furthest > self._furthest:
            self._furthest, self._fruitless = furthest, 0
        if self._fruitless >= self.MOST:
            return False
        self._fruitless += 1
        self.count += 1
        return True
