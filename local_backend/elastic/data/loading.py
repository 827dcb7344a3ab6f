"""Data sets and loaders. A sample is the same no matter which worker or loader process loads it.

When a sample draws random numbers, the generators are seeded from (seed, epoch, sample). So augmentation is the same in
every worker, loader process and order.
"""

from __future__ import annotations

import itertools
import multiprocessing
import signal
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from local_backend.elastic.data.feed import AHEAD, ByValue, Feed, Key, Label, attention, data_loader
from local_backend.elastic.data.loader_changes import LoaderChanges
from local_backend.elastic.data.reads import Reads
from local_backend.elastic.data.seeding import SeededLoading, kept, seed_everything
from local_backend.elastic.data.streams import StreamedSamples, is_stream
from local_backend.elastic.errors import EngineError
from local_backend.elastic.plan import sample_seed
from local_backend.elastic.script.calling import predicted
from local_backend.elastic.script.job import describe_exception, revive

#: Epoch number in the seeds of validation samples.
VALIDATION = -1
#: Seconds that a loader process may take to end before it is killed.
CLOSE_SECONDS = 5.0


class LoaderLost(EngineError):
    """A loader process has ended unexpectedly, for example because a signal killed it."""


def load_datasets(datasets_function: Callable[[], Any]) -> tuple[Any, Any]:
    """Call the script's function once, check the result, and return (training set, test set or None).

    Raises EngineError if a result is neither a map-style nor an iterable data set.
    """
    result = datasets_function()
    alone = not isinstance(result, (tuple, list, dict))
    if not alone and (len(result) != 2 or isinstance(result, dict)):
        raise EngineError(
            "datasets_function must return the data sets (training, test), or (training, None) without validation; it "
            f"returned {_describe(result)}"
        )
    train_set, test_set = (result, None) if alone else result
    _check_dataset("training", train_set)
    if test_set is not None:
        _check_dataset("test", test_set)
    return train_set, test_set


def _describe(value: Any) -> str:
    length = f" of {len(value)} items" if isinstance(value, (tuple, list)) else ""
    return f"a {type(value).__name__}{length}"


def _check_dataset(name: str, dataset: Any) -> None:
    if isinstance(dataset, DataLoader):
        raise EngineError(
            f"the {name} set is a DataLoader; return its data set (loader.dataset): the engine makes the batches "
            "itself (batch_size, num_dataloader_threads)"
        )
    if is_stream(dataset):
        return
    loads = hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")
    if not loads or not hasattr(dataset, "__len__"):
        raise EngineError(
            f"the {name} set must be a torch.utils.data.Dataset with __len__ and __getitem__, or an IterableDataset, "
            f"not {_describe(dataset)}"
        )


def lengths(dataset: Any) -> list[int]:
    """Return the lengths of the containers in the attributes of a data set and of the data sets that it wraps."""
    found: list[int] = []
    for _ in range(4):
        attributes = getattr(dataset, "__dict__", {})
        found += [len(value) for value in attributes.values() if isinstance(value, (dict, list, set))]
        dataset = attributes.get("dataset")
    return found


def _loads_only_lists(dataset: Any) -> bool:
    """Return whether a data set has only torch's `__getitems__`, which loads a list of samples."""
    own = getattr(type(dataset), "__getitem__", Dataset.__getitem__)
    return own is Dataset.__getitem__ and hasattr(dataset, "__getitems__")


class _SampleSource(ByValue, Dataset[Any]):
    """Loads whole batches, with a seed for each sample."""

    def __init__(
        self, dataset: Any, seed: int, collate: Callable[[list[Any]], Any] | None, changes: LoaderChanges | None = None,
    ) -> None:
        self._dataset = dataset
        self._seed = seed
        self._collate = collate or default_collate
        self._changes, self._applied = changes, b""
        self._only_lists = _loads_only_lists(dataset)
        self._loading = SeededLoading(self._fetch, self._collate, lambda: lengths(dataset))
        self._reads = None if isinstance(dataset, StreamedSamples) else Reads(dataset)

    def load(self, keys: Iterable[Key]) -> Any:
        keys = list(keys)
        if self._reads is not None:
            checked = self._reads.begin()
            batch = self._loading.load(keys, self._seed_of)
            if checked and keys:
                with kept():
                    self._reads.check(lambda: self._read_again(keys[-1]))
            return batch
        # A stream has its own random numbers. The seed is for the collate function: equal numbers in every worker.
        samples = self._dataset.take(keys)
        if keys:
            seed_everything(self._seed_of(keys[-1]))
        return self._collate(samples)

    def _fetch(self, key: Key) -> Any:
        # One sample at a time, as with `__getitem__`: its seed does not depend on the samples that are loaded with it.
        return self._dataset.__getitems__([key[1]])[0] if self._only_lists else self._dataset[key[1]]

    def _read_again(self, key: Key) -> Any:
        seed_everything(self._seed_of(key))
        return self._fetch(key)

    def _seed_of(self, key: Key) -> int:
        return sample_seed(self._seed, *key)

    def __getitem__(self, request: tuple[int, list[Key], bytes]) -> tuple[int, bool, Any]:
        """Return (request number, whether loading succeeded, the batch or the result of `describe_exception`)."""
        number, keys, changed = request
        try:
            if self._changes is not None and changed != self._applied:
                self._changes.apply(changed)
                self._applied = changed
            return number, True, self.load(keys)
        except Exception as error:
            return number, False, describe_exception(error)


class Stream:
    """Batches of a data set, loaded ahead in the order of a plan. The plan may change.

    For one thread. The constructor forks the loader processes, so that they do not inherit descriptors that are opened
    later. Loader processes stay until `close`. Each one works up to `AHEAD` batches ahead. Without loader processes,
    `take` loads the batch.
    """

    def __init__(
        self,
        dataset: Any,
        seed: int,
        collate: Callable[[list[Any]], Any] | None = None,
        threads: int = 0,
        private: Sequence[int] = (),
        *,
        pin_memory: bool = False,
        changes: LoaderChanges | None = None,
    ) -> None:
        """`threads`: number of loader processes. `private`: descriptors of this process that loader processes must
        close. `pin_memory`: whether batches go to a GPU. `changes`: values that callbacks change, for loader processes.
        """
        self.dataset = dataset
        self._source = _SampleSource(dataset, seed, collate, changes)
        self._changes = changes
        self._feed = Feed()
        if isinstance(dataset, StreamedSamples):
            # Each loader process would have to read the whole stream.
            threads = 0
        #: Label → (whether loading succeeded, batch or error), for loaded batches that are not taken yet.
        self._loaded: dict[Label, tuple[bool, Any]] = {}
        self._ahead = AHEAD * threads
        self._loader: DataLoader[Any] | None = None
        self._batches: Iterator[Any] = iter(())
        self._processes: list[Any] = []
        if threads:
            others = multiprocessing.active_children()
            self._loader = data_loader(self._source, self._feed, threads, private, pin_memory)
            self._batches = iter(self._loader)
            self._processes = [child for child in multiprocessing.active_children() if child not in others]
            _streams.add(self)
            attention.hold_back_torch()

    def plan(self, wanted: Iterator[tuple[Label, list[Key]]]) -> None:
        """Load only the batches in `wanted` from now on. Loading consumes `wanted` lazily. `wanted` may be endless.

        A batch that is loaded or requested already is used if its label is among the next ones, and dropped otherwise.
        """
        self.renew()
        # Look twice as far ahead as loader processes work, to reuse batches that a change of members leaves in place.
        self._feed.replace(wanted, self._loaded, 2 * self._ahead)
        due = {label for label, _ in self._feed.due}
        self._loaded = {label: outcome for label, outcome in self._loaded.items() if label in due}
        if self._loader is not None and not self._feed.given:
            with suppress(LoaderLost):  # `take` will raise it
                self._advance()

    def drop(self) -> None:
        """Drop all batches that are loaded or requested already, because their labels stand for other samples now. Call
        `plan` next."""
        self._loaded.clear()
        self._feed.drop()

    def renew(self) -> None:
        """Load the batches ahead again if hooks of callbacks have changed values that loading uses."""
        if self._loader is not None and self._changes is not None and self._changes.update():
            self._feed.changes = self._changes.data
            self._loaded.clear()
            self._feed.again()

    def take(self, label: Label) -> Any:
        """Return the collated batch with this label, which must be the next of the plan.

        Raises the exception of the data set or collate function, LoaderLost, and LookupError for any other label.
        """
        if self._loader is None:
            return self._load_now(label)
        due = self._feed.due
        while not due and self._advance():
            pass
        if not due or due[0][0] != label:
            raise LookupError(
                f"batch {label!r} is not the next batch of the plan, which is {due[0][0] if due else None!r}"
            )
        while label not in self._loaded:
            self._advance()
        due.popleft()
        went_well, outcome = self._loaded.pop(label)
        if not went_well:
            raise revive(*outcome)
        return outcome

    def close(self) -> None:
        """End the loader processes."""
        loader, self._loader, self._batches = self._loader, None, iter(())
        if loader is not None and not loader.pin_memory:
            # Not if a thread pins memory: that thread might wait forever for the rest of a message.
            for process in self._processes:
                process.terminate()
        del loader
        for process in self._processes:
            process.join(CLOSE_SECONDS)
            process.kill()
            process.join()
        self._processes = []

    def _load_now(self, label: Label) -> Any:
        try:
            _, keys, _ = next(self._feed)
        except StopIteration:
            raise LookupError(f"batch {label!r} is not in the plan: the plan has no more batches") from None
        planned = self._feed.given.popleft().label
        if self._feed.due:
            self._feed.due.popleft()
        if planned != label:
            raise LookupError(f"batch {label!r} is not the next batch of the plan, which is {planned!r}")
        return self._source.load(keys)

    def _advance(self) -> bool:
        """Receive the oldest requested batch, or request batches if none is requested. Return False if none is left."""
        feed = self._feed
        assert self._loader is not None
        with attention.paid(_check):
            if not feed.given:
                iter(self._loader)
                return bool(feed.given)
            number, went_well, outcome = next(self._batches)
        request = feed.given.popleft()
        assert number == request.number
        if request.wanted:
            self._loaded[request.label] = (went_well, outcome)
        return True


#: Seconds between two looks at dying loader processes.
_PAUSE = 0.01
#: Streams that have loader processes.
_streams: weakref.WeakSet[Stream] = weakref.WeakSet()


def _check(seconds: float) -> None:
    """Raise LoaderLost if a loader process of any stream has ended, or ends within these seconds: torch does not tell
    which stream is affected."""
    end = time.monotonic() + seconds
    while True:
        for process in itertools.chain.from_iterable(stream._processes for stream in _streams):
            if not process.is_alive():
                raise LoaderLost(f"a data loader process (pid {process.pid}) {_end(process.exitcode)}")
        if time.monotonic() >= end:
            return
        # Not through the process's sentinel: the kernel closes it before the process has ended.
        time.sleep(_PAUSE)


def _end(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    hint = {"SIGKILL": "; is there enough memory?", "SIGBUS": "; is /dev/shm full?"}.get(name, "")
    return f"was killed by signal {-code}: {name}{hint}"


class Loader:
    """Loads batches in this process. A user's function may make several passes at the same time."""

    def __init__(self, dataset: Any, seed: int, collate: Callable[[list[Any]], Any] | None = None) -> None:
        self.dataset = dataset
        self._source = _SampleSource(dataset, seed, collate)

    def load(self, keys: Iterable[Sequence[Key]]) -> Iterator[Any]:
        """Yield the collated batch of each list of keys, in order."""
        return map(self._source.load, keys)


def keys_of(epoch: int, indices: Iterable[int]) -> list[Key]:
    """Return the loader's keys of samples of an epoch."""
    return [(epoch, index) for index in indices]


def to_device(value: Any, device: torch.device) -> Any:
    """Return `value` with its tensors, also within tuples, lists and dicts, on the device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: to_device(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(item, device) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(to_device(item, device) for item in value)
    return value


def count_correct(outputs: Any, labels: Any, samples: int | None = None) -> torch.Tensor | None:
    """Return the number of samples whose largest output is at the label's class, as an integer tensor.

    Labels may be class numbers or one value per class. If a sample has several labels (pixels, tokens), each label
    counts as a fraction of the sample, and the sum is rounded. The result is None if outputs and labels do not fit
    classification.

    Args:
        samples: number of samples of the batch, if it may differ from the first dimension, as in packed batches.
    """
    outputs = predicted(outputs)
    if not isinstance(outputs, torch.Tensor) or not isinstance(labels, torch.Tensor) or outputs.dim() < 2:
        return None
    if outputs.shape[1] < 2:
        return None
    classes = outputs.argmax(1)
    if labels.shape == outputs.shape:
        labels = labels.argmax(1)
    if labels.numel() != classes.numel() or labels.is_floating_point():
        return None
    hits = classes.view(-1).eq(labels.view(-1).to(classes.device)).sum()
    per_sample = classes.numel() / max(1, samples or len(classes))
    return hits if per_sample <= 1 else (hits / per_sample).round().to(torch.int64)
