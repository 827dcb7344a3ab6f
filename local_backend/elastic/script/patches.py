"""Patches: functions and classes of the user that the script has put into installed modules.

A script may replace a function of torch, a method of a class or `builtins.print`. Workers import these modules anew. So
the driver searches installed modules and their classes for the user's functions and classes, and workers set them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from local_backend.elastic.errors import EngineError
from local_backend.elastic.script import pickles
from local_backend.elastic.script.user_code import (
    is_project_module,
    is_user_file,
    is_user_module,
    later_modules,
    remember_libraries,
)


@dataclass(frozen=True)
class Patch:
    """A value under a name of a module, or of the class `owner` of that module."""

    module: str
    owner: str
    name: str
    value: Any

    @property
    def path(self) -> str:
        """The name as a script writes it, with module and class."""
        return ".".join(filter(None, (self.module, self.owner, self.name)))

    def apply(self) -> None:
        """Set the value in this process."""
        with suppress(ImportError):
            place = importlib.import_module(self.module)
            owner = getattr(place, self.owner, None) if self.owner else place
            if owner is not None:
                setattr(owner, self.name, self.value)


@dataclass(frozen=True)
class _Namespace:
    """A module, or its class `owner`, with its values."""

    module: str
    owner: str
    values: Mapping[str, Any]


#: Module → the values of the module and of its classes when `remember` was called.
_before: dict[ModuleType, list[tuple[_Namespace, Mapping[str, Any]]]] = {}


def gather() -> list[Patch]:
    """Return all patches of this process, without patches of Python's own modules that cannot be pickled.

    Raises EngineError for a patch of another module that cannot be pickled.
    """
    found = []
    for patch in _find():
        try:
            pickles.dumps(patch)
        except Exception as error:
            if patch.module.partition(".")[0] in sys.stdlib_module_names:
                continue
            raise EngineError(
                f"the script replaced {patch.path}, and the replacement cannot be sent to the workers ({error}): "
                "define it at the top level of a module, or replace it in datasets_function, which runs in every "
                "worker"
            ) from None
        found.append(patch)
    return found


def remember() -> None:
    """Keep what modules and their classes contain, before a script runs. Then `gather` searches only those that differ:
    to search all of them takes three times as long as to compare them."""
    remember_libraries()
    for module in _modules():
        _before[module] = [(place, dict(place.values)) for place in _namespaces(module)]


def _find() -> Iterator[Patch]:
    users = {name for name, module in later_modules() if type(module) is ModuleType and is_user_module(name)}
    for place in _changed():
        if place.module in users:
            continue
        for name, value in list(place.values.items()):
            if _is_from(value, users, is_in_class=bool(place.owner)):
                yield Patch(place.module, place.owner, name, value)


def _changed() -> Iterator[_Namespace]:
    """Yield the modules and classes that may not be as `remember` found them."""
    for module in _modules():
        known = _before.get(module)
        if known and _is_same(*known[0]):
            yield from (kind for kind, before in known[1:] if not _is_same(kind, before))
        else:
            yield from _namespaces(module)


def _is_same(found: _Namespace, before: Mapping[str, Any]) -> bool:
    try:
        return bool(found.values == before)
    except Exception:  # Values that are not the same object may refuse to be compared.
        return False


def _modules() -> Iterator[ModuleType]:
    """Yield the installed modules, without those of this project."""
    for name, module in list(sys.modules.items()):
        if type(module) is ModuleType and name == module.__name__ and not is_project_module(name):
            yield module


def _namespaces(module: ModuleType) -> Iterator[_Namespace]:
    """Yield a module and its own classes."""
    values = vars(module)
    yield _Namespace(module.__name__, "", values)
    for name, value in list(values.items()):
        # Check the type itself: some modules have attributes that run code when they are read.
        if issubclass(type(value), type) and value.__module__ == module.__name__ and value.__qualname__ == name:
            yield _Namespace(module.__name__, name, vars(value))


def _is_from(value: Any, users: set[str], *, is_in_class: bool) -> bool:
    """Return whether a value is a function or, in a module, a class of the user."""
    # As above, check the type: reading an attribute of a lazy object may import a module that does not exist.
    kind = type(value)
    if is_in_class:
        value = value.fget if kind is property else value.__func__ if kind in (staticmethod, classmethod) else value
    elif issubclass(kind, type):
        return value.__module__ in users
    return type(value) is FunctionType and _is_users(value, users)


def _is_users(function: FunctionType, users: set[str]) -> bool:
    """Return whether the user wrote a function, even if functools.wraps has given it another module."""
    path = function.__code__.co_filename
    return function.__module__ in users or (not path.startswith("<") and is_user_file(path))
