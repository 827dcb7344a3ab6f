"""Calls the user's logger objects and callbacks, of every generation of the API.

Older loggers take `(loss, acc, completed_batch, worker)`, newer ones `(metrics, iteration, epoch, workers)`; which one
a hook is follows from the names of its parameters. Hooks that an object does not have are skipped.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: All hooks, of loggers and of callbacks.
NAMES = (
    "on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "log_train_metrics", "log_test_metrics",
)


@dataclass(frozen=True)
class Values:
    """One report, in the terms of both generations."""

    #: Older: loss, and accuracy as a fraction from 0 to 1.
    loss: float
    accuracy: float
    completed_batch: int
    #: Newer: name → number; iterations, and the epoch (from 0).
    metrics: Mapping[str, float]
    iteration: int
    epoch: int
    workers: int


class LoggerHooks:
    """A user's logger."""

    def __init__(self, logger: Any) -> None:
        self._train = _Hook(logger, "log_train_metrics")
        self._test = _Hook(logger, "log_test_metrics")
        self._logger = logger

    def train_metrics(self, values: Values) -> None:
        self._train(values, 4)

    def test_metrics(self, values: Values) -> None:
        self._test(values, 3)

    def train_begin(self) -> None:
        call(self._logger, "on_train_begin")

    def train_end(self) -> None:
        call(self._logger, "on_train_end")


class _Hook:
    def __init__(self, owner: Any, name: str) -> None:
        self._function: Callable[..., Any] | None = getattr(owner, name, None)
        self._old, self._capacity = _style(self._function)

    def __call__(self, values: Values, newer_arguments: int) -> None:
        if self._function is None:
            return
        if self._old:
            arguments: tuple[Any, ...] = (values.loss, values.accuracy, values.completed_batch, values.workers)
        else:
            newer = (dict(values.metrics), values.iteration, values.epoch, values.workers)
            arguments = newer[:newer_arguments]
        self._function(*arguments[: self._capacity])


def _style(function: Callable[..., Any] | None) -> tuple[bool, int]:
    """(whether the hook is of the older generation, how many positional arguments it takes)."""
    try:
        parameters = list(inspect.signature(function).parameters.values()) if function else []
    except (TypeError, ValueError):
        return False, 4
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    old = bool(positional) and (
        "loss" in positional[0] or (positional[0] != "metrics" and positional[1:2] in (["acc"], ["accuracy"]))
    )
    return old, 4 if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(positional)


def wants_instance(owner: Any) -> bool:
    """Whether `owner` is a class with hooks that take `self`, so that an object of it was meant."""
    if not isinstance(owner, type):
        return False
    hooks = filter(inspect.isfunction, (inspect.getattr_static(owner, name, None) for name in NAMES))
    return any(next(iter(inspect.signature(hook).parameters), "") == "self" for hook in hooks)


def call(owner: Any, name: str, *arguments: Any, **optional: Any) -> None:
    """Call a hook if the object has it; keyword arguments are passed only if it takes them."""
    function = getattr(owner, name, None)
    if function is None:
        return
    parameters = inspect.signature(function).parameters
    every = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    function(*arguments, **{key: value for key, value in optional.items() if every or key in parameters})
