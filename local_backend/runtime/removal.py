"""Removes the files of deleted execs, beside the supervisor's own work."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import stat
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from local_backend.runtime.paths import ExecPaths
from local_backend.store import execs
from local_backend.store.database import Database

_log = logging.getLogger(__name__)
#: Folders below this depth are moved up where removal fails: ten of the longest names still make a short path.
_DEPTH = 10
#: Execs that are forgotten in one transaction, at most: each commit waits for the disk, and others write in between.
_TOGETHER = 100


class Remover:
    """Removes files first and the row last, so that an interrupted removal is taken up again by the next server."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="remover")
        self._asked: set[str] = set()
        self._waiting: deque[ExecPaths] = deque()

    def remove(self, paths: ExecPaths) -> None:
        """Remove an exec that has ended. Asked again, nothing happens; one that cannot be removed is tried again by
        the next server."""
        if paths.exec_id not in self._asked:
            self._asked.add(paths.exec_id)
            self._waiting.append(paths)
            self._pool.submit(self._remove).add_done_callback(_report)

    def close(self) -> None:
        """Finish what is being removed now."""
        self._waiting.clear()
        self._pool.shutdown(cancel_futures=True)

    def finish(self) -> None:
        """Remove all that was asked for."""
        self._pool.shutdown()

    def _remove(self) -> None:
        """Remove the files of some that wait, then all their rows at once; what remains is for the next call, of which
        there is one for each."""
        gone: list[str] = []
        while self._waiting and len(gone) < _TOGETHER:
            paths = self._waiting.popleft()
            try:
                for folder in (paths.root, paths.state):
                    remove_tree(folder)
            except OSError as problem:
                _failed(problem)
            else:
                gone.append(paths.exec_id)
        if gone:
            self._database.write(lambda c: execs.remove(c, *gone))


def _report(done: Future[None]) -> None:
    if done.cancelled():
        return
    problem = done.exception()
    if isinstance(problem, SQLAlchemyError):
        _failed(problem)
    elif problem is not None:
        raise problem


def _failed(problem: Exception) -> None:
    _log.error("a deleted exec could not be removed, the next start tries again: %s", problem)


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it, links not followed, permissions that a program took away given back. Of
    one that a program has replaced by a link, the link.

    Raises OSError when something cannot be removed; no error when there is no such folder.
    """
    def retry(remove: Callable[..., Any], path: str, _why: object) -> None:
        if not os.path.lexists(path):
            return
        for locked in (os.path.dirname(path), path):
            if not os.path.islink(locked):
                os.chmod(locked, stat.S_IRWXU)
        if remove in (os.unlink, os.rmdir):
            remove(path)
        else:
            shutil.rmtree(path)

    if folder.is_symlink():
        folder.unlink()
        return
    try:
        shutil.rmtree(folder, onerror=retry)
    except (RecursionError, OSError):
        # Nested more deeply than calls, descriptors or the length of a path allow?
        if not _flatten(folder):
            raise
        shutil.rmtree(folder, onerror=retry)


def _flatten(folder: Path) -> bool:
    """Move every folder that lies too deep up to the top, again and again; whether there was one."""
    any_moved, moved = False, True
    while moved:
        moved = False
        for base, names, _ in os.walk(folder):
            if len(Path(base).relative_to(folder).parts) < _DEPTH:
                continue
            for name in names:
                os.rename(os.path.join(base, name), folder / secrets.token_hex(8))
                any_moved = moved = True
            names.clear()
    return any_moved
