"""Users of a server, beside the user that it runs as. Each query takes the connection of a transaction (see
database.py). A user that loses the password or the account loses all tokens in the same transaction."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from local_backend.store import tokens
from local_backend.store.schema import users

USER, ADMIN = "user", "admin"
ROLES = (USER, ADMIN)
_SHORTEST, _LONGEST = 8, 1000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,63}")


class UserError(ValueError):
    """A user cannot be created or changed. The text is a sentence without its full stop."""


class UserExists(UserError):
    """A user of that name exists already."""


class LastAdmin(UserError):
    """The change would leave no named user that can manage the other users."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is the last administrator; add another one before")


class NoSuchUser(UserError):
    """No user has that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no user {name[:64]!r}")


@dataclass(frozen=True)
class UserRow:
    """One row of `users`, with the same names."""

    name: str
    password: str
    role: str
    created: float
    subject: str | None = None


def is_name(name: object) -> bool:
    """Return whether this can be the name of a user."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def checked_name(name: str) -> str:
    """Return `name` if it can be a user name. It is also the name of a folder. Raises UserError."""
    if not _NAME.fullmatch(name):
        raise UserError(f"{name[:64]!r} is not a valid user name; use 1 to 64 of A-Z a-z 0-9 . _ @ -, the first not "
                        ". @ -")
    return name


def checked_password(password: str) -> str:
    """Return `password` if it can be one. Raises UserError, which does not show the password."""
    if not _SHORTEST <= len(password) <= _LONGEST or not password.isprintable():
        raise UserError(f"A password has {_SHORTEST} to {_LONGEST} characters, all of them printable")
    return password


def add(connection: Connection, name: str, password: str, role: str, subject: str | None = None) -> None:
    """Add a user; `password` is a hash, or any other text for a user without a password. Raises UserExists."""
    if get(connection, name) is not None:
        raise UserExists(f"A user {name!r} already exists")
    connection.execute(insert(users).values(name=name, password=password, role=role, created=time.time(),
                                             subject=subject))


def get(connection: Connection, name: str) -> UserRow | None:
    """Return one user; None if no user has that name. The name may be any text."""
    if not _NAME.fullmatch(name):
        return None
    found = connection.execute(select(users).where(users.c.name == name)).mappings().first()
    return UserRow(**found) if found else None


def with_subject(connection: Connection, subject: str) -> UserRow | None:
    """Return the user that an account of an OIDC issuer logs on as, or None. `subject` is `ISSUER SUBJECT`."""
    found = connection.execute(select(users).where(users.c.subject == subject)).mappings().first()
    return UserRow(**found) if found else None


def link(connection: Connection, name: str, subject: str) -> None:
    """Let an account of an OIDC issuer log on as a user, and no other account. Raises NoSuchUser, UserExists."""
    other = with_subject(connection, subject)
    if other is not None and other.name != name:
        raise UserExists(f"This account is already linked with the user {other.name!r}")
    if connection.execute(update(users).where(users.c.name == name).values(subject=subject)).rowcount != 1:
        raise NoSuchUser(name)


def set_role(connection: Connection, name: str, role: str) -> None:
    """Set the role of a user."""
    connection.execute(update(users).where(users.c.name == name).values(role=role))


def change_role(connection: Connection, name: str, role: str, owner: str) -> None:
    """Set the role of a user as an administrator wants it. `owner` is the user that the server runs as. Raises
    NoSuchUser, LastAdmin."""
    everyone = {row.name: row.role for row in everybody(connection)}
    if name not in everyone:
        raise NoSuchUser(name)
    if role != ADMIN and name != owner and {one for one, its in everyone.items() if its == ADMIN} == {name}:
        raise LastAdmin(name)
    set_role(connection, name, role)


def everybody(connection: Connection) -> list[UserRow]:
    """Return all users, by name."""
    return [UserRow(**found) for found in connection.execute(select(users).order_by(users.c.name)).mappings()]


def set_password(connection: Connection, name: str, password: str) -> None:
    """Set the password (a hash) of a user, and revoke all tokens of the user. Raises NoSuchUser."""
    change = update(users).where(users.c.name == name).values(password=password)
    if connection.execute(change).rowcount != 1:
        raise NoSuchUser(name)
    tokens.revoke_all(connection, name)


def remove(connection: Connection, name: str, owner: str) -> None:
    """Delete a user with all tokens, but not what belongs to that name. `owner` is the user that the server runs as,
    which stays an administrator without a row here. Raises NoSuchUser, LastAdmin."""
    admins = {row.name for row in everybody(connection) if row.role == ADMIN}
    if admins == {name} and name != owner:
        raise LastAdmin(name)
    if connection.execute(delete(users).where(users.c.name == name)).rowcount != 1:
        raise NoSuchUser(name)
    tokens.revoke_all(connection, name)
