"""Digests of a few samples by which a worker describes its data, so that the hub finds workers whose data differs.

The seed chooses the samples, so all workers choose the same ones. Samples are loaded as in training, with random
numbers seeded for each sample. Samples that raise an exception are left out, because training raises it too.
"""

from __future__ import annotations

import time
from typing import Any

from local_backend.elastic.data import seeding
from local_backend.elastic.data.data_sets import DataSets
from local_backend.elastic.data.loading import Loader
from local_backend.elastic.data.streams import KEEPS_STATE, StreamedSamples
from local_backend.elastic.errors import EngineError
from local_backend.elastic.plan import derive_seed
from local_backend.elastic.state.fingerprints import digest

#: The epoch with which samples are seeded.
EPOCH = -2
#: Number of training samples and of test samples before training, and of training samples after each epoch.
TRAINING, TEST, AGAIN = 4, 2, 2
#: If loading a sample takes more seconds than this, samples are not loaded again after each epoch.
SLOW = 0.05


class Probe:
    """A description of the data of this worker. Use it in one thread only."""

    def __init__(self, data: DataSets, seed: int) -> None:
        """Load the first samples."""
        self._data = data
        self._seed = seed
        self._loaders = {id(samples): Loader(samples, seed, list) for samples in (data.train, data.test)}
        if isinstance(data.train, StreamedSamples):
            data.train.note(lambda epoch: self._choice(epoch, AGAIN, len(data.train)))
        began = time.perf_counter()
        #: Name → digest of the data before training.
        self.first = {"length of the training set": str(len(data.train)), "length of the test set": str(len(data.test))}
        for name, samples, count in (("training", data.train, TRAINING), ("test", data.test, TEST)):
            self.first |= self._describe(name, samples, self._indices(samples, count))
        self._compare_again()
        self._slow = time.perf_counter() - began > 2 * SLOW * (len(self.first) - 2)
        self.first |= self._order(0)

    def _compare_again(self) -> None:
        """Load the first samples again. Raises EngineError when a sample differs."""
        for name, samples, count in (("training", self._data.train, TRAINING), ("test", self._data.test, TEST)):
            streamed = isinstance(samples, StreamedSamples)
            for what, found in self._describe(name, samples, self._indices(samples, count)).items():
                if self.first.get(what, found) != found:
                    raise EngineError(f"{what} differs when it is read again with the same random numbers. " + (
                        KEEPS_STATE if streamed else
                        "The data set uses a value that changes between reads, such as a counter, the time or a "
                        "generator of another thread. Samples would depend on the worker that reads them. Compute a "
                        "sample from its index, and draw random numbers from torch, numpy or random"
                    ))

    def of_epoch(self, epoch: int) -> dict[str, str]:
        """Describe the data after an epoch: name → digest."""
        train = self._data.train
        if isinstance(train, StreamedSamples):
            return {f"training sample {place}": text for place, text in train.noted(epoch).items()}
        if self._slow:
            return self._order(epoch)
        return {**self._describe("training", train, self._choice(epoch, AGAIN, len(train))), **self._order(epoch)}

    def _order(self, epoch: int) -> dict[str, str]:
        """Describe the order of the epoch if a sampler gives it. Any other order follows from the seed."""
        orders = self._data.sampled
        return {} if orders is None else {f"order of the samples of epoch {epoch}": digest(orders.of(epoch))}

    def _indices(self, samples: Any, count: int) -> list[int]:
        if isinstance(samples, StreamedSamples):
            return list(range(min(count, len(samples))))
        return self._choice(EPOCH, count, len(samples))

    def _choice(self, epoch: int, count: int, samples: int) -> list[int]:
        """Return indices without repetition. All workers choose the same ones."""
        return sorted({derive_seed(self._seed, 7, epoch, number) % samples for number in range(count) if samples})

    def _describe(self, name: str, samples: Any, indices: list[int]) -> dict[str, str]:
        streamed = isinstance(samples, StreamedSamples)
        epoch = EPOCH if not streamed else 0 if name == "training" else -1
        found = {}
        with seeding.kept():
            for index in indices:
                try:
                    (loaded,) = self._loaders[id(samples)].load([[(epoch, index)]])
                    found[f"{name} sample {index}"] = digest(loaded)
                except EngineError:
                    raise
                except Exception:
                    continue  # training raises the same exception
        return found
