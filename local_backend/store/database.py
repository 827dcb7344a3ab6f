"""One database, an SQLite file or a PostgreSQL one: a single writer thread does every write, readers have connections
of their own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import URL

from local_backend.store.errors import DatabaseError, Occupied
from local_backend.store.postgres import Postgres
from local_backend.store.sqlite import Sqlite

T = TypeVar("T")


class Database:
    """The database in a file, or at the address of a PostgreSQL one. `open` first, `close` last; `read` alone needs no
    `open` where the tables are there. Raises DatabaseError when the driver of PostgreSQL is missing."""

    def __init__(self, where: Path | URL) -> None:
        self._kind: Sqlite | Postgres = Sqlite(where) if isinstance(where, Path) else Postgres(where)
        #: What messages call it; no secret is in it.
        self.name = self._kind.name
        #: Grows with every committed write: who saw this number before reading need not read again while it stays.
        self.changes = 0
        self._jobs: queue.SimpleQueue[tuple[Callable[[Connection], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_loop, name="database-writer", daemon=True)
        self._write_engine = self._kind.engine(read_only=False)
        self._read_engine = self._kind.engine(read_only=True)

    def open(self) -> None:
        """Create or migrate the tables and start the writer.

        Raises:
            DatabaseError: the database is damaged, unreadable, used by another server, or written by a newer version.
        """
        from local_backend.store.migrations.upgrade import NewerDatabase, upgrade

        try:
            self._kind.prepare()
            with self._write_engine.connect() as connection:
                found = self._kind.damage(connection)
            if found is not None:
                raise DatabaseError(f"{self.name} is damaged ({found}); restore a backup of it or move it away")
            upgrade(self._write_engine)
        except DatabaseError:
            raise
        except (NewerDatabase, Occupied) as problem:
            raise DatabaseError(f"{self.name}: {problem}") from None
        except Exception as problem:
            raise DatabaseError(f"cannot use the database {self.name}: {_first_line(problem)}") from problem
        self._writer.start()

    def damage(self) -> str | None:
        """What is damaged, None when nothing is found. Raises what the database raises."""
        return self.read(self._kind.damage)

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


def _first_line(problem: Exception) -> str:
    original = getattr(problem, "orig", None) or problem
    return str(original).splitlines()[0] if str(original) else type(original).__name__
