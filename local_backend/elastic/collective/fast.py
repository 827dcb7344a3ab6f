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
from local_backend.elastic.collective.layout import Gradients, Layout, aligned
from local_backend.elastic.plan import Range

#: Bytes of the first bucket, which should fill soon, and of the other buckets.
FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20


class FastReducer:
    """See `reduce.Reducer`."""

    def __init__(self, layout: Layout, group: WorkerGroup | None) -> None:
        """`group`: None when this is the only member."""
        self._layout = layout
        self._buckets = None if group is None else Buckets(layout, group)
        self._scaled = False

    def begin_step(self, ranges: Sequence[Range], active: int, shards: Sequence[int]) -> None:
        self._active = active
        self._last = shards[-1] if shards else None
        nothing: Gradients = [None] * len(self._layout.parameters)
        # Keep the last shard apart: its gradients may be in their buckets already.
        self._sum = self._newest = nothing
        self._statistics: Tensor | None = None
        if self._buckets is not None:
            self._buckets.begin()

    def begin_shard(self, shard: int) -> None:
        self._layout.begin_shard()
        self._scaled = False
        self._overlaps = self._buckets is not None and shard == self._last

    def backward(self, loss: Tensor, weight: float) -> None:
        if not can_scale(loss):
            loss.backward()
            return
        self._scaled = True
        if self._buckets is not None and self._overlaps:
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


class Buckets:
    """The flat vector of a member, cut into buckets; the all-reduce replaces each bucket by its sum. All steps of a
    generation use the same buckets."""

    def __init__(self, layout: Layout, group: WorkerGroup) -> None:
        self._layout = layout
        self._group = group
        self._parameters = layout.parameters
        width = torch.finfo(layout.dtype).bits // 8
        self._bucket_of = [0] * len(self._parameters)
        offsets = [0] * len(self._parameters)
        starts, end = [0], 0
        for i in reversed(range(len(self._parameters))):
            if (end - starts[-1]) * width >= (BUCKET if len(starts) > 1 else FIRST_BUCKET):
                starts.append(end)
            self._bucket_of[i], offsets[i] = len(starts) - 1, end
            end += aligned(layout.sizes[i])
        # Statistics, a flag per gradient, a flag that asks to repeat the sum, words.
        self._rest_sizes = [layout.statistics, len(offsets), 1, WORD * group.size]
        flat = torch.zeros(end + sum(self._rest_sizes), dtype=layout.dtype, device=layout.device)
        self._views = layout.views(flat, offsets)
        self._rest = flat[end:]
        self._buckets = [flat[a:b] for a, b in zip(starts, [*starts[1:], len(flat)], strict=True)]
        self._overlap = True

    def begin(self) -> None:
        """Begin a step with empty buckets."""
        self._filled = [False] * len(self._parameters)
        self._unfilled = [self._bucket_of.count(bucket) for bucket in range(len(self._buckets))]
        self._started: list[Handle] = []
        self._again = False

    @contextmanager
    def filling(self, sum_so_far: Gradients) -> Iterator[None]:
        """Fill buckets while backward of the last shard runs inside the `with` block: add each gradient to
        `sum_so_far`, put the sum into its bucket, and send full buckets."""
        hooks = []
        if self._overlap:
            for i, parameter in enumerate(self._parameters):
                hook = partial(self._arrived, i, sum_so_far[i])
                hooks.append(parameter.register_post_accumulate_grad_hook(hook))
        try:
            yield
        finally:
            for handle in hooks:
                handle.remove()

    def _arrived(self, i: int, before: Tensor | None, parameter: Tensor) -> None:
        bucket = self._bucket_of[i]
        if bucket < len(self._started):
            # A second gradient in one backward pass, as with reentrant checkpoints: the bucket was sent too early.
            self._again = True
            return
        gradient = parameter.grad
        self._fill(i, before, gradient)
        self._unfilled[bucket] -= not self._filled[i]
        self._filled[i] = True
        # Do not send the last bucket yet: `finish` adds to it.
        while len(self._started) < len(self._buckets) - 1 and not self._unfilled[len(self._started)]:
            self._start()

    def _start(self) -> None:
        self._started.append(self._group.all_reduce_start(self._buckets[len(self._started)]))

    def _fill(self, i: int, before: Tensor | None, gradient: Tensor | None) -> None:
        view = self._views[i]
        if gradient is not None and gradient.is_sparse:
            gradient = gradient.to_dense()
        if before is not None and gradient is not None:
            torch.add(before, gradient, out=view)
        elif before is None and gradient is None:
            view.zero_()
        else:
            view.copy_(gradient if before is None else before)  # type: ignore[arg-type]

    def finish(
        self, sum_: Gradients, newest: Gradients, statistics: Tensor | None, word: int
    ) -> tuple[Gradients, Tensor | None, list[int]]:
        """Return (gradients, statistics, words of all members); the gradients lie in the memory of the buckets. `sum_`:
        gradients of all shards of this member except the last one; `newest`: those of the last one. Raises GroupBroken
        and Interrupted."""
        present = [a is not None or b is not None for a, b in zip(sum_, newest, strict=True)]
        rest = self._reduce(sum_, newest, present, statistics, word)
        if rest[2].item() > 0:
            # A member sent a bucket too early. All members see this flag before they apply anything, so they sum again.
            self._overlap = self._overlap and not self._again
            self.begin()
            rest = self._reduce(sum_, newest, present, statistics, word)
        gradients = [view if n > 0 else None for view, n in zip(self._views, rest[1].tolist(), strict=True)]
        words = rest[3].tolist()
        return (
            gradients,
            rest[0] if self._layout.statistics else None,
            [int(low) + (int(high) << 16) for low, high in zip(words[::WORD], words[1::WORD], strict=True)],
        )

    def _reduce(
        self, sum_: Gradients, newest: Gradients, present: list[bool], statistics: Tensor | None, word: int
    ) -> tuple[Tensor, ...]:
        for i, filled in enumerate(self._filled):
            if not filled:
                self._fill(i, sum_[i], newest[i])
        self._rest.zero_()
        ours, flags, again, words = self._rest.split(self._rest_sizes)
        if statistics is not None:
            ours.copy_(statistics)
        mark = [float(there) for there in present] + [float(self._again)]
        self._rest[len(ours) : len(ours) + len(mark)] = torch.tensor(mark, dtype=flags.dtype, device=flags.device)
        mine = words[WORD * self._group.rank :]
        mine[0], mine[1] = float(word & 0xFFFF), float(word >> 16)
        while len(self._started) < len(self._buckets):
            self._start()
        faults.at("mid-reduce")
        for handle in self._started:
            handle.wait()
        return ours, flags, again, words
