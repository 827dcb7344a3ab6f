"""A DataLoader that loads the batches of the current plan, in loader processes that stay when the plan changes."""

from __future__ import annotations

import fcntl
import itertools
import multiprocessing
import os
import signal
import stat
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
from torch.utils.data import DataLoader, Dataset

#: Seconds until a killed process has ended: its connections close earlier.
_DYING = 1.0
#: Batches that each loader process loads ahead.
AHEAD = 2

#: (epoch, index of the sample in the data set)
Key = tuple[int, int]
#: Name of a batch, for example (epoch, step, shard).
Label = Hashable


class ByValue:
    """Base class of objects that are pickled by value, with classes and functions of the main script. Every start
    method of loader processes can then load them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), cloudpickle.dumps(self.__dict__))


def _rebuild(kind: type[ByValue], state: bytes) -> ByValue:
    made = kind.__new__(kind)
    made.__dict__.update(cloudpickle.loads(state))
    return made


class _LetGo(ByValue):
    """The first function that a loader process runs: it closes descriptors that a forked child must not keep open, and
    gets positions of its own in the files that data sets have opened."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._descriptors = descriptors

    def __call__(self, _: int) -> None:
        torch.set_num_threads(1)
        for descriptor in self._descriptors:
            try:
                os.close(descriptor)
            except OSError:
                continue
        with suppress(OSError):
            for name in os.listdir("/proc/self/fd"):
                with suppress(OSError):
                    _reopen(int(name))


def _reopen(descriptor: int) -> None:
    """Open a regular file that this process may read once more, under the same descriptor. Forked processes share the
    position in a file, so a read of one process would move the position of another."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode) or flags & os.O_ACCMODE == os.O_WRONLY:
        return
    own = os.open(f"/proc/self/fd/{descriptor}", flags)
    try:
        os.lseek(own, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(own, descriptor, os.get_inheritable(descriptor))
    finally:
        os.close(own)


def _as_it_is(value: Any) -> Any:
    return value


@dataclass
class LoadRequest:
    """A batch that the loader processes were asked to load."""

    number: int
    label: Label
    #: Changes that the request carries, see `LoaderChanges`.
    changes: bytes
    wanted: bool = True
    #: Whether the batch can be wanted again.
    useful: bool = True


class Feed:
    """The sampler of a DataLoader: it names the next batch to load, according to the current plan."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._plan: Iterator[tuple[Label, list[Key]]] = iter(())
        self._rest: Iterator[tuple[Label, list[Key]]] = iter(())
        self._dry = False
        #: Changes that each request carries, see `LoaderChanges`.
        self.changes = b""
        #: Requests that the loader processes have and whose batches are not back yet.
        self.given: deque[LoadRequest] = deque()
        #: Batches of the plan that are not taken yet, in order, as far as the plan was read.
        self.due: deque[tuple[Label, list[Key]]] = deque()

    def drop(self) -> None:
        """Drop the batches that were requested already, because their labels stand for other samples now."""
        for request in self.given:
            request.wanted = request.useful = False

    def replace(self, wanted: Iterator[tuple[Label, list[Key]]], loaded: Iterable[Label], ahead: int) -> None:
        """Follow the plan `wanted` from now on. Of its first `ahead` batches, request only those that are not loaded
        and not requested with the present changes."""
        first = list(itertools.islice(wanted, ahead))
        self.due = deque(first)
        missing = {label for label, _ in first} - set(loaded)
        for request in self.given:
            request.wanted = request.useful and request.label in missing and request.changes == self.changes
            if request.wanted:
                missing.discard(request.label)
        self._rest = self._noting(wanted)
        self._plan = itertools.chain([item for item in first if item[0] in missing], self._rest)
        self._dry = self._dry and bool(self.given)

    def again(self) -> None:
        """Request all due batches again, also batches that were requested already."""
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
        # After the plan has run dry, stop until the DataLoader starts a new iteration. Only then does the DataLoader
        # request as many batches as it may.
        item = None if self._dry else next(self._plan, None)
        if item is None:
            self._dry = True
            raise StopIteration
        number = next(self._numbers)
        self.given.append(LoadRequest(number, item[0], self.changes))
        return number, list(item[1]), self.changes


def data_loader(
    source: Dataset[Any], feed: Feed, threads: int, private: Sequence[int], pin_memory: bool
) -> DataLoader[Any]:
    """Return a DataLoader that loads the batches of `feed`, one request at a time, in `threads` processes. These
    processes close the descriptors `private` if they are forked."""
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
    """A filter for SIGCHLD: the end of a loader process interrupts this process only while it waits for a batch.

    A DataLoader installs a handler of SIGCHLD that raises wherever the main thread is, for example in the middle of an
    optimizer step.
    """

    def __init__(self) -> None:
        self._waiting = False

    def hold_back_torch(self) -> None:
        """Wrap the SIGCHLD handler of torch, if it is the current handler and this is the main thread."""
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
    def paid(self, check: Callable[[float], None]) -> Iterator[None]:
        """Allow the interruption inside the `with` block. Call `check` with 0 at its start, and with `_DYING` when the
        block raises an error of a connection to a loader process."""
        self._waiting = True
        try:
            check(0)
            yield
        except (RuntimeError, OSError, EOFError):
            self._waiting = False
            check(_DYING)
            raise
        finally:
            self._waiting = False


attention = Attention()
