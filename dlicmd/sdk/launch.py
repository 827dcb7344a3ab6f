"""Find out how to run a program: its kind, from its source, without running it."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from dlicmd.contract.program_kinds import MAIN_NAMES, ProgramKind, kind_of_program, local_imports
from dlicmd.contract.verbs import COMMAND
from dlicmd.sdk import hints
from dlicmd.sdk.errors import UsageProblem

#: Maximum bytes of a source to read. Sources that people write are smaller.
_LARGEST = 2**22


def find_main(folder: Path) -> str:
    """Return the name of the main program in a folder: train.py, main.py, or the only Python file. Raises UsageProblem,
    which lists the candidates."""
    try:
        names = sorted(item.name for item in os.scandir(folder) if item.name.endswith(".py") and item.is_file())
    except OSError as problem:
        raise UsageProblem(f"cannot read the folder {folder}: {problem.strerror}") from None
    for name in MAIN_NAMES:
        if name in names:
            return name
    if len(names) == 1:
        return names[0]
    if not names:
        raise UsageProblem(f"{folder} has no Python file; name the program, as in: {_naming('train.py')}")
    shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    raise UsageProblem(f"{folder} has several Python files ({shown}); name the program, as in: "
                       f"{_naming(folder / names[0])}")


def kind_of(main: Path) -> ProgramKind:
    """Return the kind of a program, also judged by the modules in its folder that it imports. Raises UsageProblem when
    the program cannot be read, or has a syntax error."""
    if main.suffix != ".py":
        return ProgramKind(COMMAND, "is not a Python file")
    tree = _parsed(main)
    return kind_of_program(tree, _others(tree, main.parent))


def _others(tree: ast.Module, folder: Path) -> Iterator[tuple[str, ast.Module]]:
    """Yield the modules of the folder that a program imports."""
    for name in local_imports(tree, lambda name: (folder / name).is_file()):
        try:
            yield name, _parsed(folder / name)
        except UsageProblem:
            continue  # the program itself reports it, if it uses this module at all


def _parsed(file: Path) -> ast.Module:
    try:
        if file.stat().st_size > _LARGEST:
            return ast.Module([], [])
        return ast.parse(file.read_bytes(), str(file))
    except SyntaxError as problem:
        where = f" line {problem.lineno}" if problem.lineno else ""
        raise UsageProblem(f"{file}{where}: {problem.msg}; correct the program, or use {_choosing()} to submit it "
                           "as it is") from None
    except OSError as problem:
        raise UsageProblem(f"cannot read {file}: {problem.strerror}") from None
    except (ValueError, RecursionError, MemoryError):
        raise UsageProblem(f"{file} is not a Python program; run it as a command: {_as_command()}") from None


def _naming(program: object) -> str:
    return hints.either(f"dlicmd run {program}", f"Client.run('{program}')")


def _choosing() -> str:
    return hints.either("--as", "kind")


def _as_command() -> str:
    return hints.either("dlicmd run -- COMMAND", f"kind='{COMMAND}'")
