"""The training of every side of the benchmark: the same model, data, optimizer and division of a step into shards.

Each process writes the time of each applied optimizer step to a file of its own, on all sides at the same point.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

#: Micro-batches of a step. A worker computes SHARDS / workers of them.
SHARDS = 4
#: Number of different samples. A data set of any length repeats them.
POOL = 4096
CLASSES = 10


@dataclass(frozen=True)
class Size:
    """A multilayer perceptron: units per layer from the input on, and samples per shard."""

    layers: tuple[int, ...]
    batch: int

    @property
    def step_samples(self) -> int:
        return SHARDS * self.batch


SIZES = {
    "0.5M": Size((256, 512, 512, 256, CLASSES), 256),
    "10M": Size((512, 2048, 2560, 1400, CLASSES), 32),
    # The parameters of 0.5M with four times the work, so that communication hardly counts.
    "compute": Size((256, 512, 512, 256, CLASSES), 1024),
}


def network(size: Size) -> nn.Module:
    """Return the model, with the same initial weights in every process."""
    torch.manual_seed(0)
    pairs = zip(size.layers, size.layers[1:], strict=False)
    layers = [part for inputs, outputs in pairs for part in (nn.Linear(inputs, outputs), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Repeated(Dataset):
    """`length` samples (features, class) in memory, of which POOL are different."""

    def __init__(self, size: Size, length: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._inputs = torch.randn(POOL, size.layers[0], generator=generator)
        self._labels = torch.randint(0, CLASSES, (POOL,), generator=generator)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._inputs[index % POOL], self._labels[index % POOL]


def datasets(name: str, steps: int) -> tuple[Repeated, Repeated]:
    """Return (training set of `steps` whole steps, test set) for a model of SIZES."""
    size = SIZES[name]
    return Repeated(size, steps * size.step_samples), Repeated(size, size.batch)


def datasets_function(name: str, steps: int) -> partial:
    """Return `datasets` in the form that FabricModel takes."""
    return partial(datasets, name, steps)


class ShardBatches:
    """A batch sampler: the shards of rank `rank`, step after step, in shuffled order."""

    def __init__(self, size: Size, steps: int, rank: int, workers: int, first: int = 0) -> None:
        """Begin with step `first`. `workers` need not divide SHARDS."""
        self._size, self._steps, self._first = size, steps, first
        self.shards = range(rank * SHARDS // workers, (rank + 1) * SHARDS // workers)

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(self._steps * self._size.step_samples, generator=generator)
        for step in range(self._first, self._steps):
            for shard in self.shards:
                begin = (step * SHARDS + shard) * self._size.batch
                yield order[begin:begin + self._size.batch].tolist()

    def __len__(self) -> int:
        return (self._steps - self._first) * len(self.shards)


class _Stamps:
    """Writes lines "step seconds", in seconds of the monotonic clock, which all processes of a machine share."""

    def __init__(self) -> None:
        self.done = 0
        self._file = None

    def step(self) -> None:
        self.done += 1
        if self._file is None:
            # A seat stays the same when its process is replaced. FabricModel replaces no process.
            seat = os.environ.get("BENCH_SEAT") or os.environ.get("DLI_WORKER_NUMBER", "0")
            path = Path(os.environ["BENCH_STAMPS"], f"{seat}-{os.getpid()}.steps")
            self._file = path.open("a", buffering=1)
        self._file.write(f"{self.done} {time.monotonic():.6f}\n")


STAMPS = _Stamps()


class StampingSGD(torch.optim.SGD):
    """SGD with momentum that stamps every step that it has applied."""

    def __init__(self, parameters, marks: tuple[int, ...] = ()) -> None:
        """Wait for the GPU after the steps in `marks`, so that their stamps show finished work, not queued work."""
        super().__init__(parameters, lr=0.001, momentum=0.9)
        self.param_groups[0]["marks"] = marks

    def step(self, closure=None):
        super().step(closure)
        if STAMPS.done + 1 in self.param_groups[0]["marks"] and torch.cuda.is_available():
            torch.cuda.synchronize()
        STAMPS.step()
