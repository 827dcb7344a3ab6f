"""Which files were submitted. They lie where their program runs, which may write others beside them."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from local_backend.files import read_json, write_json
from local_backend.runtime.paths import ExecPaths

#: Files that are told about; folders that are looked into.
MOST, _MOST_FOLDERS = 2000, 10_000
#: What Python makes of the files, and nobody wrote.
_LEFT_OUT = "__pycache__"
_FILES, _COMPLETE = "files", "complete"


def write(paths: ExecPaths) -> None:
    """Note what has just been put in place. Not forced to the disk: less can be told without it. Raises OSError."""
    names, complete = _found(paths.submitted)
    write_json(paths.submitted_names, {_FILES: names, _COMPLETE: complete}, durable=False)


def read(paths: ExecPaths) -> tuple[list[str], bool]:
    """Names below the folder of what was submitted, and whether they are all; of an exec without a note those of all
    that is there now. Of none of them is it said that it is there, and a file. Raises OSError."""
    noted = read_json(paths.submitted_names)
    if not isinstance(noted, dict) or not isinstance(names := noted.get(_FILES), list):
        return _found(paths.submitted)
    # Its program can write there, too.
    sane = [name for name in names if isinstance(name, str) and _is_below(name)]
    return sane[:MOST], noted.get(_COMPLETE) is True


def _is_below(name: str) -> bool:
    return "\0" not in name and not {"", ".", ".."} & set(name.split("/"))


def _found(top: Path) -> tuple[list[str], bool]:
    """Names of files below a folder, those of outer folders first, and whether they are all. Links are left out."""
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
