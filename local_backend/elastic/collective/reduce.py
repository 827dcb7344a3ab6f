"""Sums of the shards of a step over all members of a generation: the interface, and the choice of an implementation.

- `exact`: along one canonical tree, with the same bits for every number of workers;
- `fast`: one all-reduce per bucket, while backward still runs; equal to `exact` except for rounding;
- `async`: after a window of steps that each member makes on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from local_backend.elastic.collective.exact import ExactReducer
from local_backend.elastic.collective.fast import FastReducer
from local_backend.elastic.collective.group import WorkerGroup
from local_backend.elastic.collective.layout import Layout
from local_backend.elastic.collective.local_sgd import LocalReducer, LocalSteps
from local_backend.elastic.plan import Range

__all__ = ["Layout", "Reducer", "make_reducer"]


class Reducer(Protocol):
    """Sums of steps. A worker has one reducer per generation that it belongs to.

    After GroupBroken or Interrupted from a step, the reducer must not be used again.
    """

    def begin_step(self, ranges: Sequence[Range], active: int, shards: Sequence[int]) -> ReducerStep:
        """Begin a step. The step before must be finished. `ranges`: shards of all members in order of rank; a range may
        be empty. `active`: shards 0 to `active` (exclusive) have samples in this step. `shards`: shards of this member
        in order; there may be none."""


class ReducerStep(Protocol):
    """The sum of one step. The caller calls `finish`, or `undo` when the step is broken off."""

    def begin_shard(self, shard: int) -> None:
        """Prepare a forward pass: clear the gradients, and restore the committed buffers (not in asynchronous mode)."""

    def backward(self, shard: int, loss: Tensor, weight: float) -> None:
        """Run backward once per shard, in place of `loss.backward()`, if the engine and not the user's step function
        runs it. This saves passes over the gradients, and lets `fast` communicate meanwhile. Raises GroupBroken."""

    def end_shard(self, shard: int, weight: float) -> None:
        """Add the shard after backward has run, by `backward` or otherwise. `weight`: weight of the shard's mean in the
        mean of the step.

        Raises EngineError when the shard has changed a buffer without a rule, or the shape of a buffer."""

    def finish(self, word: int) -> list[int]:
        """Finish the step after all shards of this member. Put the sum of the step into `grad` of the parameters, and
        load and commit the combined buffers. Return the words of all members in order of rank, each from 0 to 2**31.

        Raises GroupBroken and Interrupted. Nothing is applied then."""

    def undo(self) -> None:
        """Restore parameters, buffers and optimizer as they were before the step. Clear the gradients."""


def make_reducer(mode: str, layout: Layout, group: WorkerGroup | None, local: LocalSteps | None = None) -> Reducer:
    """Return the reducer of a mode: "exact", "fast", or "async", which needs `local`. Without a group, or in a group of
    one member, nothing is communicated."""
    group = group if group is not None and group.size > 1 else None
    if local is not None:
        return LocalReducer(layout, group, local)
    kinds: dict[str, type[ExactReducer] | type[FastReducer]] = {"exact": ExactReducer, "fast": FastReducer}
    return kinds[mode](layout, group)
