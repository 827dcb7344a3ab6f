"""Removes the files of deleted execs in a thread beside the supervisor."""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from sqlalchemy.exc import SQLAlchemyError

from local_backend.files import remove_tree
from local_backend.runtime import bundles
from local_backend.runtime.paths import ExecPaths, HomePaths
from local_backend.store import execs
from local_backend.store.database import Database

_log = logging.getLogger(__name__)
#: Maximum execs that one transaction deletes: each commit waits for the disk, and others write in between.
_TOGETHER = 100


class Remover:
    """Removes the files first and the row last, so that the next server resumes an interrupted removal. Code bundles
    come after the row, because rows say which bundles are in use."""

    def __init__(self, home: HomePaths, database: Database) -> None:
        self._home, self._database = home, database
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="remover")
        self._asked: set[str] = set()
        self._waiting: deque[ExecPaths] = deque()

    def remove(self, paths: ExecPaths) -> None:
        """Remove an exec that has ended. A repeated call does nothing. If the removal fails, the next server tries
        again."""
        if paths.exec_id not in self._asked:
            self._asked.add(paths.exec_id)
            self._waiting.append(paths)
            self._pool.submit(self._remove).add_done_callback(_report)

    def close(self) -> None:
        """Finish the current removal, and drop the queued ones."""
        self._waiting.clear()
        self._pool.shutdown(cancel_futures=True)

    def finish(self) -> None:
        """Finish all queued removals."""
        self._pool.shutdown()

    def _remove(self) -> None:
        """Remove the files of some queued execs, then all their rows in one transaction. Later calls handle the rest:
        each queued exec has its own call."""
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
            named = self._database.write(lambda c: execs.remove(c, *gone))
            bundles.drop(self._home, self._database, named)


def _report(done: Future[None]) -> None:
    if done.cancelled():
        return
    problem = done.exception()
    if isinstance(problem, SQLAlchemyError | OSError):
        _failed(problem)
    elif problem is not None:
        raise problem


def _failed(problem: Exception) -> None:
    _log.error("cannot remove a deleted exec; the server tries again at its next start: %s", problem)
