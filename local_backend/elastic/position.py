"""The position of a worker in a training."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class EpochStage(IntEnum):
    """How far a worker is with the work between two epochs, in order."""

    #: Within an epoch, or just after its last step.
    STEPPED = 0
    #: At the boundary; the callbacks of the epoch's end have run.
    ENDED = 1
    #: At the boundary; the work that depends on the values of the epoch is done.
    TOLD = 2
    #: The callbacks of the next epoch's beginning have run.
    BEGUN = 3


class Position(NamedTuple):
    """Optimizer steps in a worker's state, and the stage. A worker with a lower position is behind."""

    steps: int
    stage: EpochStage = EpochStage.STEPPED

    @property
    def number(self) -> int:
        """The position as one number in the same order, for messages, tensors and files."""
        return 4 * self.steps + self.stage

    @classmethod
    def from_number(cls, number: int) -> Position:
        """Return the position with this number. Inverse of `number`."""
        return cls(number // 4, EpochStage(number % 4))

    def at(self, stage: EpochStage) -> Position:
        """Return the position after the same steps at another stage."""
        return Position(self.steps, stage)


BEGINNING = Position(0)
