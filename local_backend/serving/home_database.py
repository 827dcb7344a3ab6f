"""Opens the database of a home, and saves it before a migration. Seals what earlier versions stored in clear, also in
the files of jobs."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from local_backend.forward import orders
from local_backend.runtime.launch import forget_variables
from local_backend.serving.saved_database import save, way_back
from local_backend.settings import Settings
from local_backend.store import execs
from local_backend.store.database import Database
from local_backend.store.errors import DatabaseError
from local_backend.store.migrations.upgrade import IN_CLEAR, VERSIONS, version
from local_backend.vault import Vault, VaultError


def opened(settings: Settings) -> Database:
    """Open the database of a home, and return it. A database of an earlier version is saved, then migrated. The caller
    holds the lock of the home, and its folders exist. Raises DatabaseError and OSError."""
    seal = Vault(settings.paths.vault).seal_text
    database = Database(settings.where)
    saved = None
    try:
        before = _earlier_version(settings, database)
        if before is not None:
            saved = save(settings, before)
        # Files before the database: the old version in the database makes the next call repeat an interrupted upgrade.
        in_clear = before is not None and before <= IN_CLEAR
        if in_clear:
            for name in filter(execs.is_exec_id, os.listdir(settings.paths.jobs)):
                forget_variables(settings.paths.job(name, ""))
            orders.reseal(settings.paths, seal)
        database.open(seal)
        if in_clear and saved is not None:
            saved.unlink()  # it has secrets in clear
    except (VaultError, DatabaseError) as problem:
        database.close()
        back = "" if saved is None else f"; the database as it was before: {way_back(saved)}"
        raise DatabaseError(f"{problem}{back}") from None
    except BaseException:
        database.close()
        raise
    return database


def _earlier_version(settings: Settings, database: Database) -> str | None:
    """Return the schema of the database if it is one of an earlier version."""
    if isinstance(settings.where, Path) and not settings.where.exists():
        return None
    try:
        found = database.read(version)
    except (SQLAlchemyError, DatabaseError, UnicodeDecodeError):
        # Opening the database reports the error. The last class: SQLite may quote damaged bytes in its message.
        return None
    return found if found in VERSIONS[:-1] else None
