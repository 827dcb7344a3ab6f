"""How a DataLoader is made to load what is wanted at the moment, in loader processes that stay."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
from torch.utils.data import DataLoader, Dataset

#: Batches that each loader process works ahead.
AHEAD = 2

#: (epoch, index of the sample in the data set)
Key = tuple[int, int]
#: What a batch is called, for example (epoch, step, shard).
Label = Hashable


class ByValue:
    """Pickles by value, classes and functions of the main script included, whatever starts the loader process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), cloudpickle.dumps(self.__dict__))


def _rebuild(kind: type[ByValue], state: bytes) -> ByValue:
    made = kind.__new__(kind)
    made.__dict__.update(cloudpickle.loads(state))
    return made


class _LetGo(ByValue):
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


def _as_it_is(value: Any) -> Any:
    return value


@dataclass
class Request:
    """A batch that loader processes have been asked for."""

    number: int
    label: Label
    #: What the request takes along.
    changes: bytes
    wanted: bool = True


class Feed:
    """What a DataLoader asks for the next batch to load: answers from the plan of the moment."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._plan: Iterator[tuple[Label, list[Key]]] = iter(())
        self._rest: Iterator[tuple[Label, list[Key]]] = iter(())
        self._dry = False
        #: What each request takes along, see `LoaderChanges`.
        self.changes = b""
        #: Given to loader processes and not yet back.
        self.given: deque[Request] = deque()
        #: Batches of the plan not yet taken, in its order, as far as it was looked at.
        self.due: deque[tuple[Label, list[Key]]] = deque()

    def replace(self, wanted: Iterator[tuple[Label, list[Key]]], loaded: Iterable[Label], ahead: int) -> None:
        """Follow `wanted` from now on. What of its first `ahead` is loaded or given already is not given again."""
        first = list(itertools.islice(wanted, ahead))
        self.due = deque(first)
        missing = {label for label, _ in first} - set(loaded)
        for request in self.given:
            request.wanted = request.label in missing and request.changes == self.changes
            if request.wanted:
                missing.discard(request.label)
        self._rest = self._noting(wanted)
        self._plan = itertools.chain([item for item in first if item[0] in missing], self._rest)
        self._dry = self._dry and bool(self.given)

    def again(self) -> None:
        """Give all due batches once more, also batches that were given already."""
        for request in self.given:
            request.wanted = False
        self._plan = itertools.chain(list(self.due), self._rest)
        self._dry = self._dry and bool(self.given)

    def _noting(self, wanted: Iterator[tuple[Label, list[Key]]]) -> Iterator[tuple[Label, list[Key]]]:
        for item in wanted:
            self.due.append(item)
            yield item

    def __iter__(self) -> Feed:
        self._dry = False
        return self

    def __next__(self) -> tuple[int, list[Key], bytes]:
        # Once dry, dry until the DataLoader begins anew: only then it asks for as many batches as it may have.
        item = None if self._dry else next(self._plan, None)
        if item is None:
            self._dry = True
            raise StopIteration
        number = next(self._numbers)
        self.given.append(Request(number, item[0], self.changes))
        return number, list(item[1]), self.changes


def data_loader(
    source: Dataset[Any], feed: Feed, threads: int, private: Sequence[int], pin_memory: bool
) -> DataLoader[Any]:
    """Loads what `feed` says, one request at a time, in `threads` processes that close the descriptors `private`."""
    fork = "fork" in multiprocessing.get_all_start_methods()
    return DataLoader(
        source,
        batch_size=None,
        sampler=feed,
        num_workers=threads,
        prefetch_factor=AHEAD,
        collate_fn=_as_it_is,
        pin_memory=pin_memory,
        persistent_workers=True,
        worker_init_fn=_LetGo(private if fork else ()),
        multiprocessing_context="fork" if fork else None,
        generator=torch.Generator(),
    )


class Attention:
    """Lets the end of a loader process interrupt this process only while it waits for one.

    A DataLoader installs a handler of SIGCHLD that raises wherever the main thread happens to be, in the middle of a
    step of the optimizer for example.
    """

    def __init__(self) -> None:
        self._waiting = False

    def hold_back_torch(self) -> None:
        """Put ourselves before that handler, if it is the present one."""
        if threading.current_thread() is not threading.main_thread():
            return
        raising = signal.getsignal(signal.SIGCHLD)
        if not callable(raising) or not getattr(raising, "__module__", "").startswith("torch.utils.data"):
            return

        def handle(number: int, frame: Any) -> None:
            try:
                raising(number, frame)
            except RuntimeError:
                if self._waiting:
                    raise

        signal.signal(signal.SIGCHLD, handle)

    @contextmanager
    def paid(self, check: Callable[[], None]) -> Iterator[None]:
        """Calls `check` at the beginning, and when something has been raised within."""
        self._waiting = True
        try:
            check()
            yield
        except RuntimeError:
            check()
            raise
        finally:
            self._waiting = False


attention = Attention()
