"""Calls of the user's logger objects and callbacks, for the older and the newer API.

Hooks of older loggers take `(loss, acc, completed_batch, worker)`, hooks of newer ones `(metrics, iteration, epoch,
workers)`. The parameter names of a hook tell its API. If they do not, the names of the logger's other hook tell it, and
otherwise the number of parameters. Hooks that an object does not have are skipped.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

#: Names of the two hooks of a step. The documentation of the engine uses the first name.
STEP_HOOKS = {
    "begin": ("on_step_begin", "on_batch_begin", "on_train_batch_begin"),
    "end": ("on_step_end", "on_batch_end", "on_train_batch_end"),
}
#: All hooks of callbacks.
CALLBACK_HOOKS = (
    "on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_validation_end", *STEP_HOOKS["begin"],
    *STEP_HOOKS["end"],
)
#: All hooks, of loggers and of callbacks.
NAMES = (*CALLBACK_HOOKS, "log_train_metrics", "log_test_metrics")


@dataclass(frozen=True)
class Values:
    """One report, with the values of both APIs."""

    #: Older API: loss, and accuracy as a fraction from 0 to 1.
    loss: float
    accuracy: float
    completed_batch: int
    #: Newer API: name → number; iterations; the epoch (from 0).
    metrics: Mapping[str, float]
    iteration: int
    epoch: int
    workers: int


class LoggerHooks:
    """The hooks of a user's logger."""

    def __init__(self, logger: Any) -> None:
        train, test = _Hook(logger, "log_train_metrics", 4), _Hook(logger, "log_test_metrics", 3)
        # Both hooks of a logger have the same API, unless the names of their parameters say otherwise.
        train.older, test.older = _is_older(train, test), _is_older(test, train)
        self._train, self._test = train, test
        self._logger = logger

    def train_metrics(self, values: Values) -> None:
        self._train(values)

    def test_metrics(self, values: Values) -> None:
        self._test(values)

    def train_begin(self) -> None:
        call(self._logger, "on_train_begin")

    def train_end(self) -> None:
        call(self._logger, "on_train_end")


class _Hook:
    #: Whether the hook has the older API.
    older = False

    def __init__(self, owner: Any, name: str, newer_arguments: int) -> None:
        """`newer_arguments`: number of arguments of this hook in the newer API."""
        self._function: Callable[..., Any] | None = getattr(owner, name, None)
        self._newer_arguments = newer_arguments
        parameters = _parameters(self._function)
        self._positional = [p for p in parameters or () if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        takes_any = parameters is None or any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self._capacity = 4 if takes_any else len(self._positional)

    def __call__(self, values: Values) -> None:
        if self._function is None:
            return
        if self.older:
            arguments: tuple[Any, ...] = (values.loss, values.accuracy, values.completed_batch, values.workers)
        else:
            newer = (dict(values.metrics), values.iteration, values.epoch, values.workers)
            arguments = newer[: self._newer_arguments]
        self._function(*arguments[: self._capacity])

    def older_by_name(self) -> bool | None:
        """Return whether the names of the parameters are those of the older API; None when they do not tell."""
        first, second, third, *_ = (*(p.name.lower() for p in self._positional), "", "", "")
        if "loss" in first:
            return True
        if "metric" in first or first in ("m", "logs"):
            return False
        if "acc" in second:
            return True
        return False if "iter" in second or "epoch" in third or third in ("e", "ep") else None

    def older_by_place(self) -> bool:
        """Return whether the hook has a fourth parameter for the older API's number of workers: one with a default, or
        one that this hook lacks in the newer API."""
        fourth = self._positional[3:4]
        return bool(fourth) and (self._newer_arguments < 4 or fourth[0].default is not fourth[0].empty)


def _is_older(hook: _Hook, sibling: _Hook) -> bool:
    for named in (hook.older_by_name(), sibling.older_by_name()):
        if named is not None:
            return named
    return hook.older_by_place() or sibling.older_by_place()


def _parameters(function: Callable[..., Any] | None) -> list[inspect.Parameter] | None:
    """Return the parameters of a function, [] without a function, and None for a function without a readable
    signature."""
    try:
        return list(inspect.signature(function).parameters.values()) if function else []
    except (TypeError, ValueError):
        return None


def wants_instance(owner: Any) -> bool:
    """Return whether `owner` is a class with hooks that take `self`, so that the user meant an object of the class."""
    if not isinstance(owner, type):
        return False
    hooks = filter(inspect.isfunction, (inspect.getattr_static(owner, name, None) for name in NAMES))
    return any(next(iter(inspect.signature(hook).parameters), "") == "self" for hook in hooks)


def call(owner: Any, name: str, *arguments: Any, **optional: Any) -> None:
    """Call a hook if the object has it, with only those keyword arguments that the hook takes."""
    function = getattr(owner, name, None)
    if function is None:
        return
    parameters = inspect.signature(function).parameters
    every = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    function(*arguments, **{key: value for key, value in optional.items() if every or key in parameters})


def takes_logs(callback: Any) -> bool:
    """Return whether `on_epoch_end` of a callback takes the argument `logs`, so that it runs after validation."""
    function = getattr(callback, "on_epoch_end", None)
    return function is not None and "logs" in inspect.signature(function).parameters


def check_callback(callback: Any) -> None:
    """Raise TypeError for a method of a callback whose name begins with on_ and that the engine does not call."""
    for kind in type(callback).__mro__:
        for name, value in vars(kind).items():
            is_method = callable(value) or isinstance(value, (staticmethod, classmethod))
            if name.startswith("on_") and name not in CALLBACK_HOOKS and is_method:
                raise TypeError(
                    f"{type(callback).__name__}.{name} is not a hook: user_callback objects support "
                    f"{', '.join(CALLBACK_HOOKS)}"
                )


def has_step_hooks(callbacks: Iterable[Any]) -> bool:
    """Return whether a callback overrides a hook of a step."""
    return any(_hooks_of(callback, moment) for callback in callbacks for moment in STEP_HOOKS)


def call_step_hooks(
    callbacks: Iterable[Any], moment: str, step: int, logs: Mapping[str, float] | None = None
) -> None:
    """Call the hooks of a step: `on_step_begin(step)` and `on_step_end(step, logs)`, and their other names.

    `moment` is "begin" or "end"; `step` counts from 0 over the whole training. Each hook that takes a second argument
    gets its own copy of `logs`.
    """
    for callback in callbacks:
        for name, takes_logs in _hooks_of(callback, moment):
            hook = getattr(callback, name)
            if takes_logs:
                hook(step, dict(logs or {}))
            else:
                hook(step)


def _hooks_of(callback: Any, moment: str) -> tuple[tuple[str, bool], ...]:
    kind: Any = type(callback)
    return _step_hooks(kind, moment)


@lru_cache(maxsize=256)
def _step_hooks(kind: Any, moment: str) -> tuple[tuple[str, bool], ...]:
    """Return (name, whether it takes logs) for each step hook that the class itself or one of its bases defines."""
    found = []
    for name in STEP_HOOKS[moment]:
        function = getattr(kind, name, None)
        if function is None or getattr(function, "does_nothing", False):
            continue
        parameters = list(inspect.signature(function).parameters.values())
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        bound = 0 if isinstance(inspect.getattr_static(kind, name), (staticmethod, classmethod)) else 1
        takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        found.append((name, takes_any or len(positional) - bound >= 2))
    return tuple(found)
