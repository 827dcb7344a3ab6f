"""The exact reducer: fixed additions in a fixed order give the same bits for every number of workers.

A member folds its shards into aligned blocks of the canonical tree (`plan.Fold`). The flat vector has one chunk per
member. An all-to-all sends each chunk of all blocks to its member, which finishes the tree for that chunk. An
all-gather returns the sums to all members. When the numbers of shards and members are powers of two, the traffic is
that of a ring all-reduce. The all-to-all also carries one word (a whole number) of each member.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from local_backend.elastic import faults
from local_backend.elastic.collective.group import WorkerGroup
from local_backend.elastic.collective.layout import NOTHING, Gradients, Layout, aligned, in_memory_order
from local_backend.elastic.plan import Block, Fold, Range, blocks

#: Elements of the vector that a word takes: 16 bits each.
WORD = 2

#: The sum of a block of the tree: (gradients, statistics).
Sum = tuple[Gradients, Tensor | None]


def can_scale(loss: Tensor) -> bool:
    """Return whether the type of this loss is precise enough to multiply the loss by a weight."""
    return loss.dtype in (torch.float32, torch.float64)


def scaled_backward(loss: Tensor, weight: float) -> None:
    """Run backward on `loss * weight`."""
    loss.backward(torch.full_like(loss, weight))


class ExactReducer:
    """See `reduce.Reducer`."""

    def __init__(self, layout: Layout, group: WorkerGroup | None) -> None:
        """`group`: None when this is the only member."""
        self._layout = layout
        self._exchange = None if group is None else Exchange(layout, group)

    def begin_step(self, ranges: Sequence[Range], active: int, shards: Sequence[int]) -> ExactStep:
        return ExactStep(self._layout, self._exchange, ranges, active)


class ExactStep:
    """See `reduce.ReducerStep`."""

    def __init__(self, layout: Layout, exchange: Exchange | None, ranges: Sequence[Range], active: int) -> None:
        """`exchange`: None when this is the only member. `ranges`, `active`: see `reduce.Reducer.begin_step`."""
        self._layout = layout
        self._exchange = exchange
        self._ranges = ranges
        self._active = active
        self._fold: Fold[Sum] = Fold(active, add)
        #: Whether backward has multiplied the loss of the present shard by its weight.
        self._scaled = False
        #: The sum of the shard before, if backward adds to it; then the gradients belong to both shards.
        self._left: Sum | None = None

    def begin_shard(self, shard: int) -> None:
        self._layout.begin_shard()
        self._scaled = False
        self._left = None

    def backward(self, shard: int, loss: Tensor, weight: float) -> None:
        if not can_scale(loss):
            loss.backward()
            return
        parts = self._fold.parts()
        if shard % 2 and parts and parts[-1][0] == (shard - 1, 1):
            _, (gradients, statistics) = parts.pop()
            self._left = self._layout.hand_back(gradients), statistics
        self._scaled = True
        scaled_backward(loss, weight)

    def end_shard(self, shard: int, weight: float) -> None:
        gradients = self._layout.gradients(1.0 if self._scaled else weight)
        new = gradients, self._layout.take_statistics(shard)
        if self._left is None:
            self._fold.push((shard, 1), new)
        else:
            self._fold.push((shard - 1, 2), add(self._left, new))

    def finish(self, word: int) -> list[int]:
        faults.at("before-reduce")
        if self._exchange is None:
            (gradients, statistics), words = self._fold.root(), [word]
        else:
            held = [blocks(first, last, self._active) for first, last in self._ranges]
            gradients, statistics, words = self._exchange.run(self._fold.parts(), held, self._active, word)
        faults.at("after-reduce")
        self._layout.apply(gradients, statistics, self._active)
        return words

    def undo(self) -> None:
        self._layout.begin_shard()


class Exchange:
    """The exchange that sums the blocks of all members. All steps of a generation use the same buffers."""

    def __init__(self, layout: Layout, group: WorkerGroup) -> None:
        self._layout = layout
        self._group = group
        sizes = [*layout.sizes, layout.statistics + len(layout.sizes)]
        ends = [0, *accumulate(aligned(size) for size in sizes)]
        self._segments = [(start, start + size) for start, size in zip(ends, sizes, strict=False)]
        self._chunk = aligned(-(-ends[-1] // group.size))
        self._whole = self._empty(group.size * self._chunk)
        self._views = layout.views(self._whole, ends[:-2])
        self._rest = self._whole[slice(*self._segments[-1])]
        self._sent: dict[int, tuple[Tensor, list[list[_Piece]]]] = {}
        self._received = self._empty(0)

    def run(
        self, parts: list[tuple[Block, Sum]], held: Sequence[Sequence[Block]], active: int, word: int
    ) -> tuple[Gradients, Tensor | None, list[int]]:
        """Return (gradients, statistics, words of all members). `parts`: the blocks of this member with their sums;
        `held`: the blocks of each member. Raises GroupBroken and Interrupted."""
        chunk, rank = self._chunk, self._group.rank
        sent = self._pack([value for _, value in parts], word)
        own = sent[len(sent) - len(parts) * chunk - WORD :]
        sizes = [(len(h) * chunk + WORD) * (member != rank) for member, h in enumerate(held)]
        if len(self._received) != sum(sizes):
            self._received = self._empty(sum(sizes))
        counts = [len(own) * (member != rank) for member in range(self._group.size)]
        self._group.all_to_all(self._received, sent[: sum(counts)], sizes, counts)
        faults.at("mid-reduce")
        members = list(self._received.split(sizes))
        members[rank] = own
        received = [part.split([chunk] * len(h) + [WORD]) for part, h in zip(members, held, strict=True)]
        pairs = [pair for h, part in zip(held, received, strict=True) for pair in zip(h, part, strict=False)]
        ours = self._whole[rank * chunk :][:chunk]
        ours.copy_(_root(pairs, active))
        self._group.all_gather(self._whole, ours)
        statistics, flags = self._rest.split([self._layout.statistics, len(self._views)])
        gradients = [view if flag > 0 else None for view, flag in zip(self._views, flags.tolist(), strict=True)]
        words = torch.cat([part[-1] for part in received]).tolist()
        return (
            gradients,
            statistics if self._layout.statistics else None,
            [int(low) + (int(high) << 16) for low, high in zip(words[::WORD], words[1::WORD], strict=True)],
        )

    def _pack(self, values: list[Sum], word: int) -> Tensor:
        """Return the values, cut into chunks: first all chunks for member 0 and the word, then all chunks for member 1
        and the word, and so on. The chunks for this member come last."""
        if len(values) not in self._sent:
            self._sent[len(values)] = self._cut(len(values))
        sent, pieces = self._sent[len(values)]
        for (gradients, statistics), places in zip(values, pieces, strict=True):
            segments = [None if gradient is None else in_memory_order(gradient) for gradient in gradients]
            flags = torch.tensor([g is not None for g in gradients], dtype=sent.dtype, device=sent.device)
            segments.append(flags if statistics is None else torch.cat([statistics, flags]))
            sources, targets = [], []
            for segment, part, target in places:
                source = segments[segment]
                if source is None:
                    target.fill_(NOTHING)
                else:
                    sources.append(source if part is None else source[part])
                    targets.append(target)
            torch._foreach_copy_(targets, sources)
        mark = torch.tensor([word & 0xFFFF, word >> 16], dtype=sent.dtype, device=sent.device)
        sent.view(self._group.size, -1)[:, -WORD:] = mark
        return sent

    def _cut(self, values: int) -> tuple[Tensor, list[list[_Piece]]]:
        """Return a buffer for this number of values, and the place of each piece of each value in the buffer."""
        stride = values * self._chunk + WORD
        sent = self._empty(self._group.size * stride)
        order = [member for member in range(self._group.size) if member != self._group.rank] + [self._group.rank]
        pieces: list[list[_Piece]] = []
        for value in range(values):
            pieces.append([])
            for segment, (first, last) in enumerate(self._segments):
                done = first
                while done < last:
                    member, offset = divmod(done, self._chunk)
                    size = min(last - done, self._chunk - offset)
                    part = None if size == last - first else slice(done - first, done - first + size)
                    place = order.index(member) * stride + value * self._chunk + offset
                    pieces[-1].append((segment, part, sent[place : place + size]))
                    done += size
        return sent, pieces

    def _empty(self, length: int) -> Tensor:
        return torch.zeros(length, dtype=self._layout.dtype, device=self._layout.device)


#: (segment of the flat vector, slice of the segment or None for all of it, place of that slice in the buffer).
_Piece = tuple[int, slice | None, Tensor]


def add(left: Sum, right: Sum) -> Sum:
    """Add the right sum to the left one in place, and return it."""
    statistics = left[1]
    if statistics is not None and right[1] is not None:
        statistics.add_(right[1])
    return add_gradients(left[0], right[0]), statistics


def add_gradients(left: Gradients, right: Gradients) -> Gradients:
    """Add the right gradients to the left ones in place, and return the sums."""
    both = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
    if both:
        torch._foreach_add_([a for a, _ in both], [b for _, b in both])
    return [b if a is None else a for a, b in zip(left, right, strict=True)]


def _root(parts: Iterable[tuple[Block, Tensor]], shards: int) -> Tensor:
    fold: Fold[Tensor] = Fold(shards, Tensor.add_)
    for block, vector in parts:
        fold.push(block, vector)
    return fold.root()
