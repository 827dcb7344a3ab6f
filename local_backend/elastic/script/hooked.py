"""State that optimizers, their hooks and callbacks keep: objects, and variables of closures and modules.

Every member runs these hooks alike, after the same steps, so this state is equal in all members. `Job.parts` contains
this state, because snapshots and workers that join need it. An object that a callback refers to may also be the collate
function, or belong to the data set or the loss. So a worker that joins changes its own object in place.
"""

from __future__ import annotations

import dis
import functools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from local_backend.elastic.script.attributes import attributes_of, has_attributes, put_attributes
from local_backend.elastic.script.generators import is_generator, set_state, state_of
from local_backend.elastic.script.user_code import is_user_file, is_user_module

#: Maximum number of items of a dict, list or tensor that is part of the state, and of objects that a search visits.
ITEMS, OBJECTS = 1000, 10_000
#: Packages whose objects scripts change in callbacks: schedulers, data sets, transforms.
_OF_LIBRARIES = ("torch.optim", "torch.utils.data", "torchvision")
_CALL = "__call__"
#: Ends of the names of operations on global names, attributes and variables of closures.
_NAMED = ("_GLOBAL", "_ATTR", "_METHOD", "_DEREF")
#: Types whose content may change in place.
_COLLECTIONS = (dict, list, set, deque, Tensor)
#: Id of a class or module → the object itself, and names of attributes that functions set.
Owners = dict[int, tuple[Any, set[str]]]
#: Attributes that the engine gives to callbacks.
_GIVEN = ("params", "model")
#: Attributes that torch gives to optimizers.
_OF_TORCH = frozenset({*vars(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)), "step", "zero_grad"})
_NO_DATA = (FunctionType, MethodType, BuiltinFunctionType, functools.partial, type, ModuleType, logging.Logger)


class Variable:
    """Values that are read and written in place: a variable of a function (a cell of its closure, or a global name),
    attributes of an object, or the content of a tensor, array or random generator."""

    def __init__(
        self, read: Callable[[], dict[str, Any]], write: Callable[[dict[str, Any]], None], of: Any = None,
        content: Any = None, key: Any = None,
    ) -> None:
        """`key`: equal for variables with the same values."""
        self.read = read
        self.write = write
        #: The object to which the values belong; None for a variable of a function.
        self.of = of if content is None else content
        #: The tensor, array or random generator.
        self.content = content
        self.key = id(content) if key is None else key


def key_of(part: Any) -> Any:
    """Return a value that is equal for two parts that stand for the same object or variable."""
    return part.key if isinstance(part, Variable) else id(part)


def find(
    optimizers: list[Optimizer], callbacks: list[Any], known: list[Any], local: Sequence[str] = (),
) -> list[Any]:
    """Return the parts that these optimizers, their hooks and callbacks keep, in the same order in every process.

    Attributes of callbacks are always part of the state. So this function searches the objects that they refer to, and
    the variables that methods of callbacks set.

    Args:
        known: objects that are already part of the state, with everything that they refer to.
        local: names of attributes (`name`, `Class.name`) that each worker may change by itself.
    """
    seen = {id(value): value for value in known}
    found: list[Any] = []
    owners: Owners = {}
    for optimizer in optimizers:
        for value in own_attributes(optimizer).values():
            found += _held(value, seen)
        # Wrappers of optimizers often do not call super().__init__().
        kinds = (getattr(optimizer, name, {}) for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"))
        for hook in (hook for kind in kinds for hook in kind.values()):
            found += _within(hook, seen)
            found += _of_namespaces(_called(*_function_of(hook)), owners, seen)
    for kind in dict.fromkeys(kind for callback in callbacks for kind in type(callback).__mro__):
        for _, method in sorted(vars(kind).items()) if is_user_module(kind.__module__) else ():
            for function in _functions_in(method):
                found += _set_by(function, kind, owners, seen)
    found += [_names_of(owner, names) for owner, names in owners.values() if _data_in(owner, names)]
    for callback in callbacks:
        for name, value in list(getattr(callback, "__dict__", {}).items()):
            if name not in (*_GIVEN, *local) and f"{type(callback).__name__}.{name}" not in local:
                found += _held(value, seen)
    return found


def own_attributes(optimizer: Optimizer) -> dict[str, Any]:
    """Return the attributes that the class or the script has given to an optimizer, without functions."""
    return {
        name: value for name, value in attributes_of(optimizer).items()
        if name not in _OF_TORCH and not isinstance(value, _NO_DATA)
    }


def _held(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Yield the parts that can be reached from an attribute of an optimizer or a callback."""
    waiting = deque([value])
    while waiting and len(seen) < OBJECTS:
        value = waiting.popleft()
        if isinstance(value, (Tensor, np.ndarray, set, deque)) or is_generator(value):
            if id(value) not in seen:
                seen[id(value)] = value
                yield _content(value)
                waiting.extend(value if isinstance(value, deque) and len(value) <= ITEMS else ())
        elif isinstance(value, tuple):
            waiting.extend(value if len(value) <= ITEMS else ())
        else:
            # A large collection is a part as well, because data sets may share it. Only its items are not searched.
            large = isinstance(value, (dict, list)) and len(value) > ITEMS
            for part in _within(value, seen):
                yield part
                waiting.extend(() if large else _inside(part))


def _inside(part: Any) -> list[Any]:
    """Return the objects that a part refers to."""
    if isinstance(part, nn.Module):
        return []
    if isinstance(part, Variable):
        return list(part.read().values())
    if isinstance(part, (dict, list)):
        return list(part.values() if isinstance(part, dict) else part)
    return list(attributes_of(part).values())


def _set_by(method: FunctionType, kind: type, owners: Owners, seen: dict[int, Any]) -> Iterator[Any]:
    """Yield the variables that a method of the class `kind` of a callback sets, also through functions and methods that
    it calls: globals and cells, content of collections, and attributes of objects that it names. Add the classes and
    modules that it names to `owners`."""
    functions = _called(method, kind)
    stored, used = _attributes_in(functions)
    owners.setdefault(id(kind), (kind, set()))[1].update(stored)
    yield from _of_namespaces(functions, owners, seen)
    for function in functions:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name in _set_in(function, "STORE_DEREF") and id(cell) not in seen:
                seen[id(cell)] = cell
                yield _cell(cell)
        for name, value in _named_by(function).items():
            if name in _set_in(function, "STORE_GLOBAL"):
                yield _global(function.__globals__, name)
            elif isinstance(value, _COLLECTIONS):
                yield from _collection(value, seen)
            elif id(value) not in seen and (_is_module(value) or _is_scheduler(value)):
                seen[id(value)] = value
                yield value
            elif id(value) not in seen and _is_object(value):
                yield from _set_within(value, stored, used, seen)


def _of_namespaces(functions: Sequence[FunctionType], owners: Owners, seen: dict[int, Any]) -> Iterator[Any]:
    """Yield the content of collections in classes and modules of the user that functions name. Add these classes and
    modules to `owners`."""
    stored, used = _attributes_in(functions)
    for function in functions:
        for value in _named_by(function).values():
            if _is_user_namespace(value):
                owners.setdefault(id(value), (value, set()))[1].update(stored)
                yield from _simple_attributes(vars(value), used, seen)


def _attributes_in(functions: Sequence[FunctionType]) -> tuple[set[str], set[str]]:
    """Return (names of attributes that functions set, all names that they use)."""
    stored = {name for function in functions for name in _set_in(function, "STORE_ATTR")}
    return stored, {name for function in functions for _, name in _operations(function.__code__)}


def _set_in(function: FunctionType, operation: str) -> set[str]:
    """Return the names in the operations of this kind in a function."""
    return {name for kind, name in _operations(function.__code__) if kind == operation}


@functools.lru_cache(maxsize=4096)
def _operations(code: CodeType) -> tuple[tuple[str, str], ...]:
    """Return (kind, name) of the operations with names in the code of a function and of the functions inside it."""
    found = [(item.opname, item.argval) for item in dis.get_instructions(code) if item.opname.endswith(_NAMED)]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += _operations(constant)
    return tuple(dict.fromkeys(found))


def _function_of(hook: Any) -> tuple[Any, type | None]:
    """Return the function that a hook calls, and the class to which it belongs."""
    if isinstance(hook, functools.partial):
        return _function_of(hook.func)
    if isinstance(hook, MethodType):
        return hook.__func__, type(hook.__self__)
    return (hook, None) if isinstance(hook, FunctionType) else (getattr(type(hook), _CALL, None), type(hook))


def _called(method: Any, kind: type | None) -> list[FunctionType]:
    """Return a method of the class `kind`, and the functions and methods of the user that it calls: methods of `kind`,
    and of classes and objects that it names."""
    found: dict[int, FunctionType] = {}
    waiting: deque[tuple[FunctionType, type | None]] = deque([(method, kind)])
    while waiting and len(found) < OBJECTS:
        function, of = waiting.popleft()
        if id(function) in found or not isinstance(function, FunctionType) or not _is_users(function):
            continue
        found[id(function)] = function
        used = [name for _, name in _operations(function.__code__)]
        owners = [] if of is None else [of]
        for value in _named_by(function).values():
            waiting.extend((one, None) for one in _functions_in(value))
            owners.append(value if isinstance(value, type) else type(value))
        for owner in owners:
            waiting.extend((one, owner) for one in _methods(owner, used))
    return list(found.values())


def _methods(kind: type, names: Sequence[str]) -> Iterator[FunctionType]:
    """Yield the methods with these names of a class of the user."""
    for base in kind.__mro__:
        if is_user_module(base.__module__):
            for name in names:
                yield from _functions_in(vars(base).get(name))


def _functions_in(member: Any) -> Iterator[FunctionType]:
    """Yield the functions of a member of a class (a method, a static or class method, or a property), and the functions
    that decorators have wrapped."""
    if isinstance(member, (staticmethod, classmethod, MethodType)):
        member = member.__func__
    for function in (member.fget, member.fset) if isinstance(member, property) else (member,):
        while isinstance(function, FunctionType):
            yield function
            function = vars(function).get("__wrapped__")  # noqa: PLW2901


def _named_by(function: FunctionType) -> dict[str, Any]:
    """Return the global names and variables of closures that a function uses, with their values."""
    named = {name: function.__globals__[name] for name in _globals_of(function)}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            named.setdefault(name, cell.cell_contents)
    return named


def named_values(function: Any) -> list[dict[str, Any]]:
    """Return the values that a function of the user, and the functions that it calls, find under names, in arguments of
    `functools.partial`, and in the object of a method."""
    bound = getattr(function, "__self__", None)
    given = {"self": bound, "arguments": [getattr(function, name, None) for name in ("args", "keywords")]}
    if isinstance(function, functools.partial):
        return [given, *named_values(function.func)]
    return [given, *map(_named_by, _called(*_function_of(function)))]


def _set_within(value: Any, stored: set[str], used: set[str], seen: dict[int, Any]) -> Iterator[Any]:
    """Yield the attributes of an object, and of the objects that it refers to, whose names are `stored`, and the
    content of collections in attributes whose names are `used`. Other attributes are not part of the state, because a
    data set may hold gigabytes."""
    waiting, met = deque([value]), dict(seen)
    while waiting and len(met) < len(seen) + OBJECTS:
        value = waiting.popleft()
        if isinstance(value, (dict, list, tuple)):
            items = list(value.values()) if isinstance(value, dict) else list(value)
            waiting.extend(items if len(items) <= ITEMS else ())
        elif id(value) not in met and _is_object(value) and not isinstance(value, Optimizer):
            met[id(value)] = value
            own = attributes_of(value)
            if stored & own.keys():
                yield _attributes(value, stored)
            yield from _simple_attributes(own, used - stored, seen)
            waiting.extend(own.values())


def _simple_attributes(values: Mapping[str, Any], names: set[str], seen: dict[int, Any]) -> Iterator[Any]:
    """Yield the content of collections and tensors with these names that refer to no objects of classes."""
    for name in sorted(names & values.keys()):
        if isinstance(values[name], _COLLECTIONS) and _is_simple(values[name]):
            yield from _collection(values[name], seen)


def _collection(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Yield the content of a collection or tensor, unless it is large."""
    if id(value) not in seen and (value.numel() if isinstance(value, Tensor) else len(value)) <= ITEMS:
        seen[id(value)] = value
        yield value if isinstance(value, (dict, list)) else _content(value)


def _is_simple(value: Any) -> bool:
    if isinstance(value, (dict, list, tuple, set, deque)):
        return len(value) <= ITEMS and all(map(_is_simple, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, (int, float, complex, str, bytes, Tensor, np.ndarray, np.generic))


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
    elif isinstance(value, (dict, list)) or _is_module(value) or _is_object(value):
        yield value


def _of_function(function: FunctionType, seen: dict[int, Any]) -> Iterator[Any]:
    if not _is_users(function):
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
    for name in _globals_of(function):
        if name in _set_in(function, "STORE_GLOBAL"):
            yield _global(function.__globals__, name)
        else:
            yield from _within(function.__globals__[name], seen)


def _globals_of(function: FunctionType) -> list[str]:
    """Return the global names that a function uses. Names of attributes are left out, because workers may not have them
    as globals."""
    used = (name for kind, name in _operations(function.__code__) if kind in ("LOAD_GLOBAL", "STORE_GLOBAL"))
    return [name for name in dict.fromkeys(used) if name in function.__globals__]


def _cell(cell: CellType) -> Variable:
    def write(values: dict[str, Any]) -> None:
        cell.cell_contents = values["value"]

    return Variable(lambda: {"value": cell.cell_contents}, write, key=id(cell))


def _global(names: dict[str, Any], name: str) -> Variable:
    def write(values: dict[str, Any]) -> None:
        names.update(values)

    return Variable(lambda: {name: names[name]} if name in names else {}, write, key=(id(names), name))


def _attributes(value: Any, names: set[str]) -> Variable:
    """Return a variable for those of these attributes that the object has."""

    def read() -> dict[str, Any]:
        return {name: item for name, item in sorted(attributes_of(value).items()) if name in names}

    return Variable(read, functools.partial(put_attributes, value), of=value, key=(id(value), *sorted(names)))


def _data_in(owner: Any, names: set[str]) -> list[str]:
    """Return those names of a class or module that are data."""
    values = vars(owner)
    kinds = (type, ModuleType)
    return [
        name for name in sorted(names & values.keys())
        if not isinstance(values[name], kinds) and not hasattr(type(values[name]), "__get__")
    ]


def _names_of(owner: Any, names: set[str]) -> Variable:
    """Return a variable for those names of a class or module that are data."""

    def write(new: dict[str, Any]) -> None:
        for name, value in new.items():
            setattr(owner, name, value)

    return Variable(
        lambda: {name: vars(owner)[name] for name in _data_in(owner, names)}, write, of=owner, key=(id(owner),)
    )


def _content(value: Any) -> Variable:
    """Return a variable for the content of a tensor, array, set or deque that is changed in place, or for a generator's
    state."""
    # In the pickle, the object itself would be only a name.
    if is_generator(value):
        return Variable(lambda: {"value": state_of(value)}, lambda new: set_state(value, new["value"]), content=value)
    if isinstance(value, np.ndarray):
        return Variable(lambda: {"value": value.copy()}, lambda new: np.copyto(value, new["value"]), content=value)
    if isinstance(value, (set, deque)):
        return Variable(lambda: {"value": list(value)}, lambda new: _refill(value, new["value"]), content=value)
    return Variable(lambda: {"value": value.detach()}, lambda new: _fill(value, new["value"]), content=value)


def _refill(collection: set[Any] | deque[Any], items: list[Any]) -> None:
    collection.clear()
    collection.update(items) if isinstance(collection, set) else collection.extend(items)


def _fill(tensor: Tensor, value: Tensor) -> None:
    tensor.detach().copy_(value)


def _is_users(function: FunctionType) -> bool:
    return is_user_file(function.__code__.co_filename) or function.__module__ == "__main__"


def _is_user_namespace(value: Any) -> bool:
    """Return whether a value is a class or module of the user."""
    if isinstance(value, type):
        return is_user_module(value.__module__)
    return isinstance(value, ModuleType) and is_user_module(value.__name__)


def _is_module(value: Any) -> bool:
    """Return whether a value is a module whose parts are objects of Python, not one of TorchScript."""
    return isinstance(value, nn.Module) and not isinstance(value, torch.jit.ScriptModule)


def _is_scheduler(value: Any) -> bool:
    """Return whether a value is a scheduler or a similar object of torch.optim, but not an optimizer."""
    return type(value).__module__.startswith("torch.optim") and not isinstance(value, (Optimizer, type))


def _is_object(value: Any) -> bool:
    """Return whether a value is an object of a class of the user, or another object whose attributes scripts change."""
    kind = type(value).__module__
    known = kind.startswith(_OF_LIBRARIES) and not isinstance(value, Optimizer)
    return not isinstance(value, (type, tuple)) and has_attributes(value) and (is_user_module(kind) or known)
