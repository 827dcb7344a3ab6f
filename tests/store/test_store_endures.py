"""Concurrent writers, checkpoints and readers on one database: no acknowledged write is lost."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, func, insert, select

from local_backend.store.database import Database
from local_backend.store.schema import documents

WRITERS, READERS = 4, 3


class Endurance:
    """Runs until `over`: each writer counts its acknowledged writes, and no reader may see fewer."""

    def __init__(self, path: Path) -> None:
        self.path, self.database = path, Database(path)
        self.acknowledged = [0] * WRITERS
        self.over = False

    def run(self, is_enough: Callable[[int], bool]) -> None:
        """Run all threads until `is_enough` accepts the number of acknowledged writes. Raises the error of a thread."""
        def until_over(work: Callable[[], None]) -> None:
            try:
                while not self.over:
                    work()
                    self.over = self.over or is_enough(sum(self.acknowledged))
            finally:
                self.over = True

        writers = [lambda n=n: self._write(n) for n in range(WRITERS)]
        with ThreadPoolExecutor() as pool:
            for done in [pool.submit(until_over, one) for one in [*writers, *[self._read] * READERS, self._checkpoint]]:
                done.result()

    def _write(self, writer: int) -> None:
        name = f"{writer}-{self.acknowledged[writer]}"
        self.database.write(lambda c: c.execute(insert(documents).values(name=name, text="x" * 500)))
        self.acknowledged[writer] += 1

    def _read(self) -> None:
        before = sum(self.acknowledged)
        found = self.database.read(count)
        assert before <= found, "a reader misses an acknowledged write"
        assert found <= sum(self.acknowledged) + WRITERS, "a reader sees a write that was not requested"

    def _checkpoint(self) -> None:
        """Run a checkpoint in another connection, as a tool does that inspects the database of a running server."""
        with closing(sqlite3.connect(self.path, timeout=30)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def count(connection: Connection) -> int:
    return int(connection.execute(select(func.count()).select_from(documents)).scalar_one())


def endure(path: Path, is_enough: Callable[[int], bool]) -> None:
    endurance = Endurance(path)
    endurance.database.open()
    endurance.run(is_enough)
    endurance.database.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        names = {name for (name,) in connection.execute("SELECT name FROM documents")}
    written = {f"{n}-{turn}" for n, last in enumerate(endurance.acknowledged) for turn in range(last)}
    assert names == written


def test_every_acknowledged_write_is_in_the_database(tmp_path: Path) -> None:
    endure(tmp_path / "x.db", lambda written: written >= 200)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_acknowledged_writes_survive_15_minutes_of_load(tmp_path: Path) -> None:
    ends = time.monotonic() + 900
    endure(tmp_path / "x.db", lambda _: time.monotonic() >= ends)
