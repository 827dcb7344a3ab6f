"""Values inside objects that show no attributes: caches of functions, generators, iterators, slots, references."""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import queue
import weakref
import zlib
from array import array
from collections.abc import Iterator
from contextvars import ContextVar
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from local_backend.elastic.user_code import is_user_file, is_user_module

#: Prefix of the path of a value in the cache of a function. A batch may add such values.
CACHED = "the cache of "
#: Most characters of an argument in a path.
SHOWN = 60


def inside(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield paths and values inside `value`. A text describes a state that has no other value."""
    if isinstance(value, functools._lru_cache_wrapper):
        yield from _of_cache(value)
    elif isinstance(value, (GeneratorType, CoroutineType, AsyncGeneratorType)):
        yield from _of_generator(path, value)
    elif isinstance(value, weakref.ref):
        yield path, value()
    elif isinstance(value, ContextVar):
        yield path, value.get(None)
    elif isinstance(value, itertools.count):
        yield path, repr(value)
    elif isinstance(value, (array, bytearray)):
        yield path, f"{len(value)} items, {zlib.crc32(value)}"
    elif isinstance(value, queue.SimpleQueue):
        yield f"len({path})", value.qsize()
    elif isinstance(value, Iterator) and type(value).__module__ == "builtins":
        yield path, f"{operator.length_hint(value, -1)} items left"
    yield from _of_slots(path, value)


def _of_cache(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the results in the cache of `functools.lru_cache`. CPython shows them to its garbage collector only."""
    code = getattr(function.__wrapped__, "__code__", None)
    if code is None or not is_user_file(code.co_filename):
        return
    found = gc.get_referents(function)
    # A cache of limited size is a chain of links. The referents of a link are its type, its key and its result.
    results = [
        (key, result) for kind, key, result in zip(found, found[1:], found[2:], strict=False)
        if isinstance(kind, type) and kind.__name__ == _LINK
    ]
    for part in found:
        if type(part) is dict and part is not vars(function):
            results += [(key, result) for key, result in part.items() if type(result).__name__ != _LINK]
    for key, result in results:
        yield f"{CACHED}{function.__qualname__}({repr(key)[:SHOWN]})", result


_LINK = "_lru_list_elem"


def _of_generator(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the local variables of a generator or coroutine, and its position."""
    frame = next((getattr(value, name) for name in ("gi_frame", "cr_frame", "ag_frame") if hasattr(value, name)), None)
    if frame is None:
        yield path, "ended"
    elif is_user_file(frame.f_code.co_filename):
        yield path, f"instruction {frame.f_lasti}"
        yield from ((f"{name} in {value.__qualname__}", item) for name, item in frame.f_locals.items())


def _of_slots(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    for kind in type(value).__mro__:
        if "__slots__" in vars(kind) and is_user_module(kind.__module__):
            names = vars(kind)["__slots__"]
            for name in (names,) if isinstance(names, str) else names:
                if not name.startswith("__") and hasattr(value, name):
                    yield f"{path}.{name}", getattr(value, name)
