"""Detection of seeding of Python's `random` by the script. The module `random` itself does not record seeding.

The engine records calls of `random.seed` after the import of FabricModel. To find earlier calls, the engine reads the
source: the top level of the script before that import, and the top level of the user's modules imported before.
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

from local_backend.elastic.script.user_code import user_modules

#: The original function of Python. The engine seeds with this function, so that its calls are not recorded.
seed_unnoted = random.seed

_seeded = False
#: Functions of libraries that seed `random` among other generators.
_SEEDING = frozenset({"seed_everything", "set_seed", "seed_all", "set_random_seed", "fix_seed"})
#: Maximum size in bytes of a source file to read.
_MOST_BYTES = 1 << 20


def watch() -> None:
    """Record calls of `random.seed` from now on, and look for earlier calls."""
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
    """Ignore seeding within the context: the training seeds, not the script."""
    global _seeded
    before = _seeded
    try:
        yield
    finally:
        _seeded = before


def _sources() -> Iterator[tuple[str, bool]]:
    """Yield (path, whether it is the script) for the script and the modules of the user that are imported so far."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main:
        yield main, True
    for module in user_modules():
        yield str(module.__file__), False


def _seeds(path: str, main: bool) -> bool:
    """Return whether a file's top level seeds `random`; in the script (`main`), only before it imports FabricModel."""
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
