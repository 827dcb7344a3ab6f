"""The two folders of an exec, from its number on: whenever the server dies, the next one knows which are its own.

Several backends may share DLI_RESULT_FS, and each counts for itself: who makes the result folder of a number first has
that number there. It comes into being under another name, with something in it, and gets its own by a rename, which
fails where a folder is that holds anything. The backend's own folder is there before, and says under which name that
happens and what the folder is, by its inode, so that another backend's is never taken for it.
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

#: Fields of the launch description before it is one. The user stays in it.
_USER, _MADE_AS, _INODE = "user", "madeAs", "inode"
#: What a rename says where another backend has the name.
_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR})


def reserve(home: HomePaths, database: Database, user: str) -> tuple[int, ExecPaths]:
    """A new number with its two folders, and the file that says whose they are. Numbers of which another backend has
    the result folder are left alone. Raises OSError, and what the database raises."""
    while True:
        number = database.write(execs.next_number)
        paths = home.job(execs.exec_id(number), user)
        paths.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths.state.mkdir(mode=0o700, parents=True)
        if _made(paths, user):
            return number, paths


def _made(paths: ExecPaths, user: str) -> bool:
    """Make the result folder, with the folder for the upload in it; False when another backend has it."""
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


def discard(paths: ExecPaths) -> None:
    """Remove the folders of an exec that has no row, as far as that is possible; a start of the server does the rest.

    The user's tree goes first: while the backend's folder is there, the next start knows that both are to go.
    """
    shutil.rmtree(paths.root, ignore_errors=True)
    if not paths.root.exists():
        shutil.rmtree(paths.state, ignore_errors=True)


def sweep(home: HomePaths, known: set[str], user: str) -> list[str]:
    """Remove what an interrupted server left: uploads, and the folders of submissions that never got a row.

    `known` are the ids of all rows; results that do not say whose they are belong to `user`. Returns the ids that were
    removed.
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
    """Remove the folders of one, by the note in the backend's."""
    named, made_as = note.get(_USER), note.get(_MADE_AS)
    if isinstance(named, str) and re.fullmatch(r"[\w@-][\w.@-]*", named):
        user = named
    paths = home.job(exec_id, user)
    begun = isinstance(made_as, str) and re.fullmatch(rf"\.{exec_id}\.[0-9a-f]{{8}}\.tmp", made_as) is not None
    if begun:
        shutil.rmtree(paths.root.with_name(str(made_as)), ignore_errors=True)
    if not note or (begun and note.get(_INODE) != _inode(paths.root)):
        shutil.rmtree(paths.state, ignore_errors=True)  # the results had no name yet: what has it is another backend's
    else:
        discard(paths)


def _inode(folder: Path) -> list[int] | None:
    """What a folder is, whatever its name; None when there is none."""
    try:
        found = folder.lstat()
    except OSError:
        return None
    return [found.st_dev, found.st_ino]
