"""Labels of execs: a note, tags, and the favorites of each user."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from local_backend.errors import Invalid, NotFound
from local_backend.services.access import Caller
from local_backend.services.base import Base
from local_backend.store import execs, labels
from local_backend.store.execs import ExecRow
from local_backend.store.labels import Labels

#: Maximum number of characters of a note and of a tag, of tags of an exec, and of execs in one call.
LONGEST_NOTE, LONGEST_TAG, MOST_TAGS, MOST_IDS = 10_000, 40, 30, 1000
#: Maximum number of tags that a list of tags has.
_MOST_LISTED = 200


@dataclass(frozen=True)
class LabelChange:
    """A change of labels. None leaves a label as it is."""

    add: Sequence[str] = ()
    remove: Sequence[str] = ()
    note: str | None = None
    favorite: bool | None = None


@dataclass(frozen=True)
class LabelService:
    """Operations on labels. Users change those of the execs that they see."""

    base: Base

    def of(self, caller: Caller, rows: Collection[ExecRow]) -> dict[str, Labels]:
        """Return the labels of execs that the caller sees, by id. Execs without labels are left out."""
        ids = [row.id for row in rows]
        return self.base.database.read(lambda c: labels.of(c, ids, caller.name)) if ids else {}

    def tags(self, caller: Caller, everyone: bool = False) -> dict[str, int]:
        """Return the most frequent tags of the caller's execs, or of all that the caller sees, with the number of their
        execs."""
        creator = caller.sees_of if everyone else caller.name
        return self.base.database.read(lambda c: labels.used_tags(c, creator, _MOST_LISTED))

    def change(self, caller: Caller, ids: Sequence[str], change: LabelChange) -> dict[str, Labels]:
        """Change the labels of all these execs, or of none; return their labels by id. Raises NotFound
        (`exec.not_found`), Invalid (`labels.ids`, `labels.note`, `labels.tag`)."""
        wanted = list(dict.fromkeys(ids))

        def work(connection: Connection) -> dict[str, Labels]:
            _check_seen(connection, caller, wanted)
            if change.remove:
                labels.remove_tags(connection, wanted, change.remove)
            labels.add_tags(connection, wanted, dict.fromkeys(change.add))
            if change.note is not None:
                labels.write_note(connection, wanted, change.note.replace("\r\n", "\n").strip())
            if change.favorite is not None:
                labels.like(connection, wanted, caller.name, change.favorite)
            found = labels.of(connection, wanted, caller.name)
            for name, one in found.items():
                if len(one.tags) > MOST_TAGS:
                    raise Invalid("labels.tag", f"{name} would have {len(one.tags)} tags; at most {MOST_TAGS} are "
                                                "possible")
            return found

        with self.base.recorded(caller, "exec.label", *wanted):
            if not 0 < len(wanted) <= MOST_IDS:
                raise Invalid("labels.ids", f"The call names {len(wanted):,} execs; name 1 to {MOST_IDS:,}")
            _check(change)
            found = self.base.database.write(work)
        return {name: found.get(name, Labels()) for name in wanted}


def _check(change: LabelChange) -> None:
    """Refuse tags and notes that pages and searches cannot show. Raises Invalid."""
    for tag in change.add:
        sound = tag.isprintable() and not any(letter.isspace() or letter in ',"' for letter in tag)
        if not (sound and 0 < len(tag) <= LONGEST_TAG) or tag.startswith("-"):
            raise Invalid("labels.tag", f"{tag[:LONGEST_TAG]!r} is not a tag; use 1 to {LONGEST_TAG} characters "
                                        "without spaces, commas and quotes, and do not begin with -")
    note = change.note or ""
    if len(note) > LONGEST_NOTE:
        raise Invalid("labels.note", f"The note has {len(note):,} characters; at most {LONGEST_NOTE:,} are possible")
    if not all(letter.isprintable() or letter in "\n\r\t" for letter in note):
        raise Invalid("labels.note", "The note contains a control character; remove it")


def _check_seen(connection: Connection, caller: Caller, ids: Sequence[str]) -> None:
    """Raises NotFound unless the caller sees all these execs."""
    known = execs.with_ids(connection, [name for name in ids if execs.is_exec_id(name)])
    for name in ids:
        row = known.get(name)
        if row is None or row.deleted or not caller.sees(row):
            raise NotFound("exec.not_found", f"Exec {name[:80]!r} is not found")
