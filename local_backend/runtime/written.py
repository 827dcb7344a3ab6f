"""The files that the program of an exec wrote: below its RESULT_DIR, which also contains its working directory.

A file has one path for users: relative to RESULT_DIR; or, for a file below the working directory, as the program would
write it, unless another file has that path. Submitted code without a change, output that the server keeps as logs, the
records of `dlicmd.log`, and everything but plain files are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from dlicmd import program_log
from local_backend.files import open_folder, regular_files
from local_backend.runtime.paths import ExecPaths, HomePaths
from local_backend.store.execs import ExecRow

#: Maximum number of files in a list, and of files to look at for it.
MOST, MOST_SEEN = 10_000, 200_000
#: Folder of compiled files that Python creates.
_LEFT_OUT = frozenset({"__pycache__"})
_CHUNK = 1 << 20
#: Files in LOG_DIR that the server shows in other ways: as logs, and as curves.
_INTERNAL = frozenset({"stdout", "stderr", program_log.FILE})


@dataclass(frozen=True)
class Written:
    """A file that a program wrote: its path for users, size in bytes, time of the last change in epoch nanoseconds, and
    whether the file is below the working directory."""

    path: str
    size: int
    modified: int
    is_code: bool


class WrittenFiles:
    """The files that the program of one exec wrote."""

    def __init__(self, home: HomePaths, paths: ExecPaths, row: ExecRow) -> None:
        self._paths = paths
        self._bundle = None if row.bundle is None else home.bundle(row.bundle)
        self._submitted_at = row.create_time
        self._copy = f"{paths.submitted.relative_to(paths.root)}/"
        self._code = f"{paths.code(row.workload).relative_to(paths.root)}/"
        self._logs = paths.logs.relative_to(paths.root).parts

    def listed(self) -> tuple[list[Written], bool]:
        """Return the files that the program wrote, ordered by path, and whether these are all: folders that the program
        locked are left out. Raises OSError."""
        found: list[tuple[str, os.stat_result]] = []
        locked: list[str] = []
        complete = True
        for looked, (name, status) in enumerate(self._files(locked)):
            if len(found) == MOST or looked == MOST_SEEN:
                complete = False
                break
            if self._is_written(name, status):
                found.append((name, status))
        names = {name for name, _ in found}
        files = [
            Written(self._shown(name, names), status.st_size, status.st_mtime_ns, name.startswith(self._code))
            for name, status in found if _is_usable(name)
        ]
        return sorted(files, key=lambda file: file.path), complete and not locked and len(files) == len(found)

    def opened(self, path: str) -> BinaryIO | None:
        """Open the file with a path from the list. Return None if there is no such file, or if the program did not
        write it."""
        if not _is_usable(path) or not {"", ".", ".."}.isdisjoint(path.split("/")):
            return None
        for name in (path, self._code + path):
            if _LEFT_OUT.isdisjoint(name.split("/")) and (file := self._paths.opened(self._paths.root / name)):
                if self._is_written(name, os.fstat(file.fileno())):
                    return file
                file.close()
        return None

    def _files(self, locked: list[str]) -> Iterator[tuple[str, os.stat_result]]:
        root = self._paths.root
        top = open_folder(root, root.parent)
        if top is None:
            return
        try:
            yield from regular_files(top, _LEFT_OUT, locked)
        finally:
            os.close(top)

    def _shown(self, name: str, names: set[str]) -> str:
        """Return the path for users of the file with this name below RESULT_DIR."""
        short = name.removeprefix(self._code)
        return name if short in names else short

    def _is_written(self, name: str, status: os.stat_result) -> bool:
        if status.st_nlink > 1:  # the program may have linked a file from outside
            return False
        parts = tuple(name.split("/"))
        if parts[:-2] == self._logs and parts[-1] in _INTERNAL:
            return False
        return not name.startswith(self._copy) or not self._is_submitted(name, status)

    def _is_submitted(self, name: str, status: os.stat_result) -> bool:
        """Return whether a file in the working copy of the code still has its submitted content."""
        if status.st_ctime <= self._submitted_at:  # a program cannot choose this time
            return True
        if self._bundle is None:
            return False
        now = self._paths.opened(self._paths.root / name)
        if now is None:
            return False
        with now:
            try:
                with (self._bundle / name.removeprefix(self._copy)).open("rb") as submitted:
                    return os.fstat(submitted.fileno()).st_size == status.st_size and _are_equal(now, submitted)
            except FileNotFoundError:
                return False


def _are_equal(first: BinaryIO, second: BinaryIO) -> bool:
    while chunk := first.read(_CHUNK):
        if chunk != second.read(_CHUNK):
            return False
    return not second.read(1)


def _is_usable(name: str) -> bool:
    """Return whether a URL and a terminal can show a name."""
    try:
        return name.isprintable() and bool(name.encode())
    except UnicodeEncodeError:
        return False
