"""Group commit: writes that wait together share one commit, and a failed write does not affect the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, insert, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from support import eventually

from local_backend.store import execs
from local_backend.store.database import Database
from local_backend.store.schema import documents

Work = Callable[[Connection], Any]


@contextmanager
def together(database: Database, works: Sequence[Work]) -> Iterator[list[Future[Any]]]:
    """Queue these writes at once, behind a write that keeps the writer busy until all of them wait."""
    busy, go = threading.Event(), threading.Event()

    def hold(_connection: Connection) -> None:
        busy.set()
        go.wait(60)

    with ThreadPoolExecutor(len(works) + 1) as pool:
        first = pool.submit(database.write, hold)
        assert busy.wait(60)
        asked = []
        for number, work in enumerate(works, 1):
            asked.append(pool.submit(database.write, work))
            eventually(lambda number=number: database._jobs.qsize() == number, "the transaction is in the queue")
        go.set()
        first.result(60)
        yield asked


def note(name: str) -> Work:
    def work(connection: Connection) -> str:
        connection.execute(insert(documents).values(name=name, text="x"))
        return name

    return work


def names(database: Database) -> set[str]:
    return set(database.read(lambda c: c.execute(text("SELECT name FROM documents")).scalars().all()))


def test_waiting_writes_share_one_commit(database: Database) -> None:
    before = database.changes
    with together(database, [execs.next_number] * 5) as asked:
        assert [one.result(60) for one in asked] == [1, 2, 3, 4, 5]
    assert database.changes == before + 2


def test_a_failed_write_does_not_affect_the_other_writes(database: Database) -> None:
    def refused(connection: Connection) -> None:
        note("refused")(connection)
        raise ValueError("no more")

    with together(database, [note("a"), refused, note("a"), note("b")]) as asked:
        first, second, third, fourth = asked
        assert (first.result(60), fourth.result(60)) == ("a", "b")
        with pytest.raises(ValueError, match="no more"):
            second.result(60)
        with pytest.raises(IntegrityError):
            third.result(60)
    assert names(database) == {"a", "b"}


def test_a_database_error_fails_all_writes_of_the_commit(database: Database) -> None:
    def breaks(connection: Connection) -> None:
        connection.execute(text("INSERT INTO nothing VALUES (1)"))

    with together(database, [note("a"), breaks, note("b")]) as asked:
        for one in asked:
            with pytest.raises(DBAPIError):
                one.result(60)
    assert names(database) == set()
    assert database.write(note("c")) == "c" and names(database) == {"c"}


def test_waiting_writes_are_committed_when_the_database_closes(database: Database) -> None:
    works = [note(f"{number}") for number in range(70)]
    with together(database, works) as asked:
        database._jobs.put(None)
        assert [one.result(60) for one in asked] == [f"{number}" for number in range(70)]
    eventually(lambda: not database._writer.is_alive(), "the writer ends")
    assert len(names(database)) == 70
