"""Opens the database of a home. What earlier versions kept there in clear is sealed on the way, also in the files of
jobs."""

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
    """The database, open; the caller holds the lock of the home, whose folders are there. Raises DatabaseError and
    OSError."""
    seal = Vault(settings.paths.vault).seal_text
    database = Database(settings.where)
    try:
        # The files first: should this be cut short, the version of the database brings the next one here again.
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
    except (SQLAlchemyError, DatabaseError):
        return False  # opening it says what is wrong
    return found is not None and found <= IN_CLEAR
