"""The user who calls a service, and the execs that this user may see and change."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from local_backend.errors import AccessDenied
from local_backend.settings import Settings
from local_backend.store import tokens, users
from local_backend.store.execs import ExecRow
from local_backend.store.tokens import TokenRow

#: Scopes of tokens for programs. Each but `inference` permits what the ones before it permit.
READ, SUBMIT, ADMIN, INFERENCE = SCOPES = ("read", "submit", "admin", tokens.INFERENCE)
#: The changes that a token with a scope may make. A token with ADMIN may make all changes.
_CHANGES = {
    READ: frozenset({"auth.logoff"}),
    SUBMIT: frozenset({
        "auth.logoff", "auth.token_inference", "application.stop", "data.preview", "data.upload",
        "definition.save",
        "exec.again", "exec.check", "exec.label", "exec.stop", "exec.submit", "exec.verify",
        "experiment.check", "experiment.run", "experiment.save", "hardware.save",
        "hpo.create", "hpo.restart", "hpo.stop",
        "inference.run", "model.deploy", "model.promote", "model.redeploy", "model.rollback", "model.save",
        "model.start", "model.stop", "model.traffic", "view.delete", "view.save",
    }),
    INFERENCE: frozenset({"auth.logoff", "auth.token_inference", "inference.run"}),
}


@dataclass(frozen=True)
class Caller:
    """An admitted user. Users see and change their own execs, administrators the execs of all users."""

    name: str
    admin: bool
    #: The address of the call, empty for a command on the server's machine.
    address: str = ""
    #: Name and scope of the token for a program that the call has; empty for any other call.
    token: str = ""
    scope: str = ""

    @property
    def sees_of(self) -> str | None:
        """The creator whose execs this user sees, None for the execs of all users."""
        return None if self.admin else self.name

    def sees(self, row: ExecRow) -> bool:
        """Return whether this user sees an exec."""
        return self.admin or row.creator == self.name

    def check_admin(self, action: str) -> None:
        """Raise Denied unless this is an administrator. `action` is a verb phrase: `add users`."""
        if not self.admin:
            raise AccessDenied(
                "auth.admin_only", f"Only administrators may {action}; {self.name} is not an administrator"
            )

    def check_scope(self, change: str) -> None:
        """Raise Denied (`auth.scope`) if the scope of the caller's token does not permit a change, such as
        `exec.stop`."""
        if self.scope in _CHANGES and change not in _CHANGES[self.scope]:
            sentence = f"The token {self.token} has the scope {self.scope}, which does not permit {change}"
            raise AccessDenied("auth.scope", sentence)


def caller_named(connection: Connection, name: str, settings: Settings) -> Caller | None:
    """Return the user of this name with the present role, None if no such user exists.

    The user that the server runs as always exists and is an administrator. An embedded server has no other users.
    """
    if name == settings.user:
        return Caller(name, True)
    row = None if settings.embedded else users.get(connection, name)
    return None if row is None else Caller(row.name, row.role == users.ADMIN)


def caller_of(connection: Connection, row: TokenRow, settings: Settings) -> Caller | None:
    """Return the user of a token with the present role, None if no such user exists. Of a token for a program, only the
    scope `admin` gives the rights of an administrator."""
    found = caller_named(connection, row.user, settings)
    if found is None or row.scope is None:
        return found
    return Caller(found.name, found.admin and row.scope == ADMIN, token=row.name or "", scope=row.scope)
