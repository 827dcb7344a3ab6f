"""The structure of the model and the loss: modules, parameters and hooks.

Callbacks must not change it. Members that have run the callback would have the change, but workers that join later, and
workers that continue from a snapshot, would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
    """Raise EngineError if the `with` block changes the structure. The message names the module."""
    before = _structure(job)
    yield
    change = _change(before, _structure(job))
    if change:
        raise EngineError(
            f"a callback has {change} during training, but workers that join later would not have this change. Change "
            "the model before train(), and let the callback switch parts of it by an attribute that forward reads"
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
