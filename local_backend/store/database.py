"""One embedded database: a single writer thread does every write, readers have connections of their own.

Python is often linked against an SQLite inside the WAL-reset corruption range (3.7.0 to 3.51.2, but for 3.50.7 and
later 3.50s and 3.44.6 and later 3.44s). There the rollback journal is used with full synchronisation, elsewhere WAL.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool

T = TypeVar("T")


class DatabaseError(RuntimeError):
    """The database file cannot be used; the message names the file and what to do."""


def wal_is_safe(version: tuple[int, ...]) -> bool:
    """Whether this SQLite may use write-ahead logging; see the module's docstring for the source of the ranges."""
    return version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45)


class Database:
    """The database in one file. `open` first, `close` last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Grows with every committed write: who saw this number before reading need not read again while it stays.
        self.changes = 0
        self._jobs: queue.SimpleQueue[tuple[Callable[[Connection], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_loop, name="database-writer", daemon=True)
        self._write_engine = self._engine(read_only=False)
        self._read_engine = self._engine(read_only=True)

    def open(self) -> None:
        """Create or migrate the file and start the writer.

        Raises:
            DatabaseError: the file is damaged, unreadable, or written by a newer version.
        """
        from local_backend.store.migrations.upgrade import NewerDatabase, upgrade

        try:
            self.path.touch(mode=0o600, exist_ok=True)
            self.path.chmod(0o600)
            with self._write_engine.connect() as connection:
                # Not quick_check: only the full one compares rows with their indexes, and sees a damaged id or state.
                found = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
                if found != "ok":
                    what = " ".join(str(found).split())
                    raise DatabaseError(f"{self.path} is damaged ({what}); restore a backup of it or move it away")
            upgrade(self._write_engine)
        except DatabaseError:
            raise
        except NewerDatabase as problem:
            raise DatabaseError(f"{self.path}: {problem}") from None
        except Exception as problem:
            raise DatabaseError(f"cannot use the database {self.path}: {_first_line(problem)}") from problem
        self._writer.start()

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction of its own on the writer thread; what it raises rolls back and is raised here."""
        result: Future[T] = Future()
        self._jobs.put((work, result))
        return result.result()

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on a read-only connection."""
        with self._read_engine.connect() as connection:
            return work(connection)

    def close(self) -> None:
        """Finish the writes already asked for and close all connections."""
        if self._writer.is_alive():
            self._jobs.put(None)
            self._writer.join()
        self._write_engine.dispose()
        self._read_engine.dispose()

    def _write_loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, result = job
            try:
                with self._write_engine.begin() as connection:
                    value = work(connection)
                self.changes += 1
                result.set_result(value)
            except BaseException as problem:
                result.set_exception(problem)

    def _engine(self, read_only: bool) -> Engine:
        url = URL.create("sqlite", database=str(self.path))
        # NullPool for readers: a connection lives as long as one request. The writer keeps its one connection.
        options: dict[str, Any] = {"poolclass": NullPool} if read_only else {"pool_size": 1, "max_overflow": 0}
        # Values may be secrets (a spec holds the variables of its job), and texts of errors are logged.
        options["hide_parameters"] = True
        engine = create_engine(url, connect_args={"timeout": 30, "check_same_thread": False}, **options)

        @event.listens_for(engine, "connect")
        def _configure(connection: sqlite3.Connection, _record: object) -> None:
            connection.isolation_level = None  # transactions are begun below, not by the driver
            if read_only:
                connection.execute("PRAGMA query_only=ON")
                return
            mode = "WAL" if wal_is_safe(sqlite3.sqlite_version_info) else "DELETE"
            connection.execute(f"PRAGMA journal_mode={mode}")
            connection.execute("PRAGMA synchronous=FULL")

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

        return engine


def _first_line(problem: Exception) -> str:
    original = getattr(problem, "orig", None) or problem
    return str(original).splitlines()[0] if str(original) else type(original).__name__
