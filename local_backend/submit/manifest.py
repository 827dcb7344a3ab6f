"""The list of submitted files. Their program runs in the same folder, and may write other files beside them."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from local_backend.files import read_json, write_json
from local_backend.runtime.paths import ExecPaths

#: Maximum number of files in the list, and of folders to search.
MOST, _MOST_FOLDERS = 2000, 10_000
#: Folder that Python makes from the files; no user writes it.
_LEFT_OUT = "__pycache__"
_FILES, _COMPLETE = "files", "complete"


def write(paths: ExecPaths) -> None:
    """Store the names of the files that were just put in place. The list is not forced to the disk: without it, `read`
    returns the files that are there. Raises OSError."""
    names, complete = _found(paths.submitted)
    write_json(paths.submitted_names, {_FILES: names, _COMPLETE: complete}, durable=False)


def read(paths: ExecPaths) -> tuple[list[str], bool]:
    """Return the names of the submitted files, relative to their folder, and whether the list is complete. Without a
    stored list, return the names of all files that are there now. A listed file may be missing, or not be a file any
    more. Raises OSError."""
    noted = read_json(paths.submitted_names)
    if not isinstance(noted, dict) or not isinstance(names := noted.get(_FILES), list):
        return _found(paths.submitted)
    # The program of the exec can write the list, too.
    sane = [name for name in names if isinstance(name, str) and _is_below(name)]
    return sane[:MOST], noted.get(_COMPLETE) is True


def _is_below(name: str) -> bool:
    return "\0" not in name and not {"", ".", ".."} & set(name.split("/"))


def _found(top: Path) -> tuple[list[str], bool]:
    """Return the names of files below a folder, outer folders first, and whether these are all. Links are left out."""
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
