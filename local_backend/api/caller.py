"""Who is calling, and whose execs that person may see and touch."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from local_backend.settings import Settings
from local_backend.store import users
from local_backend.store.execs import ExecRow

#: Where the guard leaves the Caller, in the scope of a call.
CALLER = "dlicmd.caller"
#: Where it leaves the token that has let the call in; nothing where user and password have.
TOKEN = "dlicmd.token"


@dataclass(frozen=True)
class Caller:
    """A user whom the guard let in. Users have their own execs, administrators everybody's."""

    name: str
    admin: bool

    @property
    def sees_of(self) -> str | None:
        """The creator whose execs are shown; None for those of all."""
        return None if self.admin else self.name

    def sees(self, row: ExecRow) -> bool:
        """Whether an exec is there for this user."""
        return self.admin or row.creator == self.name


def caller(connection: Connection, name: str, settings: Settings) -> Caller | None:
    """The user with this name as he is now, None when there is none. Whom the server runs as is always there, and an
    administrator; an embedded server has no other users."""
    if name == settings.user:
        return Caller(name, True)
    row = None if settings.embedded else users.get(connection, name)
    return None if row is None else Caller(row.name, row.role == users.ADMIN)
