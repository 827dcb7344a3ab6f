"""The size of the search, and what each side reports. Every side trains the same configurations."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from itertools import pairwise

EXPERIMENTS, EPOCHS, ETA, PLACES = 27, 27, 3, 4


@dataclass
class Report:
    """What one side did."""

    #: (experiment, epoch) → the accuracy after it; seconds since the start of the search at which it was known.
    scores: dict[tuple[int, int], float] = field(default_factory=dict)
    times: dict[tuple[int, int], float] = field(default_factory=dict)
    #: Trained epochs, also those that were trained again.
    epochs: int = 0
    seconds: float = 0.0

    def note(self, experiment: int, epoch: int, score: float, at: float) -> None:
        """Note a value; of an epoch that was trained again, the first."""
        self.epochs += 1
        self.scores.setdefault((experiment, epoch), score)
        self.times.setdefault((experiment, epoch), at)

    @property
    def best(self) -> float:
        """The best accuracy of an experiment that was trained to the end."""
        return max((score for (_, epoch), score in self.scores.items() if epoch == EPOCHS), default=-math.inf)

    def reached(self, score: float) -> float:
        """Return when an experiment that was trained to the end had at least this score."""
        ends = {one for one, epoch in self.scores if epoch == EPOCHS and self.scores[one, epoch] >= score}
        return min((self.times[one, EPOCHS] for one in ends), default=math.inf)

    @property
    def wasted(self) -> int:
        """Epochs that were trained more than once."""
        return self.epochs - len(self.scores)


def between(times: list[dict[str, float]]) -> float:
    """Return the median seconds from the end of an experiment to the first step of the next one."""
    times.sort(key=lambda one: one["first"])
    return statistics.median(after["first"] - before["end"] for before, after in pairwise(times))
