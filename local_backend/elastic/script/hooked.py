"""State that hooks of optimizers and callbacks keep: objects, and variables of closures and modules.

Every member runs these hooks alike, after the same steps, so this state is equal in all members. `Job.parts` contains
this state, because snapshots and workers that join need it. An object that a callback refers to may also be the collate
function, or belong to the data set or the loss. So a worker that joins changes its own object in place.
"""

from __future__ import annotations

import dis
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from local_backend.elastic.script.generators import is_generator, set_state, state_of
from local_backend.elastic.script.user_code import is_user_file, is_user_module

#: Maximum number of items of a dict, list or tensor that is part of the state, and of objects that a search visits.
ITEMS, OBJECTS = 1000, 10_000
#: Packages whose objects scripts change in callbacks: schedulers, data sets, transforms.
_OF_LIBRARIES = ("torch.optim", "torch.utils.data", "torchvision")
#: Attributes that the engine gives to callbacks.
_GIVEN = ("params", "model")


class Variable:
    """Values that are read and written in place: a variable of a function (a cell of its closure, or a global name),
    attributes of an object, or the content of a tensor, array or random generator."""

    def __init__(
        self, read: Callable[[], dict[str, Any]], write: Callable[[dict[str, Any]], None], of: Any = None,
        content: Any = None,
    ) -> None:
        self.read = read
        self.write = write
        #: The object to which the values belong; None for a variable of a function.
        self.of = of if content is None else content
        #: The tensor, array or random generator.
        self.content = content


def find(
    optimizers: list[Optimizer], callbacks: list[Any], known: list[Any], local: Sequence[str] = (),
) -> list[Any]:
    """Return the parts that hooks of these optimizers and callbacks keep, in the same order in every process.

    Attributes of callbacks are always part of the state. So this function searches the objects that they refer to, and
    the variables that methods of callbacks set.

    Args:
        known: objects that are already part of the state, with everything that they refer to.
        local: names of attributes (`name`, `Class.name`) that each worker may change by itself.
    """
    seen = {id(value): value for value in known}
    found: list[Any] = []
    for optimizer in optimizers:
        # Wrappers of optimizers often do not call super().__init__().
        kinds = (getattr(optimizer, name, {}) for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"))
        for hook in (hook for kind in kinds for hook in kind.values()):
            found += _within(hook, seen)
    for kind in dict.fromkeys(kind for callback in callbacks for kind in type(callback).__mro__):
        for _, function in sorted(vars(kind).items()) if is_user_module(kind.__module__) else ():
            if isinstance(function, FunctionType):
                found += _set_by(function, seen)
    for callback in callbacks:
        for name, value in list(getattr(callback, "__dict__", {}).items()):
            if name not in (*_GIVEN, *local) and f"{type(callback).__name__}.{name}" not in local:
                found += _held(value, seen)
    return found


def _held(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Yield the parts that can be reached from an attribute of a callback."""
    waiting = deque([value])
    while waiting and len(seen) < OBJECTS:
        value = waiting.popleft()
        if isinstance(value, (Tensor, np.ndarray)) or is_generator(value):
            if id(value) not in seen:
                seen[id(value)] = value
                yield _content(value)
        elif isinstance(value, tuple):
            waiting.extend(value if len(value) <= ITEMS else ())
        elif not (isinstance(value, (dict, list)) and len(value) > ITEMS):
            for part in _within(value, seen):
                yield part
                waiting.extend(_inside(part))


def _inside(part: Any) -> list[Any]:
    """Return the objects that a part refers to."""
    if isinstance(part, nn.Module):
        return []
    if isinstance(part, Variable):
        return list(part.read().values())
    return list(part) if isinstance(part, list) else list((part if isinstance(part, dict) else vars(part)).values())


def _set_by(function: FunctionType, seen: dict[int, Any]) -> Iterator[Any]:
    """Yield the variables that a method of a callback sets: globals and cells, items of dicts and lists, and attributes
    of objects that it names."""
    stored: dict[str, set[str]] = {}
    for item in dis.get_instructions(function):
        stored.setdefault(item.opname, set()).add(item.argval)
    names = {name: function.__globals__[name] for name in _globals_of(function)}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name in stored.get("STORE_DEREF", ()) and id(cell) not in seen:
            seen[id(cell)] = cell
            yield _cell(cell)
        with suppress(ValueError):
            names.setdefault(name, cell.cell_contents)
    for name, value in names.items():
        if name in stored.get("STORE_GLOBAL", ()):
            yield _global(function.__globals__, name)
        elif id(value) not in seen and isinstance(value, (dict, list)) and len(value) <= ITEMS:
            seen[id(value)] = value
            yield value
        elif id(value) not in seen and isinstance(value, Tensor) and value.numel() <= ITEMS:
            seen[id(value)] = value
            yield _content(value)
        elif id(value) not in seen and (isinstance(value, nn.Module) or _is_scheduler(value)):
            seen[id(value)] = value
            yield value
        elif id(value) not in seen and _is_object(value):
            yield from _set_within(value, stored.get("STORE_ATTR", set()), seen)


def _set_within(value: Any, names: set[str], seen: dict[int, Any]) -> Iterator[Any]:
    """Yield the attributes with these names of an object, and of the objects that it refers to. Other attributes are
    not part of the state, because a data set may hold gigabytes."""
    waiting, met = deque([value]), dict(seen)
    while waiting and len(met) < len(seen) + OBJECTS:
        value = waiting.popleft()
        if isinstance(value, (dict, list, tuple)):
            items = list(value.values()) if isinstance(value, dict) else list(value)
            waiting.extend(items if len(items) <= ITEMS else ())
        elif id(value) not in met and _is_object(value) and not isinstance(value, Optimizer):
            met[id(value)] = value
            if names & vars(value).keys():
                yield _attributes(value, names)
            waiting.extend(vars(value).values())


def _within(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Yield the parts that can be reached from a function or an object that a hook refers to."""
    if id(value) in seen or is_generator(value) or isinstance(value, (Optimizer, ModuleType, type)):
        return
    seen[id(value)] = value
    if isinstance(value, MethodType):
        yield from _within(value.__self__, seen)
        yield from _within(value.__func__, seen)
    elif isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from _within(part, seen)
    elif isinstance(value, FunctionType):
        yield from _of_function(value, seen)
    elif isinstance(value, (dict, list, nn.Module)) or _is_object(value):
        yield value


def _of_function(function: FunctionType, seen: dict[int, Any]) -> Iterator[Any]:
    if not is_user_file(function.__code__.co_filename) and function.__module__ != "__main__":
        return
    for cell in function.__closure__ or ():
        if id(cell) in seen:
            continue
        seen[id(cell)] = cell
        try:
            inside = list(_within(cell.cell_contents, seen))
        except ValueError:
            continue
        yield from inside
        if not inside and not callable(cell.cell_contents) and id(cell.cell_contents) not in seen:
            yield _cell(cell)
    stored = {item.argval for item in dis.get_instructions(function) if item.opname == "STORE_GLOBAL"}
    for name in _globals_of(function):
        if name in stored:
            yield _global(function.__globals__, name)
        else:
            yield from _within(function.__globals__[name], seen)


def _globals_of(function: FunctionType) -> list[str]:
    """Return the global names that a function itself uses. Names of attributes are left out, because workers may not
    have them as globals."""
    used = (item.argval for item in dis.get_instructions(function) if item.opname in ("LOAD_GLOBAL", "STORE_GLOBAL"))
    return [name for name in dict.fromkeys(used) if name in function.__globals__]


def _cell(cell: CellType) -> Variable:
    def write(values: dict[str, Any]) -> None:
        cell.cell_contents = values["value"]

    return Variable(lambda: {"value": cell.cell_contents}, write)


def _global(names: dict[str, Any], name: str) -> Variable:
    def write(values: dict[str, Any]) -> None:
        names.update(values)

    return Variable(lambda: {name: names[name]} if name in names else {}, write)


def _attributes(value: Any, names: set[str]) -> Variable:
    """Return a variable for those of these attributes that the object has."""

    def read() -> dict[str, Any]:
        return {name: vars(value)[name] for name in sorted(names) if name in vars(value)}

    return Variable(read, vars(value).update, of=value)


def _content(value: Any) -> Variable:
    """Return a variable for the content of a tensor or array that is changed in place, or for a generator's state."""
    # In the pickle, the object itself would be only a name.
    if is_generator(value):
        return Variable(lambda: {"value": state_of(value)}, lambda new: set_state(value, new["value"]), content=value)
    if isinstance(value, np.ndarray):
        return Variable(lambda: {"value": value.copy()}, lambda new: np.copyto(value, new["value"]), content=value)
    return Variable(lambda: {"value": value.detach()}, lambda new: _fill(value, new["value"]), content=value)


def _fill(tensor: Tensor, value: Tensor) -> None:
    tensor.detach().copy_(value)


def _is_scheduler(value: Any) -> bool:
    """Return whether a value is a scheduler or a similar object of torch.optim, but not an optimizer."""
    return type(value).__module__.startswith("torch.optim") and not isinstance(value, (Optimizer, type))


def _is_object(value: Any) -> bool:
    """Return whether a value is an object of a class of the user, or another object whose attributes scripts change."""
    kind = type(value).__module__
    known = kind.startswith(_OF_LIBRARIES) and not isinstance(value, (Optimizer, type))
    return isinstance(getattr(value, "__dict__", None), dict) and (is_user_module(kind) or known)
