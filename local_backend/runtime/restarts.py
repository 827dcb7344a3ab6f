"""Counts the restarts of an exec since its last progress: of its driver, its runner and its machine alike. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass
class Restarts:
    """The restarts since the last progress. Progress means that the highest step has grown since the last restart."""

    MOST: ClassVar = 3

    #: Restarts since the last progress.
    fruitless: int = 0
    #: The highest step at the last restart, and now; -1 before the first step.
    furthest: float = -1.0
    reached: float = -1.0

    def reach(self, step: float) -> bool:
        """Note a step that the exec has reported. Return whether it is higher than all before."""
        grown = step > self.reached
        self.reached = max(self.reached, step)
        return grown

    def again(self) -> bool:
        """Return whether the exec may start again, and count the restart if so."""
        if self.reached > self.furthest:
            self.furthest, self.fruitless = self.reached, 0
        if self.fruitless >= self.MOST:
            return False
        self.fruitless += 1
        return True
