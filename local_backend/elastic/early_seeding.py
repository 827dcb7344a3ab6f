"""Whether the script has seeded Python's `random`, which does not tell.

From the import of FabricModel on, calls of `random.seed` are noted. Whether it was called before follows from the
source: a call at the top level of the script before that import, or of a module of the user that was imported before.
"""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from local_backend.elastic.user_code import user_modules

#: The function of Python, which notes nothing. The engine seeds by it.
seed_unnoted = random.seed

_seeded = False
#: Functions of libraries that seed `random` among others.
_SEEDING = frozenset({"seed_everything", "set_seed", "seed_all", "set_random_seed", "fix_seed"})
#: Longer files are no scripts.
_MOST_BYTES = 1 << 20


def watch() -> None:
    """Note calls of `random.seed` from now on, and look for earlier ones."""
    global _seeded
    if random.seed is not seed_unnoted:
        return
    _seeded = _seeded or any(_seeds(path, main) for path, main in _sources())

    @wraps(seed_unnoted)
    def seed(*arguments: Any, **named: Any) -> None:
        global _seeded
        _seeded = True
        seed_unnoted(*arguments, **named)

    random.seed = seed


def seeded() -> bool:
    """Return whether the script has seeded `random`."""
    return _seeded


@contextmanager
def unnoted() -> Iterator[None]:
    """Within: seeding is the training's, not the script's."""
    global _seeded
    before = _seeded
    try:
        yield
    finally:
        _seeded = before


def _sources() -> Iterator[tuple[str, bool]]:
    """(file, whether it is the script) of the script and of the modules of the user that are imported by now."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main:
        yield main, True
    for module in user_modules():
        yield str(module.__file__), False


def _seeds(path: str, main: bool) -> bool:
    """Whether the top level of a file seeds `random`; of the script only up to where it imports FabricModel."""
    try:
        source = Path(path).read_bytes()
        tree = ast.parse(source) if len(source) <= _MOST_BYTES else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):
        return False
    for statement in tree.body:
        if main and _imports_us(statement):
            return False
        defines = isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        if not defines and any(_is_seeding(node) for node in ast.walk(statement)):
            return True
    return False


def _imports_us(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.ImportFrom):
        return statement.module in ("fabric_model", "pyedt")
    return isinstance(statement, ast.Import) and any(one.name == "fabric_model" for one in statement.names)


def _is_seeding(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Name):
        return called.id in _SEEDING
    if not isinstance(called, ast.Attribute):
        return False
    of_random = called.attr == "seed" and isinstance(called.value, ast.Name) and called.value.id == "random"
    return of_random or called.attr in _SEEDING
