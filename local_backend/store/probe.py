"""A test write to a row that no other code reads, to see whether the database accepts writes."""

from __future__ import annotations

from sqlalchemy import Connection, insert, update

from local_backend.store.schema import sequences

_NAME = "probe"


def write(connection: Connection) -> None:
    """Write the row. Raises the errors of the database."""
    count = update(sequences).where(sequences.c.name == _NAME).values(last=(sequences.c.last + 1) % 1_000_000)
    if connection.execute(count).rowcount == 0:
        connection.execute(insert(sequences).values(name=_NAME, last=0))
