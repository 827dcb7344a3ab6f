"""Documents that are stored as a whole. Each query takes the connection of a transaction (see database.py)."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from local_backend.store.schema import documents

#: The tree of resource plans, see scheduler/plans.py.
PLANS = "plans"


def read(connection: Connection, name: str) -> Any:
    """Return the document; None if it does not exist. Raises ValueError for a damaged one."""
    text = connection.execute(select(documents.c.text).where(documents.c.name == name)).scalar()
    return None if text is None else json.loads(text)


def write(connection: Connection, name: str, document: Any) -> None:
    """Replace the document."""
    connection.execute(delete(documents).where(documents.c.name == name))
    connection.execute(insert(documents).values(name=name, text=json.dumps(document)))
