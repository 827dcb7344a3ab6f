"""TMPDIR of an attempt: made when the attempt begins, removed after its last process.

Its path is short, because the path of a socket may have at most 107 bytes. So the folder is in the temporary folder of
the server, and a link in the exec's folder names it.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from local_backend.files import remove_tree
from local_backend.runtime.paths import ExecPaths

_PREFIX = "dli-"


def make(paths: ExecPaths) -> Path:
    """Return a new, empty folder that only this user can read. Remove the folder of an earlier attempt. Raises
    OSError."""
    remove(paths)
    folder = Path(tempfile.gettempdir(), f"{_PREFIX}{os.urandom(8).hex()}")
    os.symlink(folder, paths.temporary)  # first, so that no folder without a link is left when this process is killed
    folder.mkdir(mode=0o700)
    return folder


def remove(paths: ExecPaths) -> None:
    """Remove TMPDIR of the last attempt, if it exists. Files that cannot be removed stay. A program may have replaced
    the link."""
    with suppress(OSError):
        folder = Path(os.readlink(paths.temporary))
        if folder.name.startswith(_PREFIX) and folder.lstat().st_uid == os.geteuid():
            remove_tree(folder)
    with suppress(OSError):
        if paths.temporary.is_dir() and not paths.temporary.is_symlink():
            remove_tree(paths.temporary)
        else:
            paths.temporary.unlink(missing_ok=True)
