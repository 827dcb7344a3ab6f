"""A writer, checkpoints and readers on one database at the same time: every write that was acknowledged is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, func, insert, select
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError

from local_backend.store.database import Database
from local_backend.store.schema import documents

WRITERS, READERS = 4, 3


class Endurance:
    """Writers that count what was acknowledged to each, readers that never see less than that; until `over`."""

    def __init__(self, database: Database, over: Callable[[], bool]) -> None:
        self._database, self._over = database, over
        self._acknowledged = [0] * WRITERS

    def run(self, checkpoint: Callable[[], None]) -> int:
        """How many writes were acknowledged. Raises what went wrong."""
        work = [*(lambda n=n: self._write(n) for n in range(WRITERS)), *[self._read] * READERS,
                lambda: self._again(checkpoint)]
        with ThreadPoolExecutor(len(work)) as pool:
            for done in [pool.submit(one) for one in work]:
                done.result()
        return sum(self._acknowledged)

    def _write(self, writer: int) -> None:
        while not self._over():
            name = f"{writer}-{self._acknowledged[writer]}"
            self._database.write(lambda c, name=name: c.execute(insert(documents).values(name=name, text="x" * 500)))
            self._acknowledged[writer] += 1

    def _read(self) -> None:
        while not self._over():
            before = sum(self._acknowledged)
            found = self._database.read(count)
            assert before <= found, "a write that was acknowledged is not seen"
            assert found <= sum(self._acknowledged) + WRITERS, "a write is there that nobody has asked for"

    def _again(self, checkpoint: Callable[[], None]) -> None:
        while not self._over():
            checkpoint()


def count(connection: Connection) -> int:
    return int(connection.execute(select(func.count()).select_from(documents)).scalar_one())
