"""What a user may do about a common error of a program, told by the last line of its traceback."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dlicmd.contract import known_errors, wire
from dlicmd.contract.argv import ArgvError, parse_argv, split_args
from dlicmd.contract.known_errors import KnownError, known_error
from dlicmd.contract.reading import words


def _install(found: KnownError, program: str, _folder: str) -> str:
    own = _own_module(found.module)
    if own is None:
        return f"dlicmd run --wait -- pip install {found.package}"
    return (f"{own} was not submitted with the program: put both into one folder, and name that folder: "
            f"dlicmd run {program} --model-dir FOLDER")


def _own_module(name: str) -> Path | None:
    """Return the file or folder of a module of the user in the present folder, in one above it or in one of those
    below it; None if there is none."""
    for folder in ("", "*/", "../"):
        for path in (*Path().glob(f"{folder}{name}.py"), *Path().glob(f"{folder}{name}/__init__.py")):
            return path if path.stem == name else path.parent
    return None


def _as_module(_found: KnownError, program: str, folder: str) -> str:
    module = program.removesuffix(".py").replace("/", ".")
    return f"in the folder that contains {folder}: dlicmd run -- python -m {shlex.quote(f'{folder}.{module}')}"


#: Kind of an error → its remedy in a program and its folder.
_REMEDIES: Mapping[str, Callable[[KnownError, str, str], str]] = {
    known_errors.NO_MODULE: _install,
    known_errors.RELATIVE_IMPORT: _as_module,
    known_errors.NO_INPUT: lambda _, program, __: (
        f"a job has no standard input, so pass values as arguments: dlicmd run {program} -- VALUE"),
    known_errors.NOTEBOOK: lambda *_: "remove the lines with get_ipython from the exported notebook",
    known_errors.NO_RANK: lambda _, program, __: (
        f"dlicmd run {program} --as ddp --workers 2, or "
        f"dlicmd run -- torchrun --standalone --nproc-per-node=2 {program}"),
    known_errors.OWN_PROCESSES: lambda _, program, __: (
        f"the program starts its processes itself: dlicmd run {program} --as single"),
    known_errors.NO_GPU: lambda *_: 'in the program: device = "cuda" if torch.cuda.is_available() else "cpu"',
    known_errors.NO_CONFIG: lambda _, program, __: (
        f"config.json exists only in experiments: dlicmd search {program} --param NAME=VALUES --metric NAME; to run "
        "alone, the program needs defaults"),
    known_errors.NO_DATA: lambda _, program, __: (
        f'data: dlicmd run {program} --data PATH, and read it from os.environ["DATA_DIR"]'),
}


def remedy(job: Mapping[str, Any]) -> str | None:
    """Return the remedy for the error that ended a job; None if the error is not a common one."""
    if words(job.get(wire.REASON)) != wire.PROGRAM_FAILED:
        return None
    try:
        line = parse_argv(split_args(words(job.get(wire.ARGS))), sent=True)
    except ArgvError:
        return None
    found = known_error(words(job.get(wire.MESSAGE)))
    named = line.text("--model-main") or next((word for word in line.program if word.endswith(".py")), "train.py")
    program = shlex.quote(named)
    folder = words(job.get(wire.WORK_FOLDER)).rstrip("/").rpartition("/")[2]
    return None if found is None else _REMEDIES[found.kind](found, program, folder)
