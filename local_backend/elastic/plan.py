"""Division of work: shards, steps, the summation tree, the sampler and the seeds. Pure functions of their arguments.

The hyper-parameter is the number of *shards*: an optimizer step is always cut into the same shards, and a worker
computes a contiguous range of them. Only `split` depends on the number of workers. Values that reach the model do not.

Sums over shards follow one canonical binary tree, `((0+1)+(2+3))+((4+5)+...)`. Missing leaves are absent, not zero. A
worker folds its range into the maximal aligned blocks of this tree. A member that gets all blocks folds them to the
root. So every split makes the same additions in the same order, and gives the same bits.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T")

#: A node of the tree: (first leaf, number of leaf places). The number is a power of two.
Block = tuple[int, int]
#: Shards first (inclusive) to last (exclusive).
Range = tuple[int, int]


def derive_seed(*numbers: int) -> int:
    """Return a 63-bit seed from whole numbers (each within 64 bits), equal on every machine and in every process."""
    packed = struct.pack(f"<{len(numbers)}Q", *(number % 2**64 for number in numbers))
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1


def split(shards: int, workers: int) -> tuple[Range, ...]:
    """Return contiguous ranges of shards, one per worker. Lengths differ by at most one; longer ranges come first."""
    if not 1 <= workers <= shards:
        raise ValueError(f"{shards} shards cannot be split over {workers} workers")
    least, longer = divmod(shards, workers)
    ends = [least * (i + 1) + min(i + 1, longer) for i in range(workers)]
    return tuple(zip([0, *ends[:-1]], ends, strict=True))


def blocks(first: int, last: int, leaves: int) -> tuple[Block, ...]:
    """Return the maximal aligned blocks that cover the leaves `first` to `last` (exclusive) of a tree of size `leaves`.

    A block may reach beyond `leaves`: the leaves there are absent.
    """
    last, root = min(last, leaves), _power_of_two(leaves)
    found = []
    while first < last:
        size = 1
        while first % (2 * size) == 0 and 2 * size <= root and min(first + 2 * size, leaves) <= last:
            size *= 2
        found.append((first, size))
        first += size
    return tuple(found)


def _power_of_two(leaves: int) -> int:
    """Return the leaf places of the tree: the smallest power of two that is not below `leaves`."""
    return 1 << max(0, leaves - 1).bit_length()


class Fold(Generic[T]):
    """Adds values along the canonical tree as they arrive in the order of their leaves, like a binary counter.

    `add(left, right)` may change and return `left`. A fold needs memory for log2(leaves) values.
    """

    def __init__(self, leaves: int, add: Callable[[T, T], T]) -> None:
        self._leaves = leaves
        self._places = _power_of_two(leaves)
        self._add = add
        self._parts: list[tuple[Block, T]] = []

    def push(self, block: Block, value: T) -> None:
        """Add the value of the next block; a single leaf `n` is the block `(n, 1)`."""
        self._parts.append((block, value))
        while self._merge() or self._promote():
            pass

    def parts(self) -> list[tuple[Block, T]]:
        """Return the remaining values: those of `blocks(first, last, leaves)` for the leaves pushed."""
        return self._parts

    def root(self) -> T:
        """Return the sum over all leaves. Raises ValueError when leaves are missing."""
        if [block for block, _ in self._parts] != [(0, self._places)]:
            raise ValueError(f"not all {self._leaves} leaves were added: {[block for block, _ in self._parts]}")
        return self._parts[0][1]

    def _merge(self) -> bool:
        """Replace the last two blocks by their parent if they are siblings. Return whether this was done."""
        if len(self._parts) < 2:
            return False
        ((left, left_size), low), ((right, size), high) = self._parts[-2:]
        if left_size != size or left % (2 * size) or left + size != right:
            return False
        self._parts[-2:] = [((left, 2 * size), self._add(low, high))]
        return True

    def _promote(self) -> bool:
        """Replace the last block by its parent if its right sibling has no leaves. Return whether this was done."""
        (first, size), value = self._parts[-1]
        if size >= self._places or first % (2 * size) or first + size < self._leaves:
            return False
        self._parts[-1] = ((first, 2 * size), value)
        return True


@dataclass(frozen=True)
class StepPlan:
    """The samples of every shard of every step of one training. Steps count from 0, within an epoch too."""

    #: Samples of an epoch, from the training set or its sampler, before `multiple` leaves out the rest.
    samples: int
    #: Samples of a shard: the batch size of the script.
    batch: int
    #: Samples of a full step: `shards * batch`, unless the script gives an effective batch size.
    step_samples: int
    epochs: int
    seed: int
    #: If False, samples keep the order of the training set.
    shuffle: bool = True
    #: An epoch covers a whole multiple of this number of samples; the rest is left out. 1 leaves nothing out.
    multiple: int = 1
    #: Steps that follow each other over the same samples: one for each of several optimizers.
    phases: int = 1

    def phase(self, step: int) -> int:
        """Return the number of the optimizer that makes step `step` of an epoch."""
        return step % self.phases

    @property
    def epoch_samples(self) -> int:
        """Samples that an epoch trains on."""
        return self.samples - self.samples % self.multiple

    @property
    def shards(self) -> int:
        """Shards of a full step. The last shard is smaller if `step_samples` is not a multiple of `batch`."""
        return shard_count(self.step_samples, self.batch)

    @property
    def steps_per_epoch(self) -> int:
        return self.phases * -(-self.epoch_samples // self.step_samples)

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @cached_property
    def batches_per_epoch(self) -> int:
        """Shards with at least one sample, over all steps of an epoch."""
        whole, rest = divmod(self.epoch_samples, self.step_samples)
        return self.phases * (whole * self.shards + shard_count(rest, self.batch))

    def size_of_step(self, step: int) -> int:
        """Return the number of samples of step `step` of an epoch. The last step may have fewer; none counts twice."""
        return min(self.step_samples, self.epoch_samples - step // self.phases * self.step_samples)

    def active_shards(self, step: int) -> int:
        """Return the number of shards with samples in step `step` of an epoch; later shards are absent."""
        return shard_count(self.size_of_step(step), self.batch)

    def size_of_shard(self, step: int, shard: int) -> int:
        """Return the number of samples of one shard of step `step` of an epoch, 0 if the shard is absent."""
        return max(0, min(self.batch, self.size_of_step(step) - shard * self.batch))

    def weight(self, step: int, shard: int) -> float:
        """Return the weight of a shard's mean in the mean over the step, so that every sample counts the same."""
        return self.size_of_shard(step, shard) / self.size_of_step(step)

    def is_checked(self, epoch: int, step: int) -> bool:
        """Return whether workers compute a batch of this step again: the last step of epochs 1, 2, 3, 5, 9, 17, ...
        and of the last epoch. So all checks of a training together cost a few batches."""
        return step == self.steps_per_epoch - 1 and (epoch & (epoch - 1) == 0 or epoch == self.epochs - 1)

    def batch_sizes(self) -> set[int]:
        """Return the numbers of samples that a batch can have."""
        steps = {0, self.steps_per_epoch - 1} if self.steps_per_epoch else set()
        return {self.size_of_shard(step, shard) for step in steps for shard in range(self.active_shards(step))}

    def order(self, epoch: int) -> np.ndarray | range:
        """Return the sample indices of an epoch in their order, read-only. A sampler replaces this order."""
        if not self.shuffle:
            return range(self.samples)
        return _permutation(derive_seed(self.seed, epoch), self.samples)

    def indices(self, epoch: int, step: int, shard: int, order: Sequence[int] | np.ndarray | None = None) -> list[int]:
        """Return the samples of one shard. `order` is `self.order(epoch)` if the caller has it already."""
        order = self.order(epoch) if order is None else order
        start = step // self.phases * self.step_samples + shard * self.batch
        return [int(i) for i in order[start : start + self.size_of_shard(step, shard)]]

    def shard_seed(self, epoch: int, step: int, shard: int) -> int:
        """Return the seed of the random numbers that a shard's forward and backward pass draw."""
        return derive_seed(self.seed, 1, epoch * self.steps_per_epoch + step, shard)


@lru_cache(maxsize=2)
def _permutation(word: int, samples: int) -> np.ndarray:
    """Return a cached permutation: millions of samples take a while. NumPy guarantees RandomState's stream forever."""
    order = np.random.RandomState([word & 0xFFFFFFFF, word >> 32]).permutation(samples)
    order.flags.writeable = False
    return order


def sample_seed(seed: int, epoch: int, sample: int) -> int:
    """Return the seed of the random numbers that loading (and augmenting) one sample draws; epoch -1 is validation."""
    return derive_seed(seed, 2, epoch, sample)


def order_seed(seed: int, epoch: int) -> int:
    """Return the seed of the random numbers that a sampler draws for an epoch."""
    return derive_seed(seed, 5, epoch)


def stream_seed(seed: int, epoch: int) -> int:
    """Return the seed of the random numbers that an iterable data set draws in an epoch; epoch -1 is validation."""
    return derive_seed(seed, 6, epoch)


def shard_count(step_samples: int, batch: int) -> int:
    """Return the number of shards that `step_samples` samples are cut into."""
    return -(-step_samples // batch)


def batches(samples: int, batch: int) -> Iterator[range]:
    """Yield consecutive batches of a validation set. The last batch may be smaller."""
    for start in range(0, samples, batch):
        yield range(start, min(start + batch, samples))
