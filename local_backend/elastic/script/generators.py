"""Random generators of the user: found in the objects that a training uses, and seeded like the global generators.

The search follows attributes, containers, closures, defaults, and the globals that functions of the user name. It meets
the same generators in the same order in every process, so that each generator has a number.
"""

from __future__ import annotations

import dis
import functools
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch

from local_backend.elastic.errors import EngineError
from local_backend.elastic.plan import derive_seed
from local_backend.elastic.script import main_module
from local_backend.elastic.script.user_code import is_user_file, is_user_module

#: Maximum number of items of a container, and of objects below a root, that the search follows.
_ITEMS, _OBJECTS = 1000, 300_000
_KINDS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
#: The number of the first generator that was created while samples were loaded.
_LATE = 1 << 20
#: Types that hold no generator.
_LEAVES = frozenset({
    str, bytes, bytearray, int, float, complex, bool, type(None), torch.dtype, torch.device, range,
    BuiltinFunctionType, torch.Size,
})
_ARRAYS = (torch.Tensor, np.ndarray, np.generic)
_CONTAINERS = (dict, list, tuple, set, frozenset)


_STORES = ("STORE_GLOBAL", "DELETE_GLOBAL")
_GLOBAL_OPERATIONS = ("LOAD_GLOBAL", *_STORES)


class Generators:
    """Generators, each with the number of the root below which it was found and its own number below that root."""

    def __init__(self, found: Iterable[tuple[int, int, Any]] = ()) -> None:
        self._found = list(found)

    def __len__(self) -> int:
        return len(self._found)

    def add(self, others: Generators) -> bool:
        """Add the generators that are not known yet, and return whether there are any. Known generators keep their
        numbers, because other processes do not know the new generators."""
        known = {id(generator) for _, _, generator in self._found}
        new = [(root, generator) for root, _, generator in others._found if id(generator) not in known]
        for root, generator in new:
            late = sum(root == other and number >= _LATE for other, number, _ in self._found)
            self._found.append((root, _LATE + late, generator))
        return bool(new)

    def seed(self, seed: int) -> None:
        """Seed each generator from `seed` and its numbers."""
        for root, number, generator in self._found:
            _seed(generator, derive_seed(seed, 8, root, number))

    def draw(self) -> list[int]:
        """Return the next number of each generator. After equal seeds, a different number shows that it was used."""
        return [_draw(generator) for _, _, generator in self._found]

    def states(self) -> list[tuple[Any, Any]]:
        """Return (generator, its state) for each generator, for `restore`."""
        return [(generator, state_of(generator)) for _, _, generator in self._found]


def restore(states: Iterable[tuple[Any, Any]]) -> None:
    """Set generators to the states that `states` returned."""
    for generator, state in states:
        set_state(generator, state)


def find(roots: Mapping[str, Any]) -> Generators:
    """Return the generators that can be reached from these objects; the names of the objects are for messages.

    Raises EngineError for a `random.SystemRandom`, which cannot be seeded.
    """
    seen = {id(own): own for own in _global_generators()}
    found: list[tuple[int, int, Any]] = []
    for root, (name, value) in enumerate(roots.items()):
        for number, generator in enumerate(walk(value, seen)):
            if isinstance(generator, random.SystemRandom):
                raise EngineError(
                    f"{name} uses a random.SystemRandom, which gives different numbers in every worker: use "
                    "random.Random"
                )
            found.append((root, number, generator))
    return Generators(found)


def state_of(generator: Any) -> Any:
    """Return the state of a generator of any kind."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state()


def set_state(generator: Any, state: Any) -> None:
    """Set a generator to a state that `state_of` returned."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def is_generator(value: Any) -> bool:
    """Return whether a value is a generator of one of the kinds that this module seeds."""
    return isinstance(value, _KINDS)


def _seed(generator: Any, seed: int) -> None:
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        bits.state = type(bits)(seed).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed & 0xFFFFFFFF)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    else:
        generator.manual_seed(seed)


def _draw(generator: Any) -> int:
    if isinstance(generator, np.random.Generator):
        return int(generator.bit_generator.random_raw())
    if isinstance(generator, np.random.RandomState):
        return int.from_bytes(generator.bytes(8), "little")
    if isinstance(generator, random.Random):
        return generator.getrandbits(64)
    return int(torch.empty((), dtype=torch.int64, device=generator.device).random_(generator=generator))


def walk(root: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Yield the generators below `root`, depth first, each object once. `seen` keeps the visited objects alive, so that
    no other object gets their ids."""
    waiting, most = [root], len(seen) + _OBJECTS
    while waiting and len(seen) < most:
        value = waiting.pop()
        if type(value) in _LEAVES or id(value) in seen or (type(value) in _CONTAINERS and not value):
            continue
        seen[id(value)] = value
        if is_generator(value):
            yield value
        elif not isinstance(value, _ARRAYS) or isinstance(value, torch.nn.Parameter):
            waiting.extend(reversed(list(inside(value))))


def _global_generators() -> list[Any]:
    """Return the generators that `seeding.seed_everything` seeds as global generators."""
    return [
        random.random.__self__,  # type: ignore[attr-defined]
        np.random.mtrand._rand,
        torch.default_generator, *torch.cuda.default_generators,
    ]


def inside(value: Any) -> Iterator[Any]:
    """Yield the objects that an object refers to, in an order that is the same in every process."""
    if isinstance(value, dict):
        # Do not call methods of a subclass: they may load data or draw numbers.
        for key, item in _first(dict.items(value)):
            yield key
            yield item
    elif isinstance(value, list):
        yield from _first(list.__iter__(value))
    elif isinstance(value, tuple):
        yield from _first(tuple.__iter__(value))
    elif type(value) in (set, frozenset):
        yield from sorted(_first(value), key=repr)
    elif isinstance(value, FunctionType):
        yield from _inside_function(value)
    elif isinstance(value, MethodType):
        yield value.__self__
        yield value.__func__
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, ModuleType):
        if is_user_module(value.__name__):
            # Workers have only the shared names of `__main__`.
            own = main_module.shared() if value.__name__ == "__main__" else vars(value)
            yield from (item for name, item in sorted(own.items()) if not name.startswith("__"))
    elif isinstance(value, type):
        yield from _inside_class(value)
    if isinstance(value, (type, ModuleType, FunctionType)):
        return
    yield from _attributes(value)
    yield type(value)


def _first(items: Iterable[Any]) -> Iterator[Any]:
    for _, item in zip(range(_ITEMS), items, strict=False):
        yield item


def _attributes(value: Any) -> Iterator[Any]:
    """Yield the values of the attributes and slots of an object, ordered by name; for a parameter also its hooks."""
    if isinstance(value, torch.nn.Parameter):
        yield from (value._backward_hooks, value._post_accumulate_grad_hooks)
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = None
    if isinstance(own, dict):
        yield from (own[name] for name in sorted(own, key=str)[:_ITEMS])
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in sorted((slots,) if isinstance(slots, str) else slots):
            try:
                yield object.__getattribute__(value, name)
            except AttributeError:
                continue


def _inside_function(function: FunctionType) -> Iterator[Any]:
    """Yield the objects that a function holds; for a function of the user also the globals that it names."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue
    yield from (item for _, item in sorted(vars(function).items()))
    if is_user_module(function.__module__ or "") or is_user_file(function.__code__.co_filename):
        for name in _global_names(function.__code__):
            if name in function.__globals__:
                yield function.__globals__[name]


@functools.lru_cache(maxsize=4096)
def _global_names(code: CodeType) -> tuple[str, ...]:
    """Return the globals that a function names, in order. Only these are sent with a function of the script."""
    named = [one.argval for one in dis.get_instructions(code) if one.opname in _GLOBAL_OPERATIONS]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            named += _global_names(constant)
    return tuple(dict.fromkeys(named))


def stored_globals(function: FunctionType) -> tuple[str, ...]:
    """Return the globals that a function of the user sets; () for a function of a library."""
    if not is_user_module(function.__module__ or "") and not is_user_file(function.__code__.co_filename):
        return ()
    stored = [one.argval for one in dis.get_instructions(function.__code__) if one.opname in _STORES]
    return tuple(dict.fromkeys(stored))


def _inside_class(kind: type) -> Iterator[Any]:
    """Yield the functions and values of a class of the user, and its bases."""
    if not is_user_class(kind):
        return
    for _, item in sorted(vars(kind).items()):
        if isinstance(item, property):
            yield from (item.fget, item.fset)
        elif isinstance(item, functools.cached_property):
            yield item.func
        elif not isinstance(item, (GetSetDescriptorType, MemberDescriptorType)):
            yield getattr(item, "__func__", item)
    yield from kind.__bases__


def is_user_class(kind: type) -> bool:
    """Return whether a class is of the script, or of a module of the user."""
    if kind.__module__ in ("__main__", "__mp_main__"):
        return True
    return kind.__module__ in sys.modules and is_user_module(kind.__module__)
