"""Opens the database of a home. Seals what earlier versions stored in clear, also in the files of jobs."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from local_backend.forward import orders
from local_backend.runtime.launch import forget_variables
from local_backend.settings import Settings
from local_backend.store import execs
from local_backend.store.database import Database
from local_backend.store.errors import DatabaseError
from local_backend.store.migrations.upgrade import IN_CLEAR, version
from local_backend.vault import Vault, VaultError


def opened(settings: Settings) -> Database:
    """Open the database of a home, and return it. The caller holds the lock of the home, and its folders exist. Raises
    DatabaseError and OSError."""
    seal = Vault(settings.paths.vault).seal_text
    database = Database(settings.where)
    try:
        # Files before the database: the old version in the database makes the next call repeat an interrupted upgrade.
        if _is_in_clear(settings, database):
            for name in filter(execs.is_exec_id, os.listdir(settings.paths.jobs)):
                forget_variables(settings.paths.job(name, ""))
            orders.reseal(settings.paths, seal)
        database.open(seal)
    except VaultError as problem:
        database.close()
        raise DatabaseError(str(problem)) from None
    except BaseException:
        database.close()
        raise
    return database


def _is_in_clear(settings: Settings, database: Database) -> bool:
    if isinstance(settings.where, Path) and not settings.where.exists():
        return False
    try:
        found = database.read(version)
    except (SQLAlchemyError, DatabaseError, UnicodeDecodeError):
        # Opening the database reports the error. The last class: SQLite may quote damaged bytes in its message.
        return False
    return found is not None and found <= IN_CLEAR
