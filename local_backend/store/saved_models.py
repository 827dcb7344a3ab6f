"""Queries on models that were saved from finished execs, before they are deployed. Each takes the connection of a
transaction (see database.py) and does one thing. Times are epoch seconds."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from local_backend.store.schema import saved_models


@dataclass(frozen=True)
class SavedModelRow:
    """One row of `saved_models`, with the same names: one version of a saved model."""

    name: str
    version: int
    creator: str
    bundle: str
    size: int
    source: str
    space: str | None
    create_time: float

    @property
    def origin(self) -> dict[str, Any]:
        """The exec and the data that made it."""
        found: dict[str, Any] = json.loads(self.source)
        return found


_COLUMNS = [saved_models.c[field.name] for field in fields(SavedModelRow)]


def save(  # noqa: PLR0917
    connection: Connection, name: str, creator: str, bundle: str, size: int, source: dict[str, Any]
) -> SavedModelRow:
    """Insert the next version of a saved model."""
    last = connection.execute(select(func.max(saved_models.c.version)).where(saved_models.c.name == name)).scalar()
    row = SavedModelRow(name, (last or 0) + 1, creator, bundle, size, json.dumps(source), None, time.time())
    connection.execute(insert(saved_models).values(**vars(row)))
    return row


def versions(connection: Connection, name: str) -> list[SavedModelRow]:
    """Return the versions of a saved model, oldest first."""
    query = select(*_COLUMNS).where(saved_models.c.name == name).order_by(saved_models.c.version)
    return [SavedModelRow(*found) for found in connection.execute(query)]


def everything(connection: Connection, creator: str | None) -> list[SavedModelRow]:
    """Return the saved models of a user (None: of all users) and those in spaces, by name and version."""
    query = select(*_COLUMNS).order_by(saved_models.c.name, saved_models.c.version)
    if creator is not None:
        query = query.where((saved_models.c.creator == creator) | saved_models.c.space.is_not(None))
    return [SavedModelRow(*found) for found in connection.execute(query)]


def count_of(connection: Connection, creator: str) -> int:
    """Return how many versions of saved models a user has."""
    query = select(func.count()).select_from(saved_models).where(saved_models.c.creator == creator)
    return int(connection.execute(query).scalar_one())


def bytes_of(connection: Connection, creator: str) -> int:
    """Return the bytes of the saved models of a user. Files that several versions have count once."""
    query = select(func.max(saved_models.c.size)).where(saved_models.c.creator == creator)
    return sum(map(int, connection.execute(query.group_by(saved_models.c.bundle)).scalars()))


def promote(connection: Connection, row: SavedModelRow, space: str) -> None:
    """Put a saved model into a space."""
    same = (saved_models.c.name == row.name, saved_models.c.version == row.version)
    connection.execute(update(saved_models).where(*same).values(space=space))


def remove(connection: Connection, row: SavedModelRow) -> None:
    """Remove one version of a saved model."""
    same = (saved_models.c.name == row.name, saved_models.c.version == row.version)
    connection.execute(saved_models.delete().where(*same))


def bundles(connection: Connection, of: Collection[str] | None = None) -> set[str]:
    """Return those of these bundles that any saved model names; with None, all bundles that saved models name."""
    query = select(saved_models.c.bundle).distinct()
    return set(connection.execute(query if of is None else query.where(saved_models.c.bundle.in_(of))).scalars())
