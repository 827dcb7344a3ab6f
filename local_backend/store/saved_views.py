"""Queries on the saved views of users. Each takes the connection of a transaction (see database.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from local_backend.store.schema import saved_views


def of(connection: Connection, user: str) -> dict[str, dict[str, Any]]:
    """Return the queries of the views of a user by name, in the order of the names."""
    query = select(saved_views.c.name, saved_views.c.query).where(saved_views.c.user == user)
    return {str(name): json.loads(text) for name, text in sorted(map(tuple, connection.execute(query)))}


def write(connection: Connection, user: str, name: str, query: Mapping[str, Any]) -> None:
    """Save a view, and replace the view of this name."""
    remove(connection, user, name)
    connection.execute(insert(saved_views).values(user=user, name=name, query=json.dumps(query)))


def remove(connection: Connection, user: str, name: str) -> bool:
    """Delete a view; return whether it existed."""
    chosen = (saved_views.c.user == user, saved_views.c.name == name)
    return connection.execute(delete(saved_views).where(*chosen)).rowcount > 0
