"""Functions and classes of the user that the script has put into installed modules: workers get them, too.

A script may replace a function of torch, a method of a class or `builtins.print`. Workers import these modules anew, so
the driver looks for functions and classes of the user in modules and classes that are not the user's, and workers put
them into the same places.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from local_backend.elastic import pickles
from local_backend.elastic.errors import EngineError
from local_backend.elastic.user_code import is_own_module, is_user_file, is_user_module


@dataclass(frozen=True)
class Patch:
    """What stands under a name of a module, or of a class in it when `owner` names one."""

    module: str
    owner: str
    name: str
    value: Any

    @property
    def path(self) -> str:
        """The name as a script writes it."""
        return ".".join(filter(None, (self.module, self.owner, self.name)))

    def apply(self) -> None:
        """Put the value into its place in this process."""
        with suppress(ImportError):
            place = importlib.import_module(self.module)
            owner = getattr(place, self.owner, None) if self.owner else place
            if owner is not None:
                setattr(owner, self.name, self.value)


def gather() -> list[Patch]:
    """Find all patches of this process. What cannot be pickled is left out where Python's own modules have it.

    Raises EngineError for one of another module that cannot be pickled.
    """
    found = []
    for patch in _find():
        try:
            pickles.dumps(patch)
        except Exception as error:
            if patch.module.partition(".")[0] in sys.stdlib_module_names:
                continue
            raise EngineError(
                f"the script has replaced {patch.path}, and the replacement cannot be sent to its workers ({error}): "
                "define it at the top of a module, or replace it in datasets_function, which runs in every worker"
            ) from None
        found.append(patch)
    return found


def _find() -> Iterator[Patch]:
    modules = [(name, module) for name, module in list(sys.modules.items()) if type(module) is ModuleType]
    own = {name for name, _ in modules if is_user_module(name)}
    for name, module in modules:
        if name in own or name != module.__name__ or is_own_module(name):
            continue
        for attribute, value in list(vars(module).items()):
            # The type itself is asked: some modules have attributes that act when they are looked at.
            if type(value) is FunctionType:
                if _is_own(value, own):
                    yield Patch(name, "", attribute, value)
            elif issubclass(type(value), type):
                if value.__module__ in own:
                    yield Patch(name, "", attribute, value)
                elif value.__module__ == name and value.__qualname__ == attribute:
                    yield from _of_class(name, value, own)


def _is_own(function: FunctionType, own: set[str]) -> bool:
    """Return whether a function is of the user's code, also where functools.wraps has given it another module."""
    path = function.__code__.co_filename
    return function.__module__ in own or (not path.startswith("<") and is_user_file(path))


def _of_class(module: str, owner: type, own: set[str]) -> Iterator[Patch]:
    for name, value in list(vars(owner).items()):
        # As above, the type is asked: to look at an attribute of a lazy object may import a module that is not there.
        kind = type(value)
        function = value.fget if kind is property else value.__func__ if kind in (staticmethod, classmethod) else value
        if type(function) is FunctionType and _is_own(function, own):
            yield Patch(module, owner.__name__, name, value)
