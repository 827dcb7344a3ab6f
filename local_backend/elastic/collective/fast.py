"""The fast reducer: each member adds its shards, and one all-reduce per bucket adds the sums of the members.

Buckets hold gradients in reverse order of registration, which is roughly the order in which backward computes them. In
the last shard of a member, the reducer sends a bucket as soon as its last gradient is present (PyTorch Distributed:
Experiences on Accelerating Data Parallel Training, Li et al., VLDB 2020). All members start the buckets in the same
order. The last bucket also carries statistics, flags and words. Each member has a place for its word there, and the
other members add zero to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from local_backend.elastic import faults
from local_backend.elastic.collective.exact import WORD, add_gradients, can_scale, scaled_backward
from local_backend.elastic.collective.group import Handle, WorkerGroup
from local_backend.elastic.collective.layout import Gradients, Layout, aligned, real_parts
from local_backend.elastic.plan import Range

#: Bytes of the first bucket, which should fill soon, and of the other buckets.
FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20


class FastReducer:
    """See `reduce.Reducer`."""

    def __init__(self, layout: Layout, group: WorkerGroup | None) -> None:
        """`group`: None when this is the only member."""
        self._layout = layout
        self._buckets = None if group is None else Buckets(layout, group)

    def begin_step(self, ranges: Sequence[Range], active: int, shards: Sequence[int]) -> FastStep:
        return FastStep(self._layout, self._buckets, active, shards[-1] if shards else None)


class FastStep:
    """See `reduce.ReducerStep`."""

    def __init__(self, layout: Layout, buckets: Buckets | None, active: int, last: int | None) -> None:
        """`buckets`: None when this is the only member. `active`: see `reduce.Reducer.begin_step`. `last`: the last
        shard of this member, None if it has no shards."""
        self._layout = layout
        self._buckets = None if buckets is None else BucketStep(buckets)
        self._active = active
        self._last = last
        nothing: Gradients = [None] * len(layout.parameters)
        # Keep the last shard apart: its gradients may be in their buckets already.
        self._sum = self._newest = nothing
        self._statistics: Tensor | None = None
        #: Whether backward has multiplied the loss of the present shard by its weight.
        self._scaled = False

    def begin_shard(self, shard: int) -> None:
        self._layout.begin_shard()
        self._scaled = False

    def backward(self, shard: int, loss: Tensor, weight: float) -> None:
        if not can_scale(loss):
            loss.backward()
            return
        self._scaled = True
        if self._buckets is not None and shard == self._last:
            with self._buckets.filling(self._sum):
                scaled_backward(loss, weight)
        else:
            self._sum = self._layout.hand_back(self._sum)
            scaled_backward(loss, weight)

    def end_shard(self, shard: int, weight: float) -> None:
        gradients = self._layout.gradients(1.0 if self._scaled else weight)
        statistics = self._layout.take_statistics(shard)
        if shard == self._last:
            self._newest = gradients
        else:
            self._sum = add_gradients(self._sum, gradients)
        if self._statistics is not None and statistics is not None:
            statistics = self._statistics.add_(statistics)
        self._statistics = statistics

    def finish(self, word: int) -> list[int]:
        faults.at("before-reduce")
        if self._buckets is None:
            gradients, statistics, words = add_gradients(self._sum, self._newest), self._statistics, [word]
        else:
            gradients, statistics, words = self._buckets.finish(self._sum, self._newest, self._statistics, word)
        faults.at("after-reduce")
        self._layout.apply(gradients, statistics, self._active)
        return words

    def undo(self) -> None:
        self._layout.begin_shard()


class Buckets:
    """The flat vector of a member, cut into buckets. All steps of a generation use the same buckets."""

    def __init__(self, layout: Layout, group: WorkerGroup) -> None:
        self.group = group
        self.parameters = layout.parameters
        #: Number of values in the statistics of a shard.
        self.statistics = layout.statistics
        width = torch.finfo(layout.dtype).bits // 8
        #: Number of the bucket of each parameter.
        self.bucket_of = [0] * len(self.parameters)
        offsets = [0] * len(self.parameters)
        starts, end = [0], 0
        for i in reversed(range(len(self.parameters))):
            if (end - starts[-1]) * width >= (BUCKET if len(starts) > 1 else FIRST_BUCKET):
                starts.append(end)
            self.bucket_of[i], offsets[i] = len(starts) - 1, end
            end += aligned(layout.sizes[i])
        #: Statistics, a flag per gradient, a flag that asks to repeat the sum, words: their sizes, and their memory.
        self.rest_sizes = [self.statistics, len(offsets), 1, WORD * group.size]
        flat = torch.zeros(end + sum(self.rest_sizes), dtype=layout.dtype, device=layout.device)
        self.rest = flat[end:]
        #: The gradient of each parameter, in the memory of its bucket.
        self.views = layout.views(flat, offsets)
        self.flats = [flat[a:b] for a, b in zip(starts, [*starts[1:], len(flat)], strict=True)]
        #: Whether buckets may be sent while backward still runs.
        self.overlap = True


class BucketStep:
    """The use of buckets in one step: the all-reduce replaces each bucket by its sum over all members."""

    def __init__(self, buckets: Buckets) -> None:
        """Begin with empty buckets."""
        self._buckets = buckets
        self._round = BucketRound(buckets)

    @contextmanager
    def filling(self, sum_so_far: Gradients) -> Iterator[None]:
        """Fill buckets while backward of the last shard runs inside the `with` block: add each gradient to
        `sum_so_far`, put the sum into its bucket, and send full buckets."""
        hooks = []
        if self._buckets.overlap:
            for i, parameter in enumerate(self._buckets.parameters):
                hook = partial(self._round.arrived, i, sum_so_far[i])
                hooks.append(parameter.register_post_accumulate_grad_hook(hook))
        try:
            yield
        finally:
            for handle in hooks:
                handle.remove()

    def finish(
        self, sum_: Gradients, newest: Gradients, statistics: Tensor | None, word: int
    ) -> tuple[Gradients, Tensor | None, list[int]]:
        """Return (gradients, statistics, words of all members); the gradients lie in the memory of the buckets. `sum_`:
        gradients of all shards of this member except the last one; `newest`: those of the last one. Raises GroupBroken
        and Interrupted."""
        buckets = self._buckets
        rest = self._round.reduce(sum_, newest, statistics, word)
        if rest[2].item() > 0:
            # A member sent a bucket too early. All members see this flag before they apply anything, so they sum again.
            buckets.overlap = buckets.overlap and not self._round.too_early
            rest = BucketRound(buckets).reduce(sum_, newest, statistics, word)
        gradients = [view if n > 0 else None for view, n in zip(buckets.views, rest[1].tolist(), strict=True)]
        words = rest[3].tolist()
        return (
            gradients,
            rest[0] if buckets.statistics else None,
            [int(low) + (int(high) << 16) for low, high in zip(words[::WORD], words[1::WORD], strict=True)],
        )


class BucketRound:
    """One all-reduce of all buckets: the gradients that are in them, and the buckets that were sent."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self._filled = [False] * len(buckets.parameters)
        #: Number of gradients that each bucket still lacks.
        self._unfilled = [buckets.bucket_of.count(number) for number in range(len(buckets.flats))]
        self._started: list[Handle] = []
        #: Whether a bucket was sent before its gradients were complete.
        self.too_early = False

    def arrived(self, i: int, before: Tensor | None, parameter: Tensor) -> None:
        """Put `before` plus the gradient of parameter `i` into its bucket, and send the buckets that are full."""
        buckets = self._buckets
        bucket = buckets.bucket_of[i]
        if bucket < len(self._started):
            # A second gradient in one backward pass, as with reentrant checkpoints: the bucket was sent too early.
            self.too_early = True
            return
        gradient = parameter.grad
        _fill(buckets.views[i], before, gradient)
        self._unfilled[bucket] -= not self._filled[i]
        self._filled[i] = True
        # Do not send the last bucket yet: `reduce` adds to it.
        while len(self._started) < len(buckets.flats) - 1 and not self._unfilled[len(self._started)]:
            self._start()

    def reduce(
        self, sum_: Gradients, newest: Gradients, statistics: Tensor | None, word: int
    ) -> tuple[Tensor, ...]:
        """Send the remaining buckets and wait for the sums. Return (statistics, number of members that have each
        gradient, above 0 if a bucket was sent too early, words of all members)."""
        buckets = self._buckets
        for i, filled in enumerate(self._filled):
            if not filled:
                _fill(buckets.views[i], sum_[i], newest[i])
        buckets.rest.zero_()
        ours, flags, again, words = buckets.rest.split(buckets.rest_sizes)
        if statistics is not None:
            ours.copy_(statistics)
        mark = [float(a is not None or b is not None) for a, b in zip(sum_, newest, strict=True)]
        mark.append(float(self.too_early))
        buckets.rest[len(ours) : len(ours) + len(mark)] = torch.tensor(mark, dtype=flags.dtype, device=flags.device)
        mine = words[WORD * buckets.group.rank :]
        mine[0], mine[1] = float(word & 0xFFFF), float(word >> 16)
        while len(self._started) < len(buckets.flats):
            self._start()
        faults.at("mid-reduce")
        for handle in self._started:
            handle.wait()
        return ours, flags, again, words

    def _start(self) -> None:
        self._started.append(self._buckets.group.all_reduce_start(self._buckets.flats[len(self._started)]))


def _fill(view: Tensor, before: Tensor | None, gradient: Tensor | None) -> None:
    """Set `view` to the sum of both gradients, to 0 if there are none."""
    if gradient is not None:
        gradient = real_parts(gradient.to_dense() if gradient.is_sparse else gradient)
    if before is not None and gradient is not None:
        torch.add(before, gradient, out=view)
    elif before is None and gradient is None:
        view.zero_()
    else:
        view.copy_(gradient if before is None else before)  # type: ignore[arg-type]
