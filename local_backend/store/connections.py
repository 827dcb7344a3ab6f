"""Connections: servers that hold data, and how to access them. Each query takes the connection of a transaction (see
database.py). Secrets are passed in and returned sealed."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from local_backend.store.schema import connections

#: The rule for names of connections, for error messages.
NAMES = "1 to 64 of A-Z a-z 0-9 . _ @ ( ) - and spaces, the first a letter, a digit or _, the last not a space"
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_. @()-]{0,62}[A-Za-z0-9_.@()-])?")


class ConnectionExists(ValueError):
    """The owner has a connection of that name already."""

    def __init__(self, name: str, where: str = "") -> None:
        super().__init__(f"A connection {name!r} already exists{where and ', '}{where}")


@dataclass(frozen=True)
class ConnectionRow:
    """One row of `connections`, with the same names."""

    id: str
    owner: str
    name: str
    kind: str
    public: str
    sealed: str | None
    shared: str
    created: float

    @property
    def values(self) -> dict[str, Any]:
        """Values that are not secret; for secrets, their source: {"env": NAME} or {"keyring": PLACE}."""
        found: dict[str, Any] = json.loads(self.public)
        return found

    @property
    def reference(self) -> str:
        """The name of the connection for every user: `owner/name`."""
        return f"{self.owner}/{self.name}"

    @property
    def shared_with(self) -> Sequence[str] | bool:
        """Users that may use the connection, beside its owner; True for all users."""
        found: Sequence[str] | bool = json.loads(self.shared)
        return found

    def is_shared_with(self, user: str) -> bool:
        """Return whether this user may use the connection without owning it."""
        shared = self.shared_with
        return shared is True or (not isinstance(shared, bool) and user in shared)


_COLUMNS = [connections.c[field.name] for field in fields(ConnectionRow)]


def is_name(text: str) -> bool:
    """Return whether a connection can have this name."""
    return _NAME.fullmatch(text) is not None


def add(  # noqa: PLR0917
    connection: Connection, owner: str, name: str, kind: str, public: Mapping[str, Any], sealed: str | None,
    shared: Sequence[str] | bool, replace: bool = False,
) -> ConnectionRow:
    """Add a connection. With `replace`, it replaces the owner's connection of that name and keeps the id. Raises
    ConnectionExists."""
    mine = (connections.c.owner == owner) & (connections.c.name == name)
    before = connection.execute(select(connections.c.id).where(mine)).scalar()
    if before is not None and not replace:
        raise ConnectionExists(name)
    connection.execute(delete(connections).where(mine))
    row = ConnectionRow(before or str(uuid.uuid4()), owner, name, kind, json.dumps(dict(public)), sealed,
                        json.dumps(shared if isinstance(shared, bool) else sorted(set(shared))), time.time())
    connection.execute(insert(connections).values(**vars(row)))
    return row


def everything(connection: Connection) -> list[ConnectionRow]:
    """Return all connections, by name and owner."""
    query = select(*_COLUMNS).order_by(connections.c.name, connections.c.owner)
    return [ConnectionRow(**found) for found in connection.execute(query).mappings()]


def remove(connection: Connection, connection_id: str) -> bool:
    """Delete a connection; return whether it existed."""
    return connection.execute(delete(connections).where(connections.c.id == connection_id)).rowcount == 1
