"""The embedded database: one SQLite file.

Python is often linked against an SQLite version that can corrupt a database on a WAL reset. These are 3.7.0 to
3.51.2, except 3.50.7 and later 3.50 versions, and 3.44.6 and later 3.44 versions. With them, the rollback journal is
used, with other versions WAL; both with full synchronization.
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

#: Connections for reading that are kept open: as many as can read at once on a small machine. Each caches 2 MB.
_READERS = 4

_log = logging.getLogger(__name__)


def wal_is_safe(version: tuple[int, ...]) -> bool:
    """Return whether this SQLite may use write-ahead logging. The module's docstring explains the ranges."""
    return version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45)


class Sqlite:
    """A database in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Name of the database in messages.
        self.name = str(path)

    def prepare(self) -> None:
        """Create the file with access for its owner alone. Raises OSError."""
        self.path.touch(mode=0o600, exist_ok=True)
        self.path.chmod(0o600)

    @staticmethod
    def damage(connection: Connection) -> str | None:
        """Return what is damaged; None if nothing is."""
        # Not quick_check: only the full check compares rows with their indexes, and finds a damaged id or state.
        try:
            found = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
        except DatabaseError as problem:
            if type(problem) is not DatabaseError:
                raise  # the database is locked, or its disk fails
            found = problem.orig
        return None if found == "ok" else " ".join(str(found).split())

    @staticmethod
    def overwrite(engine: Engine) -> None:
        """Erase changed and deleted data from the file, if there is space for a copy; else log a warning."""
        with engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            try:
                driver.execute("VACUUM")
                driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.OperationalError as problem:
                _log.warning("what was deleted may still lie in free parts of the database: %s", problem)

    def engine(self, read_only: bool) -> Engine:
        """Return an engine for reading, or the one for writing."""
        url = URL.create("sqlite", database=str(self.path))
        # Opening the file and reading its schema takes longer than most queries, so some connections are kept.
        # Further readers do not wait, but open their own connection. The writer has one connection.
        options: dict[str, Any] = {"pool_size": _READERS if read_only else 1, "max_overflow": -1 if read_only else 0}
        # Values may be secrets (a spec holds the variables of its job), and texts of errors are logged.
        options["hide_parameters"] = True
        engine = create_engine(url, connect_args={"timeout": 30, "check_same_thread": False}, **options)

        @event.listens_for(engine, "connect")
        def _configure(connection: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
            record.info["file"] = _identity(self.path)
            connection.isolation_level = None  # `_begin` below begins transactions, not the driver
            if read_only:
                connection.execute("PRAGMA query_only=ON")
                return
            mode = "WAL" if wal_is_safe(sqlite3.sqlite_version_info) else "DELETE"
            connection.execute(f"PRAGMA journal_mode={mode}")
            connection.execute("PRAGMA synchronous=FULL")

        @event.listens_for(engine, "checkout")
        def _same_file(_connection: object, record: ConnectionPoolEntry, _proxy: object) -> None:
            if read_only and record.info["file"] != _identity(self.path):
                raise DisconnectionError  # the kept connection would read a file that was removed

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

        return engine


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
