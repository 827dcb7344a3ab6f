"""Options of a training: those from its script, and those from the attributes of its job.

One of them is the script's own limit on the number of workers in each epoch: `scaleup_function(epoch, max_engine_num)`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch


def limits(function: Callable[[int, int], Any] | None, epochs: int, most: int) -> tuple[int, ...]:
    """Return the limit on workers for each epoch, from 1 to `most`; () for no limits.

    A function that fails, or returns anything but whole numbers above 0, is ignored with a warning on stderr.
    """
    if function is None:
        return ()
    found = []
    for epoch in range(epochs):
        try:
            value = function(epoch, most)
        except Exception as error:
            return _ignored(f"scaleup_function({epoch}, {most}) raised {error!r}")
        if isinstance(value, bool) or not hasattr(value, "__index__") or int(value.__index__()) < 1:
            return _ignored(f"scaleup_function({epoch}, {most}) returned {value!r}")
        found.append(min(most, int(value.__index__())))
    return tuple(found)


def _ignored(why: str) -> tuple[int, ...]:
    print(
        f"WARNING: {why}, so the function is ignored. It gets an epoch, counted from 0, and the maximum number of "
        "workers of the job. It must return the maximum number of workers for that epoch, a whole number of at least "
        "1.",
        file=sys.stderr, flush=True,
    )
    return ()


#: Ways to add up shards: equal to the last bit, as fast as possible, or without waiting for other members.
MODES = ("exact", "fast", "async")


@dataclass(frozen=True)
class TrainingRequest:
    """Options of a training from its script."""

    #: Most workers, and shards of a step unless `effective_batch` is given. None for the submitted number of workers.
    engines: int | None
    #: Samples of a step, instead of `engines`.
    effective_batch: int | None
    validation_freq: int
    checkpoint_freq: int
    seed: int
    mode: str | None = None
    #: Number of earlier trainings of the model with the seed of the script.
    count: int = 0
    #: (epoch, most workers of the job) → most workers in that epoch.
    scaleup: Callable[[int, int], Any] | None = None


@dataclass(frozen=True)
class Options:
    """Options of the engine from the attributes of the job (`--msd-attr`)."""

    mode: str
    hang_seconds: float
    snapshot_seconds: float
    #: Optimizer steps that a step of the plan covers: 1 except in asynchronous mode.
    window: int
    #: In asynchronous mode: learning rate and momentum of the outer step at the end of a window.
    outer_lr: float
    outer_momentum: float
    #: Number of first steps to compute with two numbers of workers and compare, 0 for none; whether training ends then.
    verify: int = 0
    verify_only: bool = False

    @classmethod
    def of(cls, attributes: Mapping[str, str], request: TrainingRequest) -> Options:
        """Return the options of a job. Raises ValueError naming the attribute."""
        default = "fast" if torch.cuda.is_available() else "exact"
        mode = request.mode or attributes.get("mode") or default
        if mode not in MODES:
            raise ValueError(f"the attribute mode must be one of {', '.join(MODES)}, not {mode!r}")
        verify, only = (_steps(attributes, name) for name in ("verify", "verify_only"))
        if (verify or only) and mode == "async":
            raise ValueError(
                "the attribute verify needs mode exact or fast: results of mode async depend on the number of workers"
            )
        window = _number(attributes, "window", 8, "of steps, whole and above 0", lambda v: v >= 1 and v % 1 == 0)
        return cls(
            mode,
            _number(attributes, "hang_seconds", 5.0, "of seconds above 0", lambda value: value > 0),
            _number(attributes, "snapshot_seconds", 10.0, "of seconds above 0", lambda value: value > 0),
            int(window) if mode == "async" else 1,
            _number(attributes, "outer_lr", 1.0, "above 0", lambda value: value > 0),
            _number(attributes, "outer_momentum", 0.0, "from 0 to below 1", lambda value: 0 <= value < 1),
            only or verify,
            only > 0,
        )


def _steps(attributes: Mapping[str, str], name: str) -> int:
    """Return a number of steps, 0 without the attribute."""
    if name not in attributes:
        return 0
    return int(_number(attributes, name, 0, "of steps, whole and above 0", lambda value: value >= 1 and value % 1 == 0))


def _number(
    attributes: Mapping[str, str], name: str, default: float, what: str, good: Callable[[float], bool]
) -> float:
    """Return the attribute as a finite number. Raises ValueError saying `what` it must be."""
    try:
        value = float(attributes.get(name, default))
    except ValueError:
        value = float("nan")
    if not math.isfinite(value) or not good(value):
        raise ValueError(f"the attribute {name} must be a number {what}, not {attributes[name]!r}")
    return value
