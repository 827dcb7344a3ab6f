"""A database, in an SQLite file or on a PostgreSQL server. A single writer thread does every write; readers have
their own connections."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import URL
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from local_backend.measures import DATABASE_WRITE_SECONDS
from local_backend.store import events
from local_backend.store.bus import Bus
from local_backend.store.errors import DatabaseError, Occupied
from local_backend.store.postgres import Postgres
from local_backend.store.sqlite import Sqlite

T = TypeVar("T")
_Job = tuple[Callable[[Connection], Any], "Future[Any]"]
#: Maximum number of writes that are committed together.
_TOGETHER = 64


class Database:
    """The database in a file, or at the address of a PostgreSQL database. Call `open` first and `close` last; `read`
    alone needs no `open` if the tables exist. Raises DatabaseError if the driver of PostgreSQL is missing."""

    def __init__(self, where: Path | URL) -> None:
        self._kind: Sqlite | Postgres = Sqlite(where) if isinstance(where, Path) else Postgres(where)
        #: Name of the database in messages; contains no secret.
        self.name = self._kind.name
        #: Grows with every write that may be committed. A reader that notes this number before it reads need not read
        #: again while the number stays the same.
        self.changes = 0
        #: Wakes the readers of the event stream.
        self.bus = Bus()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_loop, name="database-writer", daemon=True)
        self._write_engine = self._kind.engine(read_only=False)
        self._read_engine = self._kind.engine(read_only=True)

    def open(self, seal: Callable[[str], str] | None = None) -> None:
        """Create or migrate the tables and start the writer. `seal` is for databases of earlier versions, see
        migrations/upgrade.py.

        Raises:
            DatabaseError: the database is damaged, unreadable, used by another server, or written by a newer version.
        """
        from local_backend.store.migrations.upgrade import IN_CLEAR, NewerDatabase, upgrade

        try:
            self._kind.prepare()
            with self._write_engine.connect() as connection:
                found = self._kind.damage(connection)
            if found is not None:
                raise DatabaseError(f"{self.name} is damaged ({found}); restore a backup of it or move it away")
            before = upgrade(self._write_engine, seal)
            if before is not None and before <= IN_CLEAR:
                self._kind.overwrite(self._write_engine)
        except DatabaseError:
            raise
        except (NewerDatabase, Occupied) as problem:
            raise DatabaseError(f"{self.name}: {problem}") from None
        except Exception as problem:
            raise DatabaseError(f"cannot use the database {self.name}: {_first_line(problem)}") from problem
        self._writer.start()

    def damage(self) -> str | None:
        """Return what is damaged; None if no damage is found. Raises the errors of the database."""
        return self.read(self._kind.damage)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on the writer thread, as if in its own transaction. Return its result once it is on disk. If
        `work` raises an error, its changes are rolled back and the error is raised here."""
        result: Future[T] = Future()
        self._jobs.put((work, result))
        return result.result()

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on a read-only connection."""
        with self._read_engine.connect() as connection:
            return work(connection)

    def close(self) -> None:
        """Finish the writes that were already requested, and close all connections."""
        if self._writer.is_alive():
            self._jobs.put(None)
            self._writer.join()
        self._write_engine.dispose()
        self._read_engine.dispose()

    def _write_loop(self) -> None:
        while jobs := self._waiting():
            changed: set[str] | None = None
            try:
                with DATABASE_WRITE_SECONDS.time(), self._write_engine.begin() as connection:
                    if len(jobs) == 1:
                        outcomes = [jobs[0][0](connection)]
                    else:
                        outcomes = [_apart(connection, work) for work, _ in jobs]
                    changed = events.changed(connection)
            except BaseException as problem:
                outcomes = [_Failed(problem)] * len(jobs)
            if changed is not None:  # a commit whose answer was lost may have succeeded, too
                self.changes += 1
            if changed:
                self.bus.publish(changed)
            for (_, result), outcome in zip(jobs, outcomes, strict=True):
                if isinstance(outcome, _Failed):
                    result.set_exception(outcome.problem)
                else:
                    result.set_result(outcome)

    def _waiting(self) -> list[_Job]:
        """Return the pending writes, to be committed together, because each commit waits for the disk. Return an
        empty list when no more writes will come."""
        jobs = []
        job = self._jobs.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) == _TOGETHER or self._jobs.empty():
                return jobs
            job = self._jobs.get()
        if jobs:
            self._jobs.put(None)
        return jobs


class _Failed:
    """The error of a write."""

    def __init__(self, problem: BaseException) -> None:
        self.problem = problem


def _apart(connection: Connection, work: Callable[[Connection], Any]) -> Any:
    """Run one of several writes of a transaction. Raises errors that concern the database and not this write. All
    writes have then failed, because the state of the transaction is unknown."""
    try:
        with connection.begin_nested():
            return work(connection)
    except SQLAlchemyError as problem:
        if isinstance(problem, IntegrityError):
            return _Failed(problem)
        raise
    except Exception as problem:
        return _Failed(problem)


def _first_line(problem: Exception) -> str:
    original = getattr(problem, "orig", None) or problem
    return str(original).splitlines()[0] if str(original) else type(original).__name__
