"""Removes ended execs on request, with or without a running server."""

from __future__ import annotations

import time
import urllib.error
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from dlicmd.contract import wire
from local_backend.runtime.removal import Remover
from local_backend.runtime.retention import Expired, discard, expired
from local_backend.runtime.sizes import Sizes
from local_backend.serving.server import ServingError, locked, make_home, open_database
from local_backend.settings import Quotas, Settings
from local_backend.store import execs
from local_backend.store.database import Database
from local_backend.store.errors import DatabaseError


class PruneError(Exception):
    """The operation is impossible. The text is one line."""


def candidates(settings: Settings, quotas: Quotas) -> list[Expired]:
    """Return the execs that these quotas do not keep. Changes nothing. Raises PruneError."""
    where = settings.where
    if isinstance(where, Path) and not where.exists():
        return []
    sizes = Sizes(settings.paths)
    try:
        with closing(Database(where)) as database:
            rows = database.read(execs.briefs)
    except (SQLAlchemyError, DatabaseError) as problem:
        raise PruneError(f"cannot read the database: {getattr(problem, 'orig', None) or problem}") from None
    sizes.measure(rows)
    return expired(rows, sizes.of, quotas, time.time())


def remove(settings: Settings, found: Iterable[Expired], delete: Callable[[str], object] | None) -> list[Expired]:
    """Remove the execs in `found`. Return the execs that still existed. `delete` sends a DELETE for a path to the
    server; it is None if no server runs. Raises PruneError."""
    if delete is not None:
        return [item for item in found if _deleted(item, delete)]
    try:
        make_home(settings)
        with locked(settings):
            database = open_database(settings)
            remover = Remover(settings.paths, database)
            try:
                gone = discard(database, found)
                for item in gone:
                    remover.remove(settings.paths.job(item.row.id, item.row.creator))
            finally:
                remover.finish()
                database.close()
            return gone
    except ServingError as problem:
        raise PruneError(str(problem)) from None


def _deleted(item: Expired, delete: Callable[[str], object]) -> bool:
    try:
        delete(wire.exec_path(item.row.id))
    except urllib.error.HTTPError as problem:
        if problem.code == 400:
            return False  # another call has deleted it
        raise PruneError(f"the server did not delete {item.row.id}: {problem}") from None
    except OSError as problem:
        raise PruneError(f"the server did not answer: {problem}") from None
    return True
