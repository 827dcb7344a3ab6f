"""How the shards of a step are summed over all members of a generation: the interface, and its ways.

- `exact`: along one canonical tree, the same bits for every number of workers;
- `fast`: one all-reduce per bucket, while backward still runs; equal to `exact` but for rounding;
- `async`: after a window of steps that each member makes by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from local_backend.elastic.exact import ExactReducer
from local_backend.elastic.fast import FastReducer
from local_backend.elastic.group import Group
from local_backend.elastic.layout import Layout
from local_backend.elastic.local_sgd import LocalReducer, LocalSteps
from local_backend.elastic.plan import Range

__all__ = ["Layout", "Reducer", "make_reducer"]


class Reducer(Protocol):
    """Sums steps; one per membership of this worker in one generation.

    After GroupBroken or Interrupted, from whatever method, parameters and committed buffers are as before the step (in
    asynchronous mode after `LocalSteps.undo`); gradients and live buffers are undefined, and the reducer is of no more
    use.
    """

    def begin_step(self, ranges: Sequence[Range], active: int, shards: Sequence[int]) -> None:
        """`ranges`: shards of all members in order of rank, some may be empty; shards 0 to `active` (exclusive) have
        samples in this step; `shards`: those of this member, in order, maybe none."""

    def begin_shard(self, shard: int) -> None:
        """Before the forward pass: no gradients, and the committed buffers (in asynchronous mode as they are)."""

    def backward(self, loss: Tensor, weight: float) -> None:
        """In place of `loss.backward()` where the engine, not the user's step function, runs it, once per shard. Saves
        passes over the gradients, and lets `fast` communicate meanwhile. Raises GroupBroken."""

    def end_shard(self, shard: int, weight: float) -> None:
        """Backward has run, by `backward` or otherwise. `weight`: of the shard's mean in the mean of the step.

        Raises EngineError when a large whole-number buffer has changed."""

    def finish(self, word: int) -> list[int]:
        """All shards of this member are through: the sum of the step is in the parameters' `grad`, the means are in the
        buffers, which are committed. Returns the words of all members, each from 0 to 2**31, in order of rank.

        Raises GroupBroken and Interrupted."""


def make_reducer(mode: str, layout: Layout, group: Group | None, local: LocalSteps | None = None) -> Reducer:
    """`mode`: "exact" or "fast"; or "async", with `local`. Without a group, or in one of one member, nothing is
    communicated."""
    group = group if group is not None and group.size > 1 else None
    if local is not None:
        return LocalReducer(layout, group, local)
    kinds: dict[str, type[ExactReducer] | type[FastReducer]] = {"exact": ExactReducer, "fast": FastReducer}
    return kinds[mode](layout, group)
