"""Send values that callbacks change to loader processes, which have copies of the data sets and collate function.

A callback may set the epoch of a data set, or the rate of a collate function. Loader processes were forked earlier and
are not forked again. So each request for a batch carries the values that have changed since the fork. Pickle is
acceptable here: a worker sends the values to its own children only.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor, nn

from local_backend.elastic.script.generators import is_generator, walk
from local_backend.elastic.script.hooked import Variable
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.state.replica import TABLE

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
#: (number of the part, name of the value)
Place = tuple[int, Any]


class LoaderChanges:
    """Plain values, tensors and arrays of the parts of a job that data sets and collate function refer to."""

    def __init__(self, job: TrainingJob, roots: Iterable[Any]) -> None:
        """`roots`: the data sets and the collate function."""
        used: dict[int, Any] = {}
        for root in roots:
            for _ in walk(root, used):
                pass
        self._parts = [part for part in job.parts if _is_used(part, used)]
        self._marks = self._look()
        self._changed: set[Place] = set()
        #: Data that each request carries, for `apply`; empty if no value has changed.
        self.data = b""

    def update(self) -> bool:
        """Return whether a value has changed since the last call. If so, `data` contains the new value."""
        if not self._parts:
            return False
        marks = self._look()
        changed = {place for place, mark in marks.items() if self._marks.get(place) != mark}
        if not changed:
            return False
        self._marks = marks
        self._changed |= changed
        values = [_values(part) for part in self._parts]
        told = [(number, name, values[number][name]) for number, name in marks if (number, name) in self._changed]
        self.data = pickle.dumps([(number, name, _detached(value)) for number, name, value in told])
        return True

    def apply(self, data: bytes) -> None:
        """Set the values, in a loader process."""
        for number, name, value in pickle.loads(data):
            part = self._parts[number]
            if isinstance(part, Variable):
                part.write({name: value})
            elif isinstance(part, list):
                part[:] = value
            elif isinstance(part, dict):
                part[name] = value
            else:
                setattr(part, name, value)

    def _look(self) -> dict[Place, Any]:
        return {
            (number, name): _mark(value)
            for number, part in enumerate(self._parts) for name, value in _values(part).items()
        }


def _is_used(part: Any, used: dict[int, Any]) -> bool:
    if isinstance(part, nn.Module):
        return False
    if isinstance(part, Variable):
        # The functions that read a variable are not known.
        return not is_generator(part.content) and (part.of is None or id(part.of) in used)
    return id(part) in used


def _values(part: Any) -> dict[Any, Any]:
    """Return the values of a part that the worker can send to loader processes, by name."""
    if isinstance(part, list):
        return {"": list(part)} if _is_sent(part) else {}
    values = part.read() if isinstance(part, Variable) else part
    values = values if isinstance(values, dict) else getattr(values, "__dict__", {})
    return {name: value for name, value in values.items() if _is_sent(value)}


def _is_sent(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.device.type == "cpu"
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    if type(value) in (dict, list, tuple, set, frozenset):
        parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        return len(parts) <= TABLE and all(map(_is_sent, parts))
    return type(value) in _PLAIN or isinstance(value, np.generic)


def _mark(value: Any) -> Any:
    """Return a mark that changes with the value. The mark of a tensor does not depend on all its elements."""
    if isinstance(value, Tensor):
        return value.data_ptr(), value._version, tuple(value.shape)
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, zlib.crc32(np.ascontiguousarray(value).data)
    if isinstance(value, dict):
        return [(repr(key), _mark(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [_mark(item) for item in value]
    return repr(value)


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    if type(value) in (list, tuple):
        return type(value)(_detached(item) for item in value)
    if type(value) is dict:
        return {key: _detached(item) for key, item in value.items()}
    return value
