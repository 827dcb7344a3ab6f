"""What model definitions, hardware specifications and experiments have in common: names, versions, and the users that
share them. Owners and administrators change an object; the users that it is shared with see and use it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from local_backend.errors import AccessDenied, Invalid, NotFound, OverQuota
from local_backend.services.access import Caller
from local_backend.store import team_objects
from local_backend.store.database import Database
from local_backend.store.team_objects import NewVersion, TeamObjectRow
from local_backend.store.users import is_name

#: The most versions of objects of one user, their most characters, and the most characters of a description.
MOST_VERSIONS, MOST_CHARACTERS, LONGEST_DESCRIPTION = 5000, 20_000_000, 2000
#: The most users in one list.
_MOST_USERS = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
#: Names that are parts of paths.
_RESERVED = frozenset({"check", "code", "new", "parts", "run", "runs", "definitions", "hardware", "versions"})
#: Kind → its name in sentences.
_WORDS: Mapping[str, str] = {
    team_objects.DEFINITION: "model definition", team_objects.HARDWARE: "hardware specification",
    team_objects.EXPERIMENT: "experiment",
}


@dataclass(frozen=True)
class TeamObjects:
    """Operations on the objects of one kind. Error codes begin with the kind: `definition.not_found`."""

    database: Database
    kind: str

    def visible(self, caller: Caller) -> list[TeamObjectRow]:
        """Return the objects that a user may use, at their newest versions."""
        rows = self.database.read(lambda c: team_objects.everything(c, self.kind, caller.sees_of))
        return [row for row in rows if caller.admin or row.usable_by(caller.name)]

    def find(self, caller: Caller, name: str, version: int | None = None) -> TeamObjectRow:
        """Return an object by NAME or OWNER/NAME, at a version (None: the newest). Of several with one name, the
        caller's own counts. Raises NotFound, Invalid if several users share an object of this name."""
        owner, slash, plain = name.rpartition("/")
        rows = self.database.read(lambda c: team_objects.named(c, self.kind, plain))
        rows = [row for row in rows if not slash or row.owner == owner]
        seen = [row for row in rows if caller.admin or row.usable_by(caller.name)]
        own = [row for row in seen if row.owner == caller.name]
        found = own or [row for row in seen if row.usable_by(caller.name)] or seen
        if len(found) > 1:
            labels = ", ".join(row.label for row in found[:5])
            sentence = f"Several users share a {self._word} {plain[:80]}; use one of: {labels}"
            raise Invalid(f"{self.kind}.not_found", sentence)
        if not found:
            raise self._absent(name)
        if version is None or version == found[0].version:
            return found[0]
        row = self.database.read(lambda c: team_objects.numbered(c, found[0].number, version))
        if row is None:
            raise NotFound(f"{self.kind}.not_found", f"The {self._word} {found[0].name} has no version {version}; its "
                           f"versions are 1 to {found[0].newest}")
        return row

    def numbered(self, caller: Caller, number: int, version: int | None = None) -> TeamObjectRow:
        """Return an object by its number. Raises NotFound if it does not exist, or if the caller may not use it."""
        row = self.database.read(lambda c: team_objects.numbered(c, number, version))
        if row is None or not (caller.admin or row.usable_by(caller.name)):
            raise self._absent("that the experiment names" if row is None else row.label)
        return row

    def versions(self, caller: Caller, name: str) -> list[TeamObjectRow]:
        """Return all versions of an object, newest first. Raises NotFound."""
        row = self.find(caller, name)
        return self.database.read(lambda c: team_objects.versions(c, row.number))

    def mine(self, caller: Caller, name: str) -> TeamObjectRow | None:
        """Return the object that a save under this name changes; None if it makes a new one. An administrator may name
        the object of another user as OWNER/NAME. Raises Invalid for a wrong name, NotFound, Denied."""
        owner, slash, plain = name.rpartition("/")
        if slash and owner != caller.name:
            row = self.find(caller, name)
            self.check_owner(caller, row)
            return row
        if not _NAME.fullmatch(plain) or plain in _RESERVED:
            what = "the name is empty" if not plain else f"'{plain[:80]}' is not a valid name"
            raise Invalid(f"{self.kind}.invalid", f"name: {what}; use 1 to 63 of A-Z a-z 0-9 . _ -, the first a letter "
                          f"or digit")
        rows = self.database.read(lambda c: team_objects.named(c, self.kind, plain))
        return next((row for row in rows if row.owner == caller.name), None)

    def check_owner(self, caller: Caller, row: TeamObjectRow) -> None:
        """Raise Denied unless the caller may change an object."""
        if not (caller.admin or row.owner == caller.name):
            raise AccessDenied(f"{self.kind}.of_another_user", f"The {self._word} {row.name} belongs to {row.owner}; "
                               f"to change it, save a copy under your own name")

    def save(
        self, connection: Connection, caller: Caller, name: str, shared: Sequence[str] | bool | None, new: NewVersion
    ) -> TeamObjectRow:
        """Store a new version of an object, or a new object, in a transaction. A version that equals the newest one is
        not stored again. `shared` replaces the list of users; None leaves it. Raises OverQuota."""
        owner, slash, plain = name.rpartition("/")
        owner = owner if slash else caller.name
        row = next((one for one in team_objects.named(connection, self.kind, plain) if one.owner == owner), None)
        same = row is not None and (row.description, row.content, row.bundle) == (
            new.description, new.content, new.bundle)
        if not same and team_objects.count_of(connection, owner) >= MOST_VERSIONS:
            raise OverQuota("quota.team_objects", f"{owner} has {MOST_VERSIONS} versions of model definitions, "
                            f"hardware specifications and experiments, which is the limit; delete some of them")
        if not same and team_objects.characters_of(connection, owner) > MOST_CHARACTERS:
            raise OverQuota("quota.team_objects", f"the versions of model definitions, hardware specifications and "
                            f"experiments of {owner} have {MOST_CHARACTERS:,} characters, without the code, which is "
                            "the limit; delete some of them")
        if row is None:
            return team_objects.create(connection, self.kind, owner, plain, shared or [], new)
        if shared is not None and shared != row.shared:
            team_objects.share(connection, row.number, shared)
        made = team_objects.numbered(connection, row.number) if same else team_objects.add_version(
            connection, row.number, new)
        assert made is not None
        return made

    def use_of(self, connection: Connection, caller: Caller, row: TeamObjectRow) -> str | None:
        """Return the sentence that says which experiments use an object; None if none uses it. Experiments of users
        that the object is not shared with, or no longer, cannot run, and do not count."""
        using = [one for one in team_objects.users_of(connection, row.number) if row.usable_by(one.owner)]
        if not using:
            return None
        seen = [one.label for one in using if caller.admin or one.usable_by(caller.name)]
        names = [*seen[:3], *([f"{len(using) - len(seen)} of other users"] if len(using) > len(seen) else []),
                 *(["..."] if len(seen) > 3 else [])]
        return (f"Experiments use the {self._word} {row.name}: {', '.join(names)}. Delete them first, or share it no "
                "longer with their users")

    def checked_text(self, what: str, text: str, most: int = LONGEST_DESCRIPTION) -> str:
        """Return a text. Raises Invalid if it is too long, or contains control characters."""
        if len(text) > most:
            raise Invalid(f"{self.kind}.invalid", f"{what}: the text has {len(text)} characters; the limit is {most}")
        if any(not letter.isprintable() and letter not in "\n\t" for letter in text):
            raise Invalid(f"{self.kind}.invalid", f"{what}: the text contains control characters")
        return text

    def checked_shared(self, shared: Sequence[str] | bool | None) -> Sequence[str] | bool | None:
        """Return a list of users in order. Raises Invalid for a name that no user can have."""
        if shared is None or isinstance(shared, bool):
            return shared if shared is not False else []
        wrong = next((name for name in shared if not is_name(name)), None)
        if wrong is not None or len(shared) > _MOST_USERS:
            what = f"more than {_MOST_USERS} users" if wrong is None else f"'{wrong[:80]}' is not a name of a user"
            raise Invalid(f"{self.kind}.invalid", f"sharedWith: {what}")
        return sorted(set(shared))

    @property
    def _word(self) -> str:
        return _WORDS[self.kind]

    def _absent(self, name: str) -> NotFound:
        sentence = f"There is no {self._word} {name[:160]}, or its owner does not share it with you"
        return NotFound(f"{self.kind}.not_found", sentence)
