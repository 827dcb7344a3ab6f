"""Data sets and loaders: which sample is loaded by whom never changes what it looks like.

Before a sample is loaded, the random number generators are seeded from (seed, epoch, sample), so that augmentation is
the same in every worker, loader process and order.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from local_backend.elastic.errors import EngineError
from local_backend.elastic.plan import sample_seed

#: The epoch that validation samples are seeded with.
VALIDATION = -1

#: (epoch, index of the sample in the data set)
Key = tuple[int, int]


def seed_everything(seed: int) -> None:
    """Seed torch (all devices in use), random and numpy."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


def load_datasets(datasets_function: Callable[[], Any]) -> tuple[Any, Any]:
    """Call the script's function once and check what it returns: (training set, test set).

    Raises EngineError with a sentence when these are not two map-style data sets with samples.
    """
    result = datasets_function()
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise EngineError(
            f"datasets_function must return two data sets (training, test); it returned {_describe(result)}"
        )
    for name, dataset in zip(("training", "test"), result, strict=True):
        _check_dataset(name, dataset)
    if len(result[0]) == 0:
        raise EngineError("the training set that datasets_function returned has no samples")
    return result[0], result[1]


def _describe(value: Any) -> str:
    length = f" of {len(value)} items" if isinstance(value, (tuple, list)) else ""
    return f"a {type(value).__name__}{length}"


def _check_dataset(name: str, dataset: Any) -> None:
    if isinstance(dataset, IterableDataset):
        raise EngineError(
            f"the {name} set is an IterableDataset ({type(dataset).__name__}): elastic training must be able to ask "
            "for every sample by its index; give the class __len__ and __getitem__"
        )
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise EngineError(
            f"the {name} set is {_describe(dataset)}, not a torch.utils.data.Dataset with __len__ and __getitem__"
        )


class _ByValue:
    """Pickles by value, classes and functions of the main script included, whatever starts the loader process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), cloudpickle.dumps(self.__dict__))


def _rebuild(kind: type[_ByValue], state: bytes) -> _ByValue:
    made = kind.__new__(kind)
    made.__dict__.update(cloudpickle.loads(state))
    return made


class _Seeded(_ByValue, Dataset[Any]):
    """A data set asked by (epoch, index), seeding before each sample."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitem__(self, key: Key) -> Any:
        epoch, index = key
        seed_everything(sample_seed(self._seed, epoch, index))
        return self._dataset[index]


class _Collate(_ByValue):
    def __init__(self, collate: Callable[[list[Any]], Any] | None) -> None:
        self._collate = collate or default_collate

    def __call__(self, samples: list[Any]) -> Any:
        return self._collate(samples)


class _LetGo(_ByValue):
    """Run first in a loader process: closes what a forked child must not keep open."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._descriptors = descriptors

    def __call__(self, _: int) -> None:
        torch.set_num_threads(1)
        for descriptor in self._descriptors:
            try:
                os.close(descriptor)
            except OSError:
                continue


class _Batches:
    """The batches to load next; a list that can be exchanged between two passes of a DataLoader."""

    def __init__(self) -> None:
        self.keys: Sequence[Sequence[Key]] = ()

    def __iter__(self) -> Iterator[list[Key]]:
        return iter([list(keys) for keys in self.keys])

    def __len__(self) -> int:
        return len(self.keys)


class Loader:
    """Loads batches, in this process or in `threads` loader processes that stay for the whole training."""

    def __init__(
        self,
        dataset: Any,
        seed: int,
        collate: Callable[[list[Any]], Any] | None = None,
        threads: int = 0,
        private: Sequence[int] = (),
    ) -> None:
        """`private`: descriptors of this process that loader processes must close."""
        self.dataset = dataset
        self._seeded = _Seeded(dataset, seed)
        self._collate = _Collate(collate)
        self._batches = _Batches()
        self._loader = self._processes(threads, private) if threads else None

    def load(self, keys: Sequence[Sequence[Key]]) -> Iterator[Any]:
        """Yields the collated batch of each list of keys, in order. End one pass before the next begins."""
        if self._loader is None:
            return (self._collate([self._seeded[key] for key in batch]) for batch in keys)
        self._batches.keys = keys
        return iter(self._loader)

    def _processes(self, threads: int, private: Sequence[int]) -> DataLoader[Any]:
        methods = multiprocessing.get_all_start_methods()
        return DataLoader(
            self._seeded,
            batch_sampler=self._batches,
            num_workers=threads,
            collate_fn=self._collate,
            persistent_workers=True,
            worker_init_fn=_LetGo(private if "fork" in methods else ()),
            multiprocessing_context="fork" if "fork" in methods else None,
        )


def keys_of(epoch: int, indices: Iterable[int]) -> list[Key]:
    """The loader's keys of some samples."""
    return [(epoch, index) for index in indices]


def unpack(batch: Any) -> tuple[Any, Any]:
    """(inputs, labels) of a collated batch. Raises EngineError when it is not a pair."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise EngineError(
            f"a batch must be a pair (inputs, labels); the data set and collate function made {_describe(batch)}"
        )
    return batch[0], batch[1]


def to_device(value: Any, device: torch.device) -> Any:
    """Tensors in `value`, also within tuples, lists and dicts, moved to the device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: to_device(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(item, device) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(to_device(item, device) for item in value)
    return value


def count_correct(outputs: Any, labels: Any) -> torch.Tensor:
    """Samples whose largest output is at the label's class, as a whole-number tensor (`eva` of a step function).

    Labels may be class numbers or one value per class. With several labels per sample (pixels, tokens) each counts
    its part and the sum is rounded. 0 where outputs and labels do not fit classification.
    """
    if isinstance(outputs, (tuple, list)) and outputs:
        outputs = outputs[0]
    none = torch.zeros((), dtype=torch.int64)
    if not isinstance(outputs, torch.Tensor) or not isinstance(labels, torch.Tensor) or outputs.dim() < 2:
        return none
    predicted = outputs.argmax(1)
    if labels.shape == outputs.shape and outputs.shape[1] > 1:
        labels = labels.argmax(1)
    if labels.numel() != predicted.numel() or labels.is_floating_point():
        return none
    hits = predicted.view(-1).eq(labels.view(-1).to(predicted.device)).sum()
    per_sample = predicted.numel() // max(1, len(predicted))
    return hits if per_sample <= 1 else (hits / per_sample).round().to(torch.int64)
