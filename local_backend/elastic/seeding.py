"""Random numbers while samples are loaded: each sample finds the generators as they are after seeding for it alone.

Seeding costs more than fetching a tensor from memory does. Most data sets draw nothing, so this is found out by
looking: at every sample of the first batch, then at every batch as a whole. A batch in which something was drawn after
all is loaded again, with a seed for each sample, and so is every later one without being looked at. A function that
asks in the first batch what state the generators are in, to make one of its own or to put it back, counts as one that
draws.

A sample that draws when it is read for the first time, and not when it is read again, is refused: the data set
remembers what it drew, and each worker would remember something else. That is looked for in the first batch, in a batch
in which something was drawn after all, and wherever reading a sample makes a container of the data set longer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random import bit_generator
from torch.utils.data import default_collate

from local_backend.elastic import early_seeding
from local_backend.elastic.errors import EngineError
from local_backend.elastic.generators import Generators, find, restore

_REMEMBERS = (
    "a sample draws other random numbers when it is read again. So the data set remembers what it drew, and each "
    "worker would remember other numbers. Draw random numbers in datasets_function, or seed them with the number of "
    "the sample: random.Random(i)"
)


class _Own:
    """The generators of the user's own that a training uses: those of the data, and all."""

    data: ClassVar[Mapping[str, Any]] = {}
    others: ClassVar[Mapping[str, Any]] = {}
    generators: ClassVar[Generators] = Generators()


def watch(data: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Seed the generators that can be reached from these objects, too, from now on. The order of the names counts.

    Raises EngineError for a generator that cannot be seeded.
    """
    _Own.data, _Own.others = data, others
    _Own.generators = find({**data, **others})


def own_states() -> list[tuple[Any, Any]]:
    """Return the generators of the user's own that are known with their states, for `generators.restore`."""
    return _Own.generators.states()


def look_again() -> bool:
    """Look for generators that the data set or the collate function have made meanwhile; whether there are any."""
    return _Own.generators.add(find(_Own.data))


@contextmanager
def own_generators(others: Mapping[str, Any]) -> Iterator[None]:
    """Within: what can be reached from these objects is seeded. Afterwards it is as it was, and none is seeded.

    Generators of NumPy that are made without a seed get one from `random`, so that they are the same in all workers.
    """
    watch({}, others)
    drawing = getattr(bit_generator, "randbits", None)
    states = own_states()
    bit_generator.randbits = random.getrandbits  # type: ignore[attr-defined]
    try:
        yield
    finally:
        bit_generator.randbits = drawing  # type: ignore[attr-defined]
        restore(states)
        watch({}, {})


def seed_everything(seed: int) -> None:
    """Seed torch (all devices in use), random and numpy, and generators of the user's own that are known."""
    _Own.generators.seed(seed)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    early_seeding.seed_unnoted(seed)
    np.random.seed(seed & 0xFFFFFFFF)


class SeededLoading:
    """Fetches and collates batches. Equal in all processes, but for the number of times that a sample is fetched."""

    def __init__(
        self, fetch: Callable[[Any], Any], collate: Callable[[list[Any]], Any],
        lengths: Callable[[], Any] = lambda: None,
    ) -> None:
        """`fetch(key)` gives a sample; `collate` makes a batch of samples; `lengths()` tells how much the data set
        keeps."""
        self._fetch = fetch
        self._collate = collate
        self._lengths = lengths
        #: Whether samples draw random numbers; None before the first batch.
        self._draws: bool | None = None
        #: What the generators give next after they were seeded with 0.
        self._untouched: tuple[Any, ...] = ()

    def load(self, keys: Sequence[Any], seed_of: Callable[[Any], int]) -> Any:
        """The batch of these samples; raises what fetching and collating raise, and EngineError for a data set that
        remembers what it drew."""
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
        """Read a sample again. Raises EngineError where the generators are not as they were after the first time."""
        seed_everything(seed)
        self._fetch(key)
        if _next() != after:
            raise EngineError(_REMEMBERS)

    def _watching(self, keys: Sequence[Any], seed_of: Callable[[Any], int]) -> Any:
        """As one by one, but it shows whether a sample draws (or collating does)."""
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
            # Collating may draw as well, after the last one.
            for key, after in zip(keys[:-1], afterwards[:-1], strict=True):
                self._compare(key, seed_of(key), after)
        return batch

    def _unseeded(self, keys: Sequence[Any]) -> list[Any] | None:
        """The samples, None when one of them drew."""
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


#: Functions that tell the state of a generator.
_TELLING = (
    (torch, "initial_seed"), (torch.random, "initial_seed"), (torch, "get_rng_state"), (torch.random, "get_rng_state"),
    (random, "getstate"), (np.random, "get_state"),
)


@contextmanager
def _overhearing() -> Iterator[list[str]]:
    """The names of those functions that are called meanwhile."""
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
    """What the generators give next: different when anything was drawn since they were seeded alike."""
    on_gpu = torch.cuda.get_rng_state().tolist() if torch.cuda.is_initialized() else []
    drawn = random.getrandbits(64), np.random.bytes(8), int(torch.empty((), dtype=torch.int64).random_())
    return *drawn, on_gpu, _Own.generators.draw()
