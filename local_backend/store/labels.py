"""Queries on the labels of execs: a note and tags, which all users see that see the exec, and the favorites of each
user. Each takes the connection of a transaction (see database.py) and does one thing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select

from local_backend.store.schema import exec_notes, exec_tags, execs, favorites

#: Maximum number of ids in one query: databases limit the number of parameters.
_TOGETHER = 500


@dataclass(frozen=True)
class Labels:
    """The labels of an exec, as one user sees them. The tags are in the order of their letters."""

    note: str = ""
    tags: tuple[str, ...] = ()
    favorite: bool = False


def of(connection: Connection, ids: Collection[str], user: str) -> dict[str, Labels]:
    """Return the labels of execs as a user sees them, by id. Execs without labels are left out."""
    notes: dict[str, str] = {}
    tags: dict[str, list[str]] = {}
    liked: set[str] = set()
    for some in _parts(ids):
        query = select(exec_notes.c.exec_id, exec_notes.c.text).where(exec_notes.c.exec_id.in_(some))
        notes.update((str(one), str(text)) for one, text in connection.execute(query))
        found = select(exec_tags.c.exec_id, exec_tags.c.tag).where(exec_tags.c.exec_id.in_(some))
        for one, tag in connection.execute(found):
            tags.setdefault(str(one), []).append(str(tag))
        mine = select(favorites.c.exec_id).where(favorites.c.user == user, favorites.c.exec_id.in_(some))
        liked.update(connection.execute(mine).scalars())
    return {one: Labels(notes.get(one, ""), tuple(sorted(tags.get(one, ()))), one in liked)
            for one in {*notes, *tags, *liked}}


def write_note(connection: Connection, ids: Collection[str], text: str) -> None:
    """Replace the note of each of these execs; "" for no note."""
    for some in _parts(ids):
        connection.execute(delete(exec_notes).where(exec_notes.c.exec_id.in_(some)))
        if text:
            connection.execute(insert(exec_notes), [{"exec_id": one, "text": text} for one in some])


def add_tags(connection: Connection, ids: Collection[str], tags: Iterable[str]) -> None:
    """Add tags to each of these execs."""
    for tag in tags:
        remove_tags(connection, ids, [tag])
        connection.execute(insert(exec_tags), [{"exec_id": one, "tag": tag} for one in ids])


def remove_tags(connection: Connection, ids: Collection[str], tags: Collection[str]) -> None:
    """Remove tags from each of these execs."""
    for some in _parts(ids):
        connection.execute(delete(exec_tags).where(exec_tags.c.exec_id.in_(some), exec_tags.c.tag.in_(tags)))


def like(connection: Connection, ids: Collection[str], user: str, is_favorite: bool) -> None:
    """Add these execs to the favorites of a user, or remove them."""
    for some in _parts(ids):
        connection.execute(delete(favorites).where(favorites.c.user == user, favorites.c.exec_id.in_(some)))
        if is_favorite:
            connection.execute(insert(favorites), [{"user": user, "exec_id": one} for one in some])


def used_tags(connection: Connection, creator: str | None, most: int) -> dict[str, int]:
    """Return the tags of the execs of a user (None: of all users) with the number of their execs, the tags with the
    most execs first."""
    count = func.count()
    query = (
        select(exec_tags.c.tag, count).join(execs, execs.c.id == exec_tags.c.exec_id)
        .where(execs.c.deleted.is_(False)).group_by(exec_tags.c.tag).order_by(count.desc(), exec_tags.c.tag).limit(most)
    )
    if creator is not None:
        query = query.where(execs.c.creator == creator)
    return {str(tag): int(number) for tag, number in connection.execute(query)}


def forget(connection: Connection, exec_id: str) -> None:
    """Delete the labels of an exec."""
    for table in (exec_notes, exec_tags, favorites):
        connection.execute(delete(table).where(table.c.exec_id == exec_id))


def _parts(ids: Collection[str]) -> Iterator[list[str]]:
    wanted = sorted(ids)
    for at in range(0, len(wanted), _TOGETHER):
        yield wanted[at : at + _TOGETHER]
