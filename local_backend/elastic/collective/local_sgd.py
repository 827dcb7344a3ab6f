"""Asynchronous mode: members train on their own for a *window* of optimizer steps, and then average their changes.

This is local SGD (Stich, arXiv 1805.09767) with an outer optimizer (DiLoCo, Douillard et al., arXiv 2311.08105). In a
window a member steps the user's own optimizer on its own shards alone. At the end of the window the engine takes the
mean change of the parameters over all members, weighted by samples. This mean is the gradient of an outer step of SGD
with Nesterov momentum. The outer step starts from the parameters at the beginning of the window.

A window takes as many local steps as it covers optimizer steps, for any number of workers: a member cuts its shards
into that many batches. So the learning rate has the same meaning as in the other modes, and one worker alone trains as
it would there. By default the outer step sets the parameters to the mean. DiLoCo's rate of 0.7 with a momentum of 0.9
multiplies the user's learning rate by 7 in the long run. Such values need tuning together with the learning rate.

Members have the same parameters, buffers and outer momentum. Each member has its own state of the user's optimizer, as
in DiLoCo. A newcomer gets the optimizer state of the member that it copies.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from local_backend.elastic import faults
from local_backend.elastic.collective.exact import add_gradients
from local_backend.elastic.collective.fast import Buckets, BucketStep
from local_backend.elastic.collective.group import WorkerGroup
from local_backend.elastic.collective.layout import Gradients, Layout, real_parts
from local_backend.elastic.errors import EngineError
from local_backend.elastic.plan import Range
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.state.live import Live
from local_backend.elastic.state.replica import parts_of, restore_optimizer


@dataclass(frozen=True)
class Window:
    """Settings of windows."""

    #: Optimizer steps that a window covers.
    steps: int
    #: Learning rate and momentum of the outer step.
    learning_rate: float = 1.0
    momentum: float = 0.0


class LocalSteps:
    """Local steps of one worker, and the outer optimizer, through all generations."""

    def __init__(self, job: TrainingJob, window: Window, shards: int) -> None:
        """Give the job its outer optimizer. `shards`: number of shards of a full window."""
        self._job = job
        self._steps, self._shards = window.steps, shards
        parameters = Live(job).parameters
        job.outer = self._outer = torch.optim.SGD(
            parameters, window.learning_rate, window.momentum, nesterov=window.momentum > 0
        )

    def cover(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add parameters that the outer optimizer does not have yet."""
        known = {id(parameter) for group in self._outer.param_groups for parameter in group["params"]}
        new = [parameter for parameter in parameters if id(parameter) not in known]
        if new:
            self._outer.add_param_group({"params": new})

    def count(self, active: int) -> int:
        """Return the number of local steps in a window with `active` shards."""
        return -(-active * self._steps // self._shards)

    def begin(self, parameters: Sequence[nn.Parameter]) -> WindowStart:
        """Begin a window. Return a copy of these parameters and of the state of the user's optimizer."""
        return WindowStart(Live(self._job), self._outer, parameters)

    def step(self) -> None:
        """Make one step of the user's optimizer."""
        self._job.optimizer.step()
        faults.at("local-step")


class WindowStart:
    """Parameters and the state of the user's optimizer at the beginning of a window."""

    def __init__(self, live: Live, outer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> None:
        """Copy these parameters, and the states of all optimizers in `live` except `outer`."""
        self._parameters = parameters
        self._anchor = [parameter.detach().clone() for parameter in parameters]
        inner = [optimizer for optimizer in live.optimizers if optimizer is not outer]
        # Parameters are keys of the state and members of groups, so the copy must refer to the same objects.
        same = {id(parameter): parameter for parameter in live.parameters}
        self._before = list(zip(inner, copy.deepcopy([parts_of(optimizer) for optimizer in inner], same), strict=True))

    def change(self, share: float, dtype: torch.dtype) -> Gradients:
        """Return the change of the parameters in this window, times `share`. Like a gradient, it points backward."""
        pairs = zip(self._anchor, self._parameters, strict=True)
        both = ((real_parts(anchor), real_parts(parameter.detach())) for anchor, parameter in pairs)
        return [(anchor.to(dtype) - parameter.to(dtype)) * share for anchor, parameter in both]

    def restore_parameters(self) -> None:
        """Restore the parameters as they were at the beginning of the window."""
        torch._foreach_copy_([parameter.detach() for parameter in self._parameters], self._anchor)

    def undo(self) -> None:
        """Restore the parameters and the user's optimizer as they were at the beginning of the window."""
        self.restore_parameters()
        for inner, parts in self._before:
            restore_optimizer(inner, parts)


class LocalReducer:
    """A `reduce.Reducer` whose sum over a window is the gradient of the outer step."""

    def __init__(self, layout: Layout, group: WorkerGroup | None, local: LocalSteps) -> None:
        """Sum over `group`, None for a member that is alone. Raises EngineError for a buffer rule except 'mean' and
        'first'."""
        self._layout = layout
        self._local = local
        self._buckets = None if group is None else Buckets(layout, group)
        if not layout.buffers.only_means_and_first:
            raise EngineError("in mode async, the rule of a buffer must be 'mean' or 'first'; use mode exact")
        local.cover(layout.parameters)

    def begin_step(self, ranges: Sequence[Range], active: int, shards: Sequence[int]) -> WindowStep:
        return WindowStep(self._layout, self._buckets, self._local, active, shards)


class WindowStep:
    """See `reduce.ReducerStep`: one window, which is a step of the plan. Parameters change during the window."""

    def __init__(
        self, layout: Layout, buckets: Buckets | None, local: LocalSteps, active: int, shards: Sequence[int]
    ) -> None:
        """`buckets`: None when this is the only member. `active`, `shards`: see `reduce.Reducer.begin_step`."""
        self._layout = layout
        self._buckets = buckets
        self._local = local
        self._shards = shards
        steps = min(local.count(active), len(shards))
        #: Last shard of each local step.
        self._ends = {shards[len(shards) * (i + 1) // steps - 1] for i in range(steps)}
        self._nothing: Gradients = [None] * len(layout.parameters)
        #: Gradients of the present local step and their weight; weight of the finished local steps.
        self._sum, self._weight, self._share = self._nothing, 0.0, 0.0
        layout.begin_shard()
        self._start = local.begin(layout.parameters)

    def begin_shard(self, shard: int) -> None:
        for parameter in self._layout.parameters:
            parameter.grad = None

    def backward(self, shard: int, loss: Tensor, weight: float) -> None:
        loss.backward()

    def end_shard(self, shard: int, weight: float) -> None:
        self._sum = add_gradients(self._sum, self._layout.gradients(weight))
        self._weight += weight
        if shard in self._ends:
            mean = [None if gradient is None else gradient.div_(self._weight) for gradient in self._sum]
            self._layout.apply(mean, None, 0)
            self._local.step()
            self._share += self._weight
            self._sum, self._weight = self._nothing, 0.0

    def finish(self, word: int) -> list[int]:
        faults.at("before-reduce")
        gradients, statistics, words = self._nothing, None, [word]
        if self._shards:
            gradients = self._start.change(self._share, self._layout.dtype)
            # Whole-number buffers get the values of the member that has shard 0.
            statistics = self._layout.take_statistics(self._shards[0])
        if statistics is not None:
            statistics[: self._layout.buffers.averaged] *= self._share
        if self._buckets is not None:
            buckets = BucketStep(self._buckets)
            gradients, statistics, words = buckets.finish(gradients, self._nothing, statistics, word)
        faults.at("after-reduce")
        self._start.restore_parameters()
        self._layout.apply(gradients, statistics, 1)
        return words

    def undo(self) -> None:
        self._layout.begin_shard()
        self._start.undo()
