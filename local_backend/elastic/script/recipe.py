"""The options of a training that FabricModel and train() take in addition to those of the contract.

A `Recipe` is checked before anything starts, and travels to the workers within the `Job`. All values that these options
keep between steps are part of the state that members copy (`Carried`). So each option is exact and survives resizes,
deaths and recoveries.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from local_backend.elastic.combine import rule_of

#: Number types in which forward passes compute.
PRECISIONS = ("fp32", "bf16", "fp16")
#: Other spellings of these types.
_SPELLINGS = {
    "32": "fp32", "32-true": "fp32", "float32": "fp32", "16": "fp16", "16-mixed": "fp16", "float16": "fp16",
    "bf16-mixed": "bf16", "bfloat16": "bf16",
}
#: Actions for a step whose gradients are not finite.
ON_NONFINITE = ("stop", "skip", "ignore")
#: How often members compare their states.
CHECKS = ("epoch", "strict")
#: When a scheduler is stepped.
INTERVALS = ("epoch", "step")


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when `monitor` has not improved by more than `min_delta` for `patience` epochs."""

    patience: int
    monitor: str | None = None
    min_delta: float = 0.0
    mode: str | None = None


@dataclass(frozen=True)
class Recipe:
    """Options of a training. docs/fabric-model.md describes each option."""

    #: torch schedulers by name of the optimizer, "" for a single optimizer.
    lr_scheduler: Mapping[str, Any] = field(default_factory=dict)
    #: "step", "epoch", or None for the usual interval of each scheduler.
    lr_scheduler_interval: str | None = None
    #: Value of an epoch that schedulers, early stopping and the best checkpoint use; None for the default.
    monitor: str | None = None
    clip_grad_norm: float | None = None
    clip_grad_value: float | None = None
    precision: str = "fp32"
    #: Batches of a step, as a multiple of the number without this option.
    accumulate: int = 1
    #: Decay of the moving average of the weights, None for none.
    ema: float | None = None
    #: A torch sampler, or a function of the training set that makes one.
    sampler: Any = None
    shuffle: bool = True
    drop_last: bool = False
    #: Samples of an epoch, for a training set that has no length.
    samples_per_epoch: int | None = None
    early_stopping: EarlyStopping | None = None
    #: Keep the checkpoint of the best epoch: True, or the name of the value to monitor.
    save_best: bool | str = False
    on_nonfinite: str = "stop"
    check: str = "epoch"
    #: Path of a checkpoint or of its folder.
    resume_from: str | None = None
    #: Name → object of the script whose attributes are part of the training's state.
    state: Mapping[str, Any] = field(default_factory=dict)
    #: Path of a buffer (or a pattern of fnmatch) → rule that combines the shards' values into one value: one of
    #: `combine.NAMED`, ("sum", modulo), ("concatenate", dim) or a function (before, values of all shards) → value.
    buffers: Mapping[str, Any] = field(default_factory=dict)
    #: Names of values that each worker may change on its own, because they have no influence on the result.
    local_state: tuple[str, ...] = ()

    def with_options(self, where: str, options: Mapping[str, Any]) -> Recipe:
        """Return the recipe with these options changed.

        Raises TypeError for an unknown option, naming a similar one. Raises TypeError or ValueError for a value that an
        option cannot have.
        """
        for name in options:
            if name not in NAMES:
                raise TypeError(f"{where} got an unknown argument {name!r}{_instead(name)}")
        return replace(self, **{name: _CHECKS[name](name, value) for name, value in options.items()})


#: Names of all options.
NAMES = tuple(one.name for one in fields(Recipe))
#: Name of an option in other libraries → its name here.
_ELSEWHERE = {
    "scheduler": "lr_scheduler", "lr_schedulers": "lr_scheduler", "gradient_clip_val": "clip_grad_norm",
    "max_grad_norm": "clip_grad_norm", "max_norm": "clip_grad_norm", "clipnorm": "clip_grad_norm",
    "clipvalue": "clip_grad_value", "grad_clip": "clip_grad_norm", "accumulate_grad_batches": "accumulate",
    "gradient_accumulation_steps": "accumulate", "accumulation_steps": "accumulate", "amp": "precision",
    "mixed_precision": "precision", "use_amp": "precision", "dtype": "precision", "ema_decay": "ema",
    "patience": "early_stopping", "train_sampler": "sampler", "ckpt_path": "resume_from", "checkpoint": "resume_from",
    "resume": "resume_from", "callbacks": "user_callback", "callback": "user_callback",
    "collate_fn": "fn_batch_collate", "num_workers": "num_dataloader_threads", "epochs": "epoch_number",
    "loss": "loss_function",
    "criterion": "loss_function", "logger": "driver_logger", "steps_per_epoch": "samples_per_epoch",
}


def flat(schedulers: Iterable[Any]) -> list[Any]:
    """Return the schedulers and all schedulers inside them, each once."""
    found: dict[int, Any] = {}
    for scheduler in schedulers:
        if id(scheduler) not in found:
            found[id(scheduler)] = scheduler
            found.update((id(one), one) for one in flat(inner(scheduler)))
    return list(found.values())


def inner(scheduler: Any) -> list[Any]:
    """Return the schedulers that a SequentialLR or ChainedScheduler contains."""
    found = getattr(scheduler, "_schedulers", None)
    return [one for one in found if isinstance(one, LRScheduler)] if isinstance(found, (list, tuple)) else []


def _instead(name: str) -> str:
    close = difflib.get_close_matches(name, NAMES, 1, 0.75)
    meant = _ELSEWHERE.get(name) or (close[0] if close else None)
    return f"; use {meant}=" if meant else "; docs/fabric-model.md lists the arguments"


# --- checks of single values: each takes (name, value) and returns the value for the recipe


def _optional(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else check(name, value)


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__") or isinstance(value, str):
        raise TypeError(f"{name} must be a number above 0, not {value!r}")
    number = float(value)
    if not math.isfinite(number) or number <= 0:
        raise ValueError(f"{name} must be a number above 0, not {value!r}")
    return number


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value!r}")
    return int(value.__index__())


def _decay(name: str, value: Any) -> float:
    number = _positive(name, value)
    if number >= 1:
        raise ValueError(f"{name} must be a decay between 0 and 1, for example 0.999, not {value!r}")
    return number


def _one_of(choices: tuple[str, ...]) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
        return value

    return check


def _precision(name: str, value: Any) -> str:
    text = "fp32" if value is None else str(value).removeprefix("torch.").lower()
    return _one_of(PRECISIONS)(name, _SPELLINGS.get(text, text))


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{name} must be a non-empty string, not {value!r}")
    return value


def _schedulers(name: str, value: Any) -> dict[str, Any]:
    """Return the schedulers by name of their optimizer. A single scheduler gets the name ""."""
    given = value if isinstance(value, Mapping) else {} if value is None else {"": value}
    for one in given.values():
        if not isinstance(one, (LRScheduler, ReduceLROnPlateau)):
            what = f"the class {one.__name__}" if isinstance(one, type) else f"a {type(one).__name__}"
            raise TypeError(
                f"{name} must be a torch.optim.lr_scheduler built from the optimizer, not {what}. Let a callback hold "
                "a scheduler of another library, and call its step() in on_step_end or on_epoch_end: "
                "user_callback=[...]"
            )
    return dict(given)


def _early_stopping(name: str, value: Any) -> EarlyStopping:
    if isinstance(value, EarlyStopping):
        return value
    if not isinstance(value, Mapping):
        return EarlyStopping(_count(name, value))
    unknown = set(value) - {one.name for one in fields(EarlyStopping)}
    if unknown or "patience" not in value:
        raise ValueError(
            f"{name} must be a number of epochs or a dict with patience, monitor, min_delta and mode, not {value!r}"
        )
    if value.get("mode") not in (None, "min", "max"):
        raise ValueError(f"mode of {name} must be min or max, not {value['mode']!r}")
    delta = value.get("min_delta", 0.0)
    if isinstance(delta, bool) or not isinstance(delta, (int, float)) or not math.isfinite(delta) or delta < 0:
        raise ValueError(f"min_delta of {name} must be a number of at least 0, not {delta!r}")
    patience = _count(f"patience of {name}", value["patience"])
    return EarlyStopping(patience, value.get("monitor"), delta, value.get("mode"))


def _save_best(name: str, value: Any) -> bool | str:
    return value if isinstance(value, bool) else _text(name, value)


def _path(name: str, value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be the path of a checkpoint, not {value!r}")
    return os.fspath(value)


def _named(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(f"{name} must be a dict of names and values, not {value!r}")
    return dict(value)


def _buffers(name: str, value: Any) -> dict[str, Any]:
    given = _named(name, value)
    for path, how in given.items():
        try:
            rule_of(how)
        except ValueError as problem:
            raise ValueError(f"{name}[{path!r}] {problem}") from None
    return given


def _names(name: str, value: Any) -> tuple[str, ...]:
    given = (value,) if isinstance(value, str) else tuple(value)
    return tuple(_text(f"every item of {name}", one) for one in given)


def _paths(name: str, value: Any) -> tuple[str, ...]:
    # Messages write the length of a container as len(model.seen), so accept this form.
    return tuple(one.removeprefix("len(").removesuffix(")") for one in _names(name, value))


def _sampler(name: str, value: Any) -> Any:
    if value is not None and not hasattr(value, "__iter__") and not callable(value):
        raise TypeError(f"{name} must be a sampler or a function of the training set, not a {type(value).__name__}")
    return value


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "lr_scheduler": _schedulers,
    "lr_scheduler_interval": _optional(_one_of(INTERVALS)),
    "monitor": _optional(_text),
    "clip_grad_norm": _optional(_positive),
    "clip_grad_value": _optional(_positive),
    "precision": _precision,
    "accumulate": _count,
    "ema": _optional(_decay),
    "sampler": _sampler,
    "shuffle": _flag,
    "drop_last": _flag,
    "samples_per_epoch": _optional(_count),
    "early_stopping": _optional(_early_stopping),
    "save_best": _save_best,
    "on_nonfinite": _one_of(ON_NONFINITE),
    "check": _one_of(CHECKS),
    "resume_from": _optional(_path),
    "state": _named,
    "buffers": _buffers,
    "local_state": _paths,
}
