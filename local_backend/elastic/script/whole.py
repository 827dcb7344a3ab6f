"""Metrics over the whole test set: objects with update() and compute(), and functions of all outputs and labels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from local_backend.elastic.errors import EngineError


def is_whole_set(metric: Any) -> bool:
    """Return whether a metric is computed over the whole test set.

    This is so for an object with `update` and `compute`, and for a function with the attribute `whole_set = True`.
    """
    return accumulates(metric) or getattr(metric, "whole_set", False) is True


def accumulates(metric: Any) -> bool:
    """Return whether a metric is an object with `update` and `compute`."""
    methods = callable(getattr(metric, "update", None)) and callable(getattr(metric, "compute", None))
    return methods and not isinstance(metric, type)


class WholeSet:
    """Computes metrics over the whole test set in one pass, from the outputs and labels of each batch in order."""

    def __init__(self, metrics: Mapping[str, Any], device: torch.device) -> None:
        """`metrics`: by name, as `by_name` returns them."""
        self._accumulating = {name: metric for name, metric in metrics.items() if accumulates(metric)}
        self._functions = {name: metric for name, metric in metrics.items() if not accumulates(metric)}
        self._batches: list[tuple[Any, Any]] = []
        for metric in self._accumulating.values():
            if isinstance(metric, nn.Module):
                metric.to(device)
            if callable(getattr(metric, "reset", None)):
                metric.reset()

    def update(self, outputs: Any, labels: Any) -> None:
        """Add the outputs and labels of a batch."""
        for metric in self._accumulating.values():
            metric.update(*((outputs, labels) if _takes_two(metric.update) else ((outputs, labels),)))
        if self._functions:
            self._batches.append((_detached(outputs), _detached(labels)))

    def compute(self, known: Mapping[str, float]) -> dict[str, float]:
        """Return the values by name, after the `known` values of other metrics. Raises EngineError for a value that is
        not one number."""
        found = dict(known)
        for name, metric in self._accumulating.items():
            _add(found, _named(name, metric.compute()))
            if callable(getattr(metric, "reset", None)):
                metric.reset()
        if self._functions:
            outputs, labels = (joined([batch[i] for batch in self._batches]) for i in range(2))
            for name, function in self._functions.items():
                _add(found, _named(name, function(outputs, labels)))
        return found


def _takes_two(update: Callable[..., Any]) -> bool:
    """Return whether `update` takes outputs and labels as two arguments. Metrics of Ignite take them as one pair."""
    try:
        inspect.signature(update).bind(None, None)
    except TypeError:
        return False
    except ValueError:
        return True  # it has no signature
    return True


def name_of(metric: Any) -> str:
    """Return the name of a metric in reports."""
    return getattr(metric, "__name__", None) or type(metric).__name__


def by_name(metrics: Sequence[Any]) -> dict[str, Any]:
    """Return metrics by their names. A name that an earlier metric has gets a number, such as `<lambda>_2`."""
    found: dict[str, Any] = {}
    for metric in metrics:
        _add(found, {name_of(metric): metric})
    return found


def _add(found: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add items. A name that is already there gets a number: two collections of metrics may have equal names."""
    for name, value in more.items():
        names = chain([name], (f"{name}_{number}" for number in count(2)))
        found[next(one for one in names if one not in found)] = value


def joined(parts: Sequence[Any]) -> Any:
    """Join batches into one: tensors along their first dimension, each item of dicts, tuples and lists separately."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat([part.reshape(1) if part.dim() == 0 else part for part in parts])
    if isinstance(first, Mapping):
        return {key: joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(joined(items) for items in zip(*parts, strict=True)))
    if isinstance(first, (tuple, list)):
        return type(first)(joined(items) for items in zip(*parts, strict=True))
    return list(parts)


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, Mapping):
        return {key: _detached(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_detached(item) for item in value))
    return type(value)(_detached(item) for item in value) if isinstance(value, (tuple, list)) else value


def _named(name: str, value: Any) -> dict[str, float]:
    """Return the values of a metric by name. Values of a dict (a collection of metrics) keep the names of the dict."""
    if isinstance(value, Mapping):
        return {str(key): _number(f"{name}[{key!r}]", item) for key, item in value.items()}
    return {name: _number(name, value)}


def _number(name: str, value: Any) -> float:
    size = value.numel() if isinstance(value, Tensor) else np.size(value)
    if not isinstance(value, (Tensor, np.ndarray, np.generic, int, float)) or size != 1:
        raise EngineError(f"the metric {name} must return one number for the test set; it returned {value!r}")
    return float(value.item() if hasattr(value, "item") else value)
