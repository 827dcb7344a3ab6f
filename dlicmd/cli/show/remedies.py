"""What a user may do about a common error of a program, told by the last line of its traceback."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dlicmd.contract import wire
from dlicmd.contract.argv import ArgvError, parse_argv, split_args
from dlicmd.contract.reading import words

#: Names of modules → the packages that contain them, where these names differ.
_PACKAGES = {
    "PIL": "pillow", "bs4": "beautifulsoup4", "cv2": "opencv-python-headless", "dateutil": "python-dateutil",
    "skimage": "scikit-image", "sklearn": "scikit-learn", "yaml": "pyyaml",
}


class _Error(NamedTuple):
    """The pattern of an error, and the remedy for a match in a program."""

    pattern: str
    remedy: Callable[[re.Match[str], str, str], str]


def _install(found: re.Match[str], program: str, _folder: str) -> str:
    name = found[1].partition(".")[0]
    own = _own_module(name)
    if own is not None:
        return (f"{own} was not submitted with the program: put both into one folder, and name that folder: "
                f"dlicmd run {program} --model-dir FOLDER")
    return f"dlicmd run --wait -- pip install {_PACKAGES.get(name, name)}"


def _own_module(name: str) -> Path | None:
    """Return the file or folder of a module of the user in the present folder, in one above it or in one of those
    below it; None if there is none."""
    for folder in ("", "*/", "../"):
        for path in (*Path().glob(f"{folder}{name}.py"), *Path().glob(f"{folder}{name}/__init__.py")):
            return path if path.stem == name else path.parent
    return None


def _as_module(_found: re.Match[str], program: str, folder: str) -> str:
    module = program.removesuffix(".py").replace("/", ".")
    return f"in the folder that contains {folder}: dlicmd run -- python -m {shlex.quote(f'{folder}.{module}')}"


#: In the order of the search.
_ERRORS = (
    _Error(r"ModuleNotFoundError: No module named '([A-Za-z0-9_.]{1,60})'", _install),
    _Error(r"ImportError: attempted relative import with no known parent package", _as_module),
    _Error(r"EOFError: EOF when reading a line", lambda _, program, __: (
        f"a job has no standard input, so pass values as words: dlicmd run {program} -- VALUE")),
    _Error(r"NameError: name 'get_ipython' is not defined",
           lambda *_: "remove the lines with get_ipython from the exported notebook"),
    _Error(r"environment variable RANK expected", lambda _, program, __: f"dlicmd run {program} --as ddp"),
    _Error(r"Found no NVIDIA driver|Torch not compiled with CUDA enabled|No CUDA GPUs are available",
           lambda *_: 'in the program: device = "cuda" if torch.cuda.is_available() else "cpu"'),
    _Error(r"FileNotFoundError: .*'(?:\./)?config\.json'", lambda _, program, __: (
        f"config.json exists only in experiments: dlicmd search {program} --param NAME=VALUES --metric NAME; to run "
        "alone, the program needs defaults")),
    _Error(r"FileNotFoundError: ", lambda _, program, __: (
        f'data: dlicmd run {program} --data PATH, and read it from os.environ["DATA_DIR"]')),
)


def remedy(job: Mapping[str, Any]) -> str | None:
    """Return what to do about the error that ended a job; None if it is no common one."""
    if words(job.get(wire.REASON)) != wire.PROGRAM_FAILED:
        return None
    try:
        line = parse_argv(split_args(words(job.get(wire.ARGS))), sent=True)
    except ArgvError:
        return None
    program = shlex.quote(line.text("--model-main") or "train.py")
    folder = words(job.get(wire.WORK_FOLDER)).rstrip("/").rpartition("/")[2]
    for pattern, tell in _ERRORS:
        if found := re.search(pattern, words(job.get(wire.MESSAGE))):
            return tell(found, program, folder)
    return None
