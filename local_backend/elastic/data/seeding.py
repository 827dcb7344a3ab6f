"""Random numbers while samples are loaded: each sample draws them from generators that are seeded for it alone.

`capture`, `restore` and `kept` handle the states of all generators: those of `random`, numpy and torch, and the known
generators of the user.

Seeding costs more than fetching a tensor from memory, and most data sets draw no random numbers. So the engine checks
whether a data set draws: at every sample of the first batch, then at every batch as a whole. If a later batch draws, it
is loaded again with a seed for each sample. All batches after it are seeded for each sample without this check. A
function may ask for the state of the generators in the first batch, to make its own generator or to restore the state.
Such a function counts as one that draws.

The engine refuses a sample that draws when it is read for the first time, and not when it is read again. Such a data
set remembers its random numbers, and each worker would remember other numbers. The engine looks for such samples in the
first batch, in the batch where a draw is first found, and where reading a sample makes a container of the data set
longer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import getstate, setstate
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random import bit_generator, get_state, set_state
from torch.utils.data import default_collate

from local_backend.elastic.errors import EngineError
from local_backend.elastic.script import early_seeding, generators
from local_backend.elastic.script.generators import Generators, find

#: The states that `capture` returns.
States = tuple[Any, ...]


def capture() -> States:
    """Return the states of all generators."""
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return getstate(), get_state(), torch.default_generator.get_state(), on_gpu, own_states()


def restore(states: States) -> None:
    """Set all generators to these states."""
    python, numpy, on_cpu, on_gpu, own = states
    setstate(python)
    set_state(numpy)
    torch.default_generator.set_state(on_cpu)
    if on_gpu:
        torch.cuda.set_rng_state_all(on_gpu)
    generators.restore(own)


@contextmanager
def kept() -> Iterator[None]:
    """Restore all generators after the `with` block, whatever the block draws."""
    before = capture()
    try:
        yield
    finally:
        restore(before)


_REMEMBERS = (
    "a sample draws different random numbers when it is read again, so the data set caches random numbers. Each "
    "worker would cache different numbers. Draw random numbers in datasets_function, or seed them with the index of "
    "the sample: random.Random(i)"
)


class _Own:
    """The user's own generators that a training uses, and the objects (the data and others) where they were found."""

    data: ClassVar[Mapping[str, Any]] = {}
    generators: ClassVar[Generators] = Generators()


def watch(data: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """From now on, also seed the generators that can be reached from these objects. The order of the names matters.

    Raises EngineError for a generator that cannot be seeded.
    """
    _Own.data = data
    _Own.generators = find({**data, **others})


def own_states() -> list[tuple[Any, Any]]:
    """Return the user's own known generators with their states, for `generators.restore`."""
    return _Own.generators.states()


def look_again() -> bool:
    """Look for generators that the data set or the collate function has made meanwhile. Return whether any are new."""
    return _Own.generators.add(find(_Own.data))


@contextmanager
def own_generators(others: Mapping[str, Any]) -> Iterator[None]:
    """Within the context, seed the generators that can be reached from these objects.

    Afterwards they have their earlier states and are no longer seeded. NumPy generators that are made without a seed
    get one from `random`, so that they are the same in all workers.
    """
    watch({}, others)
    drawing = getattr(bit_generator, "randbits", None)
    states = own_states()
    bit_generator.randbits = random.getrandbits  # type: ignore[attr-defined]
    try:
        yield
    finally:
        bit_generator.randbits = drawing  # type: ignore[attr-defined]
        generators.restore(states)
        watch({}, {})


def seed_everything(seed: int) -> None:
    """Seed torch (all devices in use), random, numpy, and the user's own known generators."""
    _Own.generators.seed(seed)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    early_seeding.seed_unnoted(seed)
    np.random.seed(seed & 0xFFFFFFFF)


class SeededLoading:
    """Fetches and collates batches. Batches are equal in all processes; only the number of fetches may differ."""

    def __init__(
        self, fetch: Callable[[Any], Any], collate: Callable[[list[Any]], Any],
        lengths: Callable[[], Any] = lambda: None,
    ) -> None:
        """`fetch(key)` returns a sample. `collate` makes a batch of samples. `lengths()` returns the lengths of the
        containers that the data set keeps."""
        self._fetch = fetch
        self._collate = collate
        self._lengths = lengths
        #: Whether samples draw random numbers; None before the first batch.
        self._draws: bool | None = None
        #: The next values of the generators after they were seeded with 0.
        self._untouched: tuple[Any, ...] = ()

    def load(self, keys: Sequence[Any], seed_of: Callable[[Any], int]) -> Any:
        """Return the batch of these samples.

        Raises what fetching and collating raise, and EngineError for a data set that remembers random numbers.
        """
        if not keys or self._draws:
            return self._one_by_one(keys, seed_of)
        if self._draws is None:
            return self._watching(keys, seed_of)
        samples = self._unseeded(keys)
        if samples is None:
            self._draws = True
            return self._one_by_one(keys, seed_of)
        if self._collate is not default_collate:
            seed_everything(seed_of(keys[-1]))
        return self._collate(samples)

    def _one_by_one(self, keys: Sequence[Any], seed_of: Callable[[Any], int]) -> Any:
        samples = []
        for key in keys:
            lengths = self._lengths()
            seed_everything(seed_of(key))
            sample = self._fetch(key)
            if self._lengths() != lengths:
                self._compare(key, seed_of(key), _next())
                seed_everything(seed_of(key))
                sample = self._fetch(key)
            samples.append(sample)
        return self._collate(samples)

    def _compare(self, key: Any, seed: int, after: tuple[Any, ...]) -> None:
        """Read a sample again. Raise EngineError if the generators then give other values than `after`, those after
        the first read."""
        seed_everything(seed)
        self._fetch(key)
        if _next() != after:
            raise EngineError(_REMEMBERS)

    def _watching(self, keys: Sequence[Any], seed_of: Callable[[Any], int]) -> Any:
        """Load a batch as `_one_by_one` does, and find out whether fetching a sample or collating draws."""
        draws, samples, batch, afterwards = False, [], None, []
        with _overhearing() as asked:
            for i, key in enumerate(keys):
                untouched = _next_after(seed_of(key))
                seed_everything(seed_of(key))
                samples.append(self._fetch(key))
                if i == len(keys) - 1:
                    batch = self._collate(samples)
                afterwards.append(_next())
                draws = draws or afterwards[-1] != untouched
        if look_again():
            return self._watching(keys, seed_of)
        self._draws, self._untouched = draws or bool(asked), _next_after(0)
        if self._draws:
            # The last sample is left out, because collating after it may draw as well.
            for key, after in zip(keys[:-1], afterwards[:-1], strict=True):
                self._compare(key, seed_of(key), after)
        return batch

    def _unseeded(self, keys: Sequence[Any]) -> list[Any] | None:
        """Return the samples, or None if one of them draws.

        Raises EngineError for a data set that remembers random numbers.
        """
        seed_everything(0)
        fetch = self._fetch
        samples = [fetch(key) for key in keys]
        after = _next()
        if after == self._untouched:
            return samples
        seed_everything(0)
        for key in keys:
            fetch(key)
        if _next() != after:
            raise EngineError(_REMEMBERS)
        return None


#: Functions that return the state of a generator.
_TELLING = (
    (torch, "initial_seed"), (torch.random, "initial_seed"), (torch, "get_rng_state"), (torch.random, "get_rng_state"),
    (random, "getstate"), (np.random, "get_state"),
)


@contextmanager
def _overhearing() -> Iterator[list[str]]:
    """Yield a list that collects the names of the `_TELLING` functions that are called within the context."""
    asked: list[str] = []
    originals = [(module, name, getattr(module, name)) for module, name in _TELLING]

    def noting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def note(*arguments: Any, **named: Any) -> Any:
            asked.append(name)
            return original(*arguments, **named)

        return note

    try:
        for module, name, original in originals:
            setattr(module, name, noting(name, original))
        yield asked
    finally:
        for module, name, original in originals:
            setattr(module, name, original)


def _next_after(seed: int) -> tuple[Any, ...]:
    seed_everything(seed)
    return _next()


def _next() -> tuple[Any, ...]:
    """Return the next values of the generators. They differ if anything was drawn since equal seeding."""
    on_gpu = torch.cuda.get_rng_state().tolist() if torch.cuda.is_initialized() else []
    drawn = random.getrandbits(64), np.random.bytes(8), int(torch.empty((), dtype=torch.int64).random_())
    return *drawn, on_gpu, _Own.generators.draw()
