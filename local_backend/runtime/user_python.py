"""The Python environment of a user's jobs: a virtual environment laid over the server's.

Its interpreter is the server's. Programs see the user's packages first, then the server's. pip changes only the
user's, because the server's are outside of its environment. The prefix is also PYTHONUSERBASE: `pip install` and
`pip install --user` write the same folder. The server itself, and the runner of a job, never read it.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import shlex
import site
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dlicmd import program_log
from local_backend.files import open_regular, remove_tree, write_atomic
from local_backend.runtime import overlay

_VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
_START = "_dlicmd_overlay"
#: Read after all other .pth files of the folder: the folders that these add come before the server's.
_PTH = f"zzz{_START}.pth"
_PYTHON_NAMES = ("python", "python3", _VERSION)
_PIP_NAMES = ("pip", "pip3", f"pip3.{sys.version_info[1]}")
#: Bytes at the start of a script that may name its interpreter.
_HEAD = 512


@dataclass(frozen=True)
class UserPython:
    """The environment at `prefix`."""

    prefix: Path

    @property
    def executable(self) -> Path:
        return self.prefix / "bin" / "python"

    @property
    def packages(self) -> Path:
        """The folder that pip installs into."""
        return self.prefix / "lib" / _VERSION / "site-packages"

    def make(self) -> None:
        """Create the environment, or adapt it to the server's Python. Packages stay, unless a program has replaced a
        folder of the environment by a link or a file: then it is created anew. Raises OSError."""
        if self.prefix.is_symlink():
            self.prefix.unlink()
        try:
            self._make()
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            if self.prefix.is_dir():
                remove_tree(self.prefix)
            else:
                self.prefix.unlink()
            self._make()

    def _make(self) -> None:
        for folder in (self.prefix, self.executable.parent, self.packages):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        base = os.path.abspath(getattr(sys, "_base_executable", None) or sys.executable)
        texts = {
            self.prefix / "pyvenv.cfg": f"home = {os.path.dirname(base)}\ninclude-system-site-packages = true\n"
                                        f"version = {'.'.join(map(str, sys.version_info[:3]))}\n",
            self.packages / f"{_START}.py": Path(overlay.__file__).read_text(encoding="utf-8"),
            self.packages / _PTH: f"import {_START}; {_START}.lay({server_folders()!r})\n",
        }
        for path, text in texts.items():
            _put(path, text)
        links = {self.executable.with_name(name): base for name in _PYTHON_NAMES}
        if sys.platlibdir != "lib":
            links[self.prefix / sys.platlibdir] = "lib"
        for link, target in links.items():
            _link(link, target)

    def shadows(self, loaded: set[str]) -> bool:
        """Return whether the user may have another version of a module whose name is in `loaded`."""
        others = {path.name for path in self.packages.glob("*.pth")} - {_PTH}  # they may add any folder
        return bool(others) or not loaded.isdisjoint(modules_in(self.packages) - {_START})

    def enter(self) -> None:
        """Let this forked process, with the job's variables and sys.path set, look like a Python of the environment."""
        server, count = set(server_folders()), len(sys.path)
        sys.executable, sys.prefix, sys.exec_prefix = str(self.executable), str(self.prefix), str(self.prefix)
        site.USER_BASE = site.USER_SITE = None
        site.ENABLE_USER_SITE = site.check_enableusersite()
        site.addsitedir(str(self.packages))
        added = sys.path[count:]
        del sys.path[count:]
        place = next((number for number, entry in enumerate(sys.path) if entry in server), count)
        sys.path[place:place] = added
        multiprocessing.set_executable(sys.executable)
        if "sysconfig" in sys.modules:
            importlib.reload(sys.modules["sysconfig"])  # it has computed paths from the prefix


def modules_in(folder: Path) -> set[str]:
    """Return the names of the modules and packages directly in a folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return set()
    found = {name.partition(".")[0] for name in names if name.endswith((".py", ".pyc", ".so"))}
    return found | {name for name in names if "." not in name and (folder / name / "__init__.py").exists()}


def write_scripts(folder: Path) -> None:
    """Fill `folder` with the commands of the server's environment, for PATH of jobs: each runs with the job's Python.

    Their own first line names the server's Python, which does not see the packages of users. `python` itself is one of
    them: after a program has removed its environment, pip must not find the server's Python. Raises OSError.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    server = Path(sys.executable).parent
    run = dict.fromkeys(_PYTHON_NAMES, "") | dict.fromkeys(_PIP_NAMES, "-m pip") | {
        name: shlex.quote(str(server / name)) for name in os.listdir(server)
        if name not in (*_PYTHON_NAMES, *_PIP_NAMES) and _is_python_script(server / name)
    }
    for name, words in run.items():
        _put(folder / name, f'#!/bin/sh\nexec "$PYTHONUSERBASE/bin/python" {words} "$@"\n', 0o700)
    for left in set(os.listdir(folder)) - set(run):
        (folder / left).unlink(missing_ok=True)


def write_modules(folder: Path) -> None:
    """Fill `folder` with the modules for programs whose Python lacks the package `dlicmd`. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The first one is not imported here: it would give way to the package.
    package = Path(__file__).with_name("stand_in.py")
    sources = {"dlicmd.py": package, "dlicmd_program_log.py": Path(program_log.__file__)}
    for name, source in sources.items():
        _put(folder / name, source.read_text(encoding="utf-8"))


def _is_python_script(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return False
    python = re.escape(os.fsencode(path.with_name("python")))
    return re.match(rb"#!(/bin/sh\n'''exec' )?\"?" + python, head) is not None


def server_folders() -> list[str]:
    """Return the folders of packages that this Python has, in the order of sys.path."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [folder for folder in dict.fromkeys([*user, *site.getsitepackages()]) if os.path.isdir(folder)]


def _put(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file if its content differs."""
    found = open_regular(path, path.parent)
    if found is not None:
        with found:
            if found.read(len(text.encode()) + 1) == text.encode():
                return
    write_atomic(path, text.encode(), mode, durable=False)


def _link(path: Path, target: str) -> None:
    """Make `path` a link to `target`."""
    with suppress(OSError):
        if os.readlink(path) == target:
            return
    made = path.with_name(f".{path.name}.{os.getpid()}")
    made.unlink(missing_ok=True)
    made.symlink_to(target)
    os.replace(made, path)
