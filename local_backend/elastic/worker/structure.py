"""What callbacks must not do, because workers that join later or continue from a snapshot would not have it.

They must not change the structure of the model and the loss (modules, parameters and hooks), and must not hold
generators of Python: nothing can copy the position of a generator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import GeneratorType

from torch import nn

from local_backend.elastic.errors import EngineError
from local_backend.elastic.script.job import TrainingJob

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


@dataclass(frozen=True)
class _Shape:
    """The kind of a module, its parameters by name, and the ids of its hooks."""

    kind: type[nn.Module]
    parameters: dict[str, int]
    hooks: tuple[int, ...]


@contextmanager
def unchanged(job: TrainingJob) -> Iterator[None]:
    """Raise EngineError if the `with` block changes the structure, or if a callback then holds a generator. The message
    names the module or the attribute."""
    before = _structure(job)
    yield
    _check_callbacks(job)
    change = _change(before, _structure(job))
    if change:
        raise EngineError(
            f"a callback has {change} during training, but workers that join later would not have this change. Change "
            "the model before train(), and let the callback switch parts of it by an attribute that forward reads"
        )


def _check_callbacks(job: TrainingJob) -> None:
    """Raise EngineError if an attribute of a callback is a generator that `local_state=` does not name."""
    for callback in job.callbacks:
        kind = type(callback).__name__
        for name, value in getattr(callback, "__dict__", {}).items():
            if isinstance(value, GeneratorType) and not {name, f"{kind}.{name}"} & {*job.recipe.local_state}:
                raise EngineError(
                    f"{kind}.{name} is a generator, but workers that join later cannot get its position. Compute the "
                    "value from the epoch, or keep the values in a list and a number for the position. If the "
                    f"generator has no influence on the result, name it in local_state=[{name!r}]"
                )


def _structure(job: TrainingJob) -> dict[str, _Shape]:
    return {
        f"{'model' if module is job.model else 'loss'}.{path}".rstrip("."): _Shape(
            type(part), {name: id(parameter) for name, parameter in part._parameters.items()},
            tuple(key for kind in _HOOKS for key in getattr(part, kind)),
        )
        for module in job.modules for path, part in module.named_modules()
    }


def _change(before: dict[str, _Shape], after: dict[str, _Shape]) -> str | None:
    """Return the words for the first difference, None without a difference."""
    for path in {**before, **after}:
        if path not in before:
            return f"added the module {path}"
        if path not in after:
            return f"removed the module {path}"
        old, new = before[path], after[path]
        if old.kind is not new.kind:
            return f"replaced the module {path}, a {old.kind.__name__}, by a {new.kind.__name__}"
        if old.parameters != new.parameters:
            name = next(iter(dict(old.parameters.items() ^ new.parameters.items())))
            return f"added, removed or replaced the parameter {path}.{name}"
        if old.hooks != new.hooks:
            return f"added or removed a hook of the module {path}"
    return None
