"""The embedded database: one SQLite file.

Python is often linked against an SQLite inside the WAL-reset corruption range (3.7.0 to 3.51.2, but for 3.50.7 and
later 3.50s and 3.44.6 and later 3.44s). There the rollback journal is used with full synchronisation, elsewhere WAL.
"""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DatabaseError, DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

#: Connections for reading that are kept: as many as can read at once on a small machine. Each has a cache of 2 MB.
_READERS = 4

_log = logging.getLogger(__name__)


def wal_is_safe(version: tuple[int, ...]) -> bool:
    """Whether this SQLite may use write-ahead logging; see the module's docstring for the source of the ranges."""
    return version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45)


class Sqlite:
    """A database in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: What messages call it.
        self.name = str(path)

    def prepare(self) -> None:
        """Make the file, for its owner alone. Raises OSError."""
        self.path.touch(mode=0o600, exist_ok=True)
        self.path.chmod(0o600)

    @staticmethod
    def damage(connection: Connection) -> str | None:
        """What is damaged, None when nothing is."""
        # Not quick_check: only the full one compares rows with their indexes, and sees a damaged id or state.
        try:
            found = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
        except DatabaseError as problem:
            if type(problem) is not DatabaseError:
                raise  # it is locked, or its disk fails
            found = problem.orig
        return None if found == "ok" else " ".join(str(found).split())

    @staticmethod
    def overwrite(engine: Engine) -> None:
        """Leave nothing in the file of what has been changed or deleted; as far as there is room for a copy of it."""
        with engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            try:
                driver.execute("VACUUM")
                driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.OperationalError as problem:
                _log.warning("what was deleted may still lie in free parts of the database: %s", problem)

    def engine(self, read_only: bool) -> Engine:
        """Connections for reading, or the one for writing."""
        url = URL.create("sqlite", database=str(self.path))
        # Opening the file and reading its schema takes longer than most queries, so that some connections are kept;
        # readers beyond them do not wait for one, but open their own. The writer has its one connection.
        options: dict[str, Any] = {"pool_size": _READERS if read_only else 1, "max_overflow": -1 if read_only else 0}
        # Values may be secrets (a spec holds the variables of its job), and texts of errors are logged.
        options["hide_parameters"] = True
        engine = create_engine(url, connect_args={"timeout": 30, "check_same_thread": False}, **options)

        @event.listens_for(engine, "connect")
        def _configure(connection: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
            record.info["file"] = _identity(self.path)
            connection.isolation_level = None  # transactions are begun below, not by the driver
            if read_only:
                connection.execute("PRAGMA query_only=ON")
                return
            mode = "WAL" if wal_is_safe(sqlite3.sqlite_version_info) else "DELETE"
            connection.execute(f"PRAGMA journal_mode={mode}")
            connection.execute("PRAGMA synchronous=FULL")

        @event.listens_for(engine, "checkout")
        def _same_file(_connection: object, record: ConnectionPoolEntry, _proxy: object) -> None:
            if read_only and record.info["file"] != _identity(self.path):
                raise DisconnectionError  # the kept connection would read a file that was taken away

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

        return engine


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file, None when it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
