"""Samples that depend on earlier reads, such as other samples after 1,000 reads, or samples taken from a list.

A worker that starts later, or a loader process, has read other samples before. Several workers compare samples. One
worker has no other to compare with, so it compares with itself: it reads a sample, gives the values that reads have
changed their first state, and reads the sample again. Values that reads only count, or cache, leave the sample equal.
"""

from __future__ import annotations

import copy
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np
import torch

from local_backend.elastic.errors import EngineError
from local_backend.elastic.script.generators import inside, is_generator, is_user_class, stored_globals
from local_backend.elastic.state.fingerprints import digest

#: Most objects below a data set that are searched, items of a container that are searched, and items that are compared.
_OBJECTS, _SEARCHED, _COMPARED = 500, 20, 10_000
#: After its first batches, samples are compared once in this many batches.
EVERY = 64
#: If reading a sample in the first state takes more seconds than this, and this many times as long as usual, it is not
#: done again: a data set may then load all its data.
_SLOW, _TIMES = 0.5, 10
_CONTAINERS = (list, dict, set, deque, Counter, OrderedDict, defaultdict)
#: (number of the object, name of the value)
Place = tuple[int, str]


class Reads:
    """The values of a data set that reads change. For one thread."""

    def __init__(self, dataset: Any) -> None:
        """Record the values before the first read."""
        self._parts = list(_parts(dataset))
        self._first = {place: _copied(value) for place, value in self._values().items()}
        self._before: dict[Place, Any] = {}
        self._changed: set[Place] = set()
        self._batches = 0
        self._slow = False

    def begin(self) -> bool:
        """Record the values before a batch. Return whether `check` shall follow the batch."""
        self._batches += 1
        if self._slow or (self._batches % EVERY and self._batches & (self._batches - 1)):
            return False
        self._before = {place: _copied(value) for place, value in self._values().items()}
        return True

    def check(self, fetch: Callable[[], Any]) -> None:
        """Compare a sample with the one that the first state gives. `fetch` reads it with seeded generators.

        Raises EngineError when the samples differ. Raises what `fetch` raises.
        """
        now = self._values()
        # Callbacks change values, too. Only those that change while samples are read count here.
        self._changed |= {place for place, value in self._before.items() if not _equal(value, now.get(place))}
        if not self._changed:
            return
        began = time.perf_counter()
        sample = digest(fetch())
        usual = time.perf_counter() - began
        now = self._values()
        changed = {place: now[place] for place in self._changed & self._first.keys() & now.keys()}
        began = time.perf_counter()
        other = self._in_first_state(changed, fetch)
        self._slow = time.perf_counter() - began > max(_SLOW, _TIMES * usual)
        # A sample that differs at each read says nothing about the values.
        if other not in ("", sample) and other == self._in_first_state(changed, fetch):
            names = sorted({name for _, name in changed})
            raise EngineError(
                f"a sample depends on the samples that were read before it: the data set changes {', '.join(names)} "
                "when a sample is read, and returns another sample with the value from before the training. A worker "
                "that starts later would have other samples. Compute a sample from its index, and let a callback "
                "change the data set (on_epoch_begin)"
            )

    def _in_first_state(self, changed: dict[Place, Any], fetch: Callable[[], Any]) -> str:
        """Return the digest of a sample that is read while the `changed` values are as at first; "" if that fails."""
        self._write({place: _copied(self._first[place]) for place in changed})
        try:
            return digest(fetch())
        except Exception:
            # The first values may not fit other objects, such as a file that is open already.
            return ""
        finally:
            self._write(changed)

    def _values(self) -> dict[Place, Any]:
        return {
            (number, name): values[name]
            for number, (holder, names) in enumerate(self._parts)
            for values in (_namespace(holder),) for name in (values if names is None else names)
            if name in values and _is_compared(values[name])
        }

    def _write(self, values: dict[Place, Any]) -> None:
        for (number, name), value in values.items():
            _namespace(self._parts[number][0])[name] = value


def _parts(dataset: Any) -> Iterator[tuple[Any, tuple[str, ...] | None]]:
    """Yield the user's objects below a data set, with None, and the user's functions with the globals that they set."""
    waiting: deque[Any] = deque([dataset])
    seen: dict[int, Any] = {}
    while waiting and len(seen) < _OBJECTS:
        value = waiting.popleft()
        large = isinstance(value, (dict, list, tuple, set, frozenset)) and len(value) > _SEARCHED
        if id(value) in seen or large or is_generator(value) or isinstance(value, (torch.Tensor, np.ndarray)):
            continue
        seen[id(value)] = value
        if isinstance(value, FunctionType):
            stored = stored_globals(value)
            if stored:
                yield value, stored
        elif is_user_class(type(value)) and isinstance(getattr(value, "__dict__", None), dict):
            # Objects of libraries, such as pools of threads, may not bear earlier values.
            yield value, None
        waiting.extend(inside(value))


def _namespace(holder: Any) -> dict[str, Any]:
    return holder.__globals__ if isinstance(holder, FunctionType) else vars(holder)


def _is_compared(value: Any) -> bool:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return int(np.prod(value.shape)) <= _COMPARED
    if type(value) in _CONTAINERS:
        return len(value) <= _COMPARED
    return isinstance(value, (int, float, str, np.number)) and not isinstance(value, bool)


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else copy.copy(value)


def _equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal. The items of containers are equal if they are one object or plain."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_one(item, other[key]) for key, item in one.items())
    if isinstance(one, (list, deque)):
        return len(one) == len(other) and all(map(_is_one, one, other))
    return bool(one == other)


def _is_one(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, (int, float, str)) and type(one) is type(other) and one == other)
