"""The framework that runs stored code, found from the source of its program as `dlicmd run` does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dlicmd.contract.program_kinds import FRAMEWORKS, kind_of_program, local_imports
from dlicmd.contract.verbs import SINGLE
from local_backend import limited_work
from local_backend.limited_work import LimitExceeded, WorkLimits
from local_backend.workload import Program

#: Maximum bytes of a source, and maximum number of modules, that are read.
_LARGEST, _MOST = 1 << 20, 100
#: Limits of the process that parses the source: Python holds its lock while it parses a file.
_LIMITS = WorkLimits(seconds=10, memory=1 << 30)


def framework_of(program: Program, folder: Path) -> str:
    """Return the framework for a program in a folder of stored code: elastic, distributed, or one process. A program
    that cannot be read, and a command, run as one process."""
    if program.main is not None and program.user_cmd is None:
        place = folder / (program.model_dir or "") / program.main
        with suppress(LimitExceeded, OSError):
            return str(limited_work.call(f"{__name__}:framework_in", [str(place)], _LIMITS))
    return FRAMEWORKS[SINGLE]


def framework_in(path: str) -> str:
    """Return the framework for a program in a file. Runs in a process of its own."""
    place = Path(path)
    tree = _parsed(place)
    if tree is None:
        return FRAMEWORKS[SINGLE]
    found = kind_of_program(tree, _others(tree, place.parent))
    return FRAMEWORKS[SINGLE if found.needs_workers else found.kind]


def _others(tree: ast.Module, near: Path) -> Iterator[tuple[str, ast.Module]]:
    for number, name in enumerate(local_imports(tree, lambda name: (near / name).is_file())):
        module = _parsed(near / name) if number < _MOST else None
        if module is not None:
            yield name, module


def _parsed(place: Path) -> ast.Module | None:
    """Return the source of a file of stored code; None for one that is too large, or is not Python."""
    try:
        with place.open("rb") as file:
            text = file.read(_LARGEST + 1)
        return None if len(text) > _LARGEST else ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
