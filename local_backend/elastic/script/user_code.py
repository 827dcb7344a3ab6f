"""Tests whether modules and files are the user's own: not part of Python, an installed package or this project."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import ModuleType

_MAIN = ("__main__", "__mp_main__")
#: Names of modules that this project puts beside scripts.
_OURS = frozenset({
    "local_backend", "dlicmd", "fabric_model", "callbacks", "pyedt", "fabric_data", "emetrics", "redhareapi",
    "redhareapiversion",
})
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}", f"{os.sep}fabric.zip{os.sep}")
_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep
_PYTHON = tuple(
    os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib") if sysconfig.get_path(name)
)


@lru_cache(maxsize=4096)
def is_user_file(path: str) -> bool:
    """Return whether the file is the user's: not part of Python, of an installed package or of this project. A package
    may be installed beside the program, too."""
    if path.startswith("<"):
        return path.startswith(("<ipython", "<stdin", "<string"))
    if any(part in path for part in _INSTALLED):
        return False  # decides most paths without access to the disk
    real = os.path.realpath(path)
    return not (any(part in real for part in _INSTALLED) or real.startswith((_PACKAGE, *_PYTHON)) or _in_target(real))


def _in_target(path: str) -> bool:
    """Return whether a file belongs to a package that `pip install --target` has put into a folder of the user."""
    folder, name = os.path.split(path)
    while name:
        if name in _packages_in(folder):
            return True
        folder, name = os.path.split(folder)
    return False


@lru_cache(maxsize=4096)
def _packages_in(folder: str) -> frozenset[str]:
    """Return the names of files and folders directly in `folder` that installed packages have put there: pip lists
    them in a RECORD in the `.dist-info` of each package. Other files of the folder may be the user's own."""
    names: set[str] = set()
    with suppress(OSError):
        for name in os.listdir(folder):
            if name.endswith(".dist-info"):
                record = Path(folder, name, "RECORD").read_text(encoding="utf-8", errors="replace")
                names.update(line.lstrip('"').partition("/")[0].partition(",")[0] for line in record.splitlines())
    return frozenset(names - {".."})


#: Name → module that was loaded before any script ran. See `remember_libraries`.
_libraries: dict[str, ModuleType] = {}


def remember_libraries() -> None:
    """Keep the modules of this process, before a script runs: none of them is the user's."""
    _libraries.update((name, module) for name, module in sys.modules.items() if name not in _MAIN)


def later_modules() -> list[tuple[str, ModuleType]]:
    """Return names and modules that may be the user's: all except those of `remember_libraries`."""
    return [(name, module) for name, module in list(sys.modules.items())
            if isinstance(module, ModuleType) and _libraries.get(name) is not module]


def is_user_module(name: str) -> bool:
    """Return whether a module of this name is the user's. The main script is one of the user's modules."""
    if name in _MAIN:
        return True
    module = sys.modules.get(name)
    path = getattr(module, "__file__", None)
    return isinstance(path, str) and not is_project_module(name) and is_user_file(path)


def is_project_module(name: str) -> bool:
    """Return whether a module of this name belongs to this project."""
    return name.partition(".")[0] in _OURS


def user_modules() -> Iterator[ModuleType]:
    """Yield the user's modules below the folder of the script or of PYTHONPATH, in the order of their imports.

    The script itself is left out.
    """
    folders = _folders()
    for name, module in later_modules():
        if name in _MAIN or not is_user_module(name):
            continue
        if getattr(module, "__name__", None) == name and os.path.realpath(str(module.__file__)).startswith(folders):
            yield module


def _folders() -> tuple[str, ...]:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [os.path.dirname(os.path.abspath(main)) if main else os.getcwd(), *filter(None, given)]
    return tuple(os.path.realpath(path).rstrip(os.sep) + os.sep for path in paths)
