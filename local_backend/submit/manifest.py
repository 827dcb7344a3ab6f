"""The list of submitted files."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from local_backend.runtime.paths import HomePaths
from local_backend.store.execs import ExecRow

#: Maximum number of files in the list, and of folders to search.
MOST, _MOST_FOLDERS = 2000, 10_000
#: Folder that Python makes from the files; no user writes it.
_LEFT_OUT = "__pycache__"


def read(home: HomePaths, row: ExecRow) -> tuple[list[str], bool]:
    """Return the names of the submitted files of an exec, outer folders first, and whether these are all. The names are
    relative to the folder of the submitted code. For an exec of an earlier version, which has no bundle, return all
    files that are in that folder now."""
    if row.bundle is None:
        return _found(home.job(row.id, row.creator).submitted)
    return _found(home.bundle(row.bundle))


def _found(top: Path) -> tuple[list[str], bool]:
    """Return the names of files below a folder, and whether these are all. Links are left out."""
    names: list[str] = []
    folders, looked = deque([""]), 0
    while folders and looked < _MOST_FOLDERS:
        inside = folders.popleft()
        looked += 1
        for entry in _entries(top / inside):
            if entry.is_dir(follow_symlinks=False) and entry.name != _LEFT_OUT:
                folders.append(f"{inside}{entry.name}/")
            elif entry.is_file(follow_symlinks=False):
                if len(names) == MOST:
                    return names, False
                names.append(inside + entry.name)
    return names, not folders


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        return []
