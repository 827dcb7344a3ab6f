"""What execs need and nobody may see, sealed by who gives it here; gone when the exec is over. Each query takes the
connection of a transaction (see database.py)."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from local_backend.store.schema import exec_secrets


def keep(connection: Connection, exec_id: str, sealed: str) -> None:
    """Keep this for an exec that is being made."""
    connection.execute(insert(exec_secrets).values(exec_id=exec_id, sealed=sealed))


def of(connection: Connection, exec_id: str) -> str | None:
    """What is kept for an exec; None when there is nothing, or the exec is over."""
    found: str | None = connection.execute(
        select(exec_secrets.c.sealed).where(exec_secrets.c.exec_id == exec_id)
    ).scalar()
    return found


def forget(connection: Connection, exec_id: str) -> None:
    """The exec is over."""
    connection.execute(delete(exec_secrets).where(exec_secrets.c.exec_id == exec_id))
