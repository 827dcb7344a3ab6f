"""Secrets that execs need and no user may see. The caller seals them; they are deleted when the exec is over. Each
query takes the connection of a transaction (see database.py)."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from local_backend.store.schema import exec_secrets


def keep(connection: Connection, exec_id: str, sealed: str) -> None:
    """Store the sealed secrets of an exec that is being created."""
    connection.execute(insert(exec_secrets).values(exec_id=exec_id, sealed=sealed))


def of(connection: Connection, exec_id: str) -> str | None:
    """Return the sealed secrets of an exec; None if it has none, or is over."""
    found: str | None = connection.execute(
        select(exec_secrets.c.sealed).where(exec_secrets.c.exec_id == exec_id)
    ).scalar()
    return found


def forget(connection: Connection, exec_id: str) -> None:
    """Delete the secrets of an exec that is over."""
    connection.execute(delete(exec_secrets).where(exec_secrets.c.exec_id == exec_id))
