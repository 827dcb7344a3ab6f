"""The module `__main__` of a worker. A worker does not run the script, but finds functions and values of it there.

Functions of the script keep `__main__` as their global names. So a pool of processes in `datasets_function` finds them
by name. Modules of the user may read names of `__main__`, such as the arguments of the command line, while they are
imported. So the job sends these names before everything else.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.library import CustomOpDef

from local_backend.elastic.errors import EngineError
from local_backend.elastic.script import pickles
from local_backend.elastic.script.user_code import user_modules

_MAIN = "__main__"
#: Keeps the earlier module alive, because its frames may be on the stack.
_earlier: list[ModuleType] = []


class GlobalNames:
    """Stands in a pickle for the global names of `__main__` in the process that reads the pickle."""

    def __reduce__(self) -> tuple[Any, ...]:
        return names, ()


class _Name:
    """A global name and its value. The process that reads the pickle sets the name at once."""

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _set, (self.name, self.value)


def _set(name: str, value: Any) -> None:
    names()[name] = value


def names() -> dict[str, Any]:
    """Return the global names of `__main__`."""
    return vars(sys.modules[_MAIN])


def install() -> None:
    """Replace `__main__` by an empty module, because the present one belongs to the engine."""
    _earlier.append(sys.modules[_MAIN])
    sys.modules[_MAIN] = ModuleType(_MAIN)


def shared() -> dict[str, Any]:
    """Return the names of `__main__` that the source of the user's modules reads, with their values, in the order in
    which the script has set them."""
    wanted = {name for module in user_modules() for name in _read_in(str(module.__file__))}
    return {name: value for name, value in names().items() if name in wanted}


def gather() -> list[_Name]:
    """Return the `shared` names that can be pickled, and `__file__`, from which processes start that are not forked."""
    found = shared()
    # Functions may belong to modules that read the other names while they are imported.
    found = {name: found[name] for name in sorted(found, key=lambda name: callable(found[name]))}
    if "__file__" in names():
        found["__file__"] = names()["__file__"]
    return [_Name(name, value) for name, value in found.items() if pickles.can_dump(value)]


def check_operators() -> None:
    """Raise EngineError if the script itself registers operators of torch, because workers do not run the script."""
    for value in names().values():
        if isinstance(value, (CustomOpDef, torch.library.Library)):
            what = value._qualname if isinstance(value, CustomOpDef) else f"{value.ns}::*"
            raise EngineError(
                f"the script registers the operator {what}, but workers do not run the script: register it in a "
                "module beside the script, and import this module in the script"
            )


@lru_cache
def _read_in(path: str) -> frozenset[str]:
    """Return the names of `__main__` that a file of Python code reads."""
    try:
        source = Path(path).read_text()
        return frozenset(_read_by(ast.parse(source)) if _MAIN in source else ())
    except (OSError, SyntaxError, ValueError):
        return frozenset()


def _read_by(tree: ast.Module) -> Iterator[str]:
    mains = {_MAIN}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            mains.update(one.asname for one in node.names if one.name == _MAIN and one.asname)
        elif isinstance(node, ast.ImportFrom) and node.module == _MAIN:
            yield from (one.name for one in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_main(node.value, mains):
            yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            owner, name = (*node.args, None, None)[:2]
            if isinstance(owner, ast.expr) and _is_main(owner, mains) and isinstance(name, ast.Constant):
                yield str(name.value)


def _is_main(node: ast.expr, names: set[str]) -> bool:
    """Return whether an expression is `__main__`, or one of its `names` in this file."""
    if isinstance(node, ast.Name):
        return node.id in names
    return isinstance(node, ast.Subscript) and ast.unparse(node) == f"sys.modules['{_MAIN}']"
