"""Queries on objects that teams share: model definitions, hardware specifications and experiments, with their versions.
Each takes the connection of a transaction (see database.py) and does one thing. Times are epoch seconds."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, func, insert, select, update

from local_backend.store.schema import sequences, team_objects, team_uses, team_versions

#: Kinds of objects.
DEFINITION, HARDWARE, EXPERIMENT = KINDS = ("definition", "hardware", "experiment")


@dataclass(frozen=True)
class TeamObjectRow:
    """One object, at one of its versions. `shared` lists the users beside the owner that may use it; True: all."""

    number: int
    kind: str
    owner: str
    name: str
    shared: Sequence[str] | bool
    #: Number of its newest version, and of the version that the values below are of.
    newest: int
    version: int
    description: str
    content: dict[str, Any]
    bundle: str | None
    size: int
    create_time: float
    #: When this version was made.
    version_time: float

    @property
    def label(self) -> str:
        """Its name for all users: OWNER/NAME."""
        return f"{self.owner}/{self.name}"

    def usable_by(self, user: str) -> bool:
        """Return whether a user may see and use it."""
        return self.owner == user or self.shared is True or (self.shared is not True and user in (self.shared or ()))


@dataclass(frozen=True)
class NewVersion:
    """The content of a version that is to be stored. `uses` are the numbers of the objects that it names."""

    description: str
    content: dict[str, Any]
    bundle: str | None = None
    size: int = 0
    uses: Collection[int] = ()


def _query() -> Select[Any]:
    """Return the query for objects and all their versions."""
    columns = [team_objects.c[name] for name in ("number", "kind", "owner", "name", "shared", "newest")]
    values = [team_versions.c[name] for name in ("number", "description", "content", "bundle", "size")]
    return select(*columns, *values, team_objects.c.create_time, team_versions.c.create_time).join_from(
        team_objects, team_versions, team_objects.c.number == team_versions.c.object)


def _row(found: Row[Any]) -> TeamObjectRow:
    number, kind, owner, name, shared, newest, version, description, content, bundle, size, made, changed = tuple(found)
    return TeamObjectRow(number, kind, owner, name, json.loads(shared), newest, version, description,
                         json.loads(content), bundle, size, made, changed)


def everything(connection: Connection, kind: str, user: str | None) -> list[TeamObjectRow]:
    """Return the newest version of each object of a kind, by name and owner: those of a user, and those that are
    shared with any user; with None, all."""
    query = _query().where(team_objects.c.kind == kind, team_versions.c.number == team_objects.c.newest)
    if user is not None:
        query = query.where((team_objects.c.owner == user) | (team_objects.c.shared != "[]"))
    return [_row(found) for found in connection.execute(query.order_by(team_objects.c.name, team_objects.c.owner))]


def named(connection: Connection, kind: str, name: str) -> list[TeamObjectRow]:
    """Return the newest version of the objects of all users with this name, by owner."""
    query = _query().where(team_objects.c.kind == kind, team_objects.c.name == name,
                           team_versions.c.number == team_objects.c.newest)
    return [_row(found) for found in connection.execute(query.order_by(team_objects.c.owner))]


def numbered(connection: Connection, number: int, version: int | None = None) -> TeamObjectRow | None:
    """Return an object by its number, at a version (None: the newest); None if it does not exist."""
    query = _query().where(team_objects.c.number == number, team_versions.c.number == (
        team_objects.c.newest if version is None else version))
    found = connection.execute(query).first()
    return None if found is None else _row(found)


def versions(connection: Connection, number: int) -> list[TeamObjectRow]:
    """Return all versions of an object, newest first."""
    query = _query().where(team_objects.c.number == number).order_by(team_versions.c.number.desc())
    return [_row(found) for found in connection.execute(query)]


def count_of(connection: Connection, owner: str) -> int:
    """Return how many versions of objects a user has."""
    query = select(func.count()).join_from(team_objects, team_versions, team_objects.c.number == team_versions.c.object)
    return int(connection.execute(query.where(team_objects.c.owner == owner)).scalar_one())


def characters_of(connection: Connection, owner: str) -> int:
    """Return the characters of all versions of the objects of a user."""
    size = func.sum(func.length(team_versions.c.content) + func.length(team_versions.c.description))
    query = select(size).join_from(team_objects, team_versions, team_objects.c.number == team_versions.c.object)
    return int(connection.execute(query.where(team_objects.c.owner == owner)).scalar() or 0)


def bytes_of(connection: Connection, owner: str) -> int:
    """Return the bytes of the code of the model definitions of a user. Code that several versions have counts once."""
    query = select(team_versions.c.bundle, func.max(team_versions.c.size)).join_from(
        team_objects, team_versions, team_objects.c.number == team_versions.c.object)
    query = query.where(team_objects.c.owner == owner, team_versions.c.bundle.is_not(None))
    return sum(int(size) for _, size in connection.execute(query.group_by(team_versions.c.bundle)))


def create(  # noqa: PLR0917
    connection: Connection, kind: str, owner: str, name: str, shared: Sequence[str] | bool, new: NewVersion
) -> TeamObjectRow:
    """Insert an object with its first version."""
    now = time.time()
    number = next_number(connection, "team object")
    connection.execute(insert(team_objects).values(
        number=number, kind=kind, owner=owner, name=name, shared=json.dumps(shared), newest=0, create_time=now,
        update_time=now))
    return add_version(connection, number, new)


def add_version(connection: Connection, number: int, new: NewVersion) -> TeamObjectRow:
    """Insert the next version of an object."""
    now = time.time()
    this = team_objects.c.number == number
    version = int(connection.execute(select(team_objects.c.newest).where(this)).scalar_one()) + 1
    connection.execute(insert(team_versions).values(
        object=number, number=version, description=new.description, content=json.dumps(new.content),
        bundle=new.bundle, size=new.size, create_time=now))
    for used in sorted(set(new.uses)):
        connection.execute(insert(team_uses).values(object=number, version=version, used=used))
    connection.execute(update(team_objects).where(this).values(newest=version, update_time=now))
    made = numbered(connection, number)
    assert made is not None
    return made


def share(connection: Connection, number: int, shared: Sequence[str] | bool) -> None:
    """Replace the list of the users that may use an object."""
    connection.execute(update(team_objects).where(team_objects.c.number == number).values(shared=json.dumps(shared)))


def users_of(connection: Connection, number: int) -> list[TeamObjectRow]:
    """Return the experiments of which any version uses this object, at their newest versions."""
    using = select(team_uses.c.object).where(team_uses.c.used == number)
    query = _query().where(team_objects.c.number.in_(using), team_versions.c.number == team_objects.c.newest)
    return [_row(found) for found in connection.execute(query.order_by(team_objects.c.name, team_objects.c.owner))]


def remove(connection: Connection, number: int) -> None:
    """Remove an object with all its versions."""
    for table, column in ((team_uses, team_uses.c.object), (team_versions, team_versions.c.object),
                          (team_objects, team_objects.c.number)):
        connection.execute(delete(table).where(column == number))


def bundles(connection: Connection, of: Collection[str] | None = None) -> set[str]:
    """Return those of these bundles that any model definition names; with None, all bundles that they name."""
    query = select(team_versions.c.bundle).where(team_versions.c.bundle.is_not(None)).distinct()
    found = connection.execute(query if of is None else query.where(team_versions.c.bundle.in_(of)))
    return {str(one) for one in found.scalars()}


def next_number(connection: Connection, of: str) -> int:
    """Return a number that was never issued before for objects of this sort."""
    this = sequences.c.name == of
    last = connection.execute(select(sequences.c.last).where(this)).scalar()
    if last is None:
        connection.execute(insert(sequences).values(name=of, last=1))
        return 1
    connection.execute(update(sequences).where(this).values(last=last + 1))
    return int(last) + 1
