"""The two folders of an exec, made with its number. After a crash at any time, the next server knows its own folders.

Several backends may share DLI_RESULT_FS, and each counts its own numbers. The backend that first makes the result
folder of a number owns the number there. The backend makes the folder under a temporary name, with content, and then
renames it. The rename fails if a folder with content has that name already. The backend's own folder exists before
that. A note in it names the temporary name and the inode of the result folder, so that the folder of another backend is
never taken for it.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Any

from local_backend.files import read_json, write_json
from local_backend.runtime.paths import ExecPaths, HomePaths
from local_backend.store import execs
from local_backend.store.database import Database

#: Fields of the note. The launch description later replaces it in the same file.
_USER, _MADE_AS, _INODE = "user", "madeAs", "inode"
#: Errors of the rename when another backend has the name.
_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR})


def reserve(home: HomePaths, database: Database, user: str) -> tuple[int, ExecPaths]:
    """Reserve a new number with its two folders and the note that names the user; return number and paths. Numbers
    whose result folder belongs to another backend are left alone. Raises OSError, and errors of the database."""
    while True:
        number = database.write(execs.next_number)
        paths = home.job(execs.exec_id(number), user)
        paths.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths.state.mkdir(mode=0o700, parents=True)
        if _made(paths, user):
            return number, paths


def _made(paths: ExecPaths, user: str) -> bool:
    """Make the result folder, with the folder for the upload in it. Return False if another backend has it."""
    made = paths.root.with_name(f".{paths.exec_id}.{secrets.token_hex(4)}.tmp")
    note: dict[str, Any] = {_USER: user, _MADE_AS: made.name}
    try:
        write_json(paths.spec, note, durable=False)
        made.mkdir(mode=0o700)
        (made / paths.submitted.name).mkdir(mode=0o700)
        write_json(paths.spec, note | {_INODE: _inode(made)}, durable=False)
        os.rename(made, paths.root)
    except BaseException as problem:
        shutil.rmtree(made, ignore_errors=True)
        shutil.rmtree(paths.state, ignore_errors=True)
        if isinstance(problem, OSError) and problem.errno in _TAKEN:
            return False
        raise
    return True


def complete(paths: ExecPaths, user: str) -> None:
    """Note, durably, that both folders of an exec are its own. Raises OSError."""
    write_json(paths.spec, {_USER: user})


def discard(paths: ExecPaths) -> None:
    """Remove the folders of an exec that has no row, as far as possible; the next start of the server removes the rest.

    The user's tree is removed first: while the backend's folder exists, the next start knows that both must be removed.
    """
    shutil.rmtree(paths.root, ignore_errors=True)
    if not paths.root.exists():
        shutil.rmtree(paths.state, ignore_errors=True)


def sweep(home: HomePaths, known: set[str], user: str) -> list[str]:
    """Remove what an interrupted server left: uploads, and the folders of submissions that never got a row. Return the
    ids of these submissions.

    `known` are the ids of all rows. Results without a note about their user belong to `user`.
    """
    shutil.rmtree(home.incoming, ignore_errors=True)
    home.incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
    orphans = sorted(name for name in os.listdir(home.jobs) if execs.is_exec_id(name) and name not in known)
    for orphan in orphans:
        found = read_json(home.job(orphan, user).spec)
        _remove(home, orphan, found if isinstance(found, dict) else {}, user)
    return orphans


def _remove(home: HomePaths, exec_id: str, note: dict[str, Any], user: str) -> None:
    """Remove the folders of one exec, according to the note in the backend's folder."""
    named, made_as = note.get(_USER), note.get(_MADE_AS)
    if isinstance(named, str) and re.fullmatch(r"[\w@-][\w.@-]*", named):
        user = named
    paths = home.job(exec_id, user)
    begun = isinstance(made_as, str) and re.fullmatch(rf"\.{exec_id}\.[0-9a-f]{{8}}\.tmp", made_as) is not None
    if begun:
        shutil.rmtree(paths.root.with_name(str(made_as)), ignore_errors=True)
    if not note or (begun and note.get(_INODE) != _inode(paths.root)):
        shutil.rmtree(paths.state, ignore_errors=True)  # not renamed yet: another backend has that folder
    else:
        discard(paths)


def _inode(folder: Path) -> list[int] | None:
    """Return the device and inode of a folder, which do not depend on its name; None if it is missing."""
    try:
        found = folder.lstat()
    except OSError:
        return None
    return [found.st_dev, found.st_ino]
