"""Patches: functions and classes of the user that the script has put into installed modules.

A script may replace a function of torch, a method of a class or `builtins.print`. Workers import these modules anew. So
the driver searches installed modules and their classes for the user's functions and classes, and workers set them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from local_backend.elastic.errors import EngineError
from local_backend.elastic.script import pickles
from local_backend.elastic.script.user_code import is_project_module, is_user_file, is_user_module


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


def _find() -> Iterator[Patch]:
    modules = [(name, module) for name, module in list(sys.modules.items()) if type(module) is ModuleType]
    users = {name for name, _ in modules if is_user_module(name)}
    for name, module in modules:
        if name in users or name != module.__name__ or is_project_module(name):
            continue
        for attribute, value in list(vars(module).items()):
            # Check the type itself: some modules have attributes that run code when they are read.
            if type(value) is FunctionType:
                if _is_users(value, users):
                    yield Patch(name, "", attribute, value)
            elif issubclass(type(value), type):
                if value.__module__ in users:
                    yield Patch(name, "", attribute, value)
                elif value.__module__ == name and value.__qualname__ == attribute:
                    yield from _of_class(name, value, users)


def _is_users(function: FunctionType, users: set[str]) -> bool:
    """Return whether the user wrote a function, even if functools.wraps has given it another module."""
    path = function.__code__.co_filename
    return function.__module__ in users or (not path.startswith("<") and is_user_file(path))


def _of_class(module: str, owner: type, users: set[str]) -> Iterator[Patch]:
    for name, value in list(vars(owner).items()):
        # As above, check the type: reading an attribute of a lazy object may import a module that does not exist.
        kind = type(value)
        function = value.fget if kind is property else value.__func__ if kind in (staticmethod, classmethod) else value
        if type(function) is FunctionType and _is_users(function, users):
            yield Patch(module, owner.__name__, name, value)
