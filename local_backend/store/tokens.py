"""Tokens made by logon, kept as SHA-256 with their end. What is not here is worthless, whoever has signed it."""

from __future__ import annotations

import hashlib
import time

from sqlalchemy import Connection, delete, insert, select

from local_backend.store.schema import tokens


def digest(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def keep(connection: Connection, token: str, user: str, expires: float) -> None:
    """A new token of `user` that ends at `expires` (epoch seconds); ended ones are forgotten on the way."""
    connection.execute(delete(tokens).where(tokens.c.expires <= time.time()))
    connection.execute(insert(tokens).values(hash=digest(token), user=user, expires=expires))


def user_of(connection: Connection, token: str) -> str | None:
    """Whose token this is; None when it is unknown, revoked or over."""
    query = select(tokens.c.user).where(tokens.c.hash == digest(token), tokens.c.expires > time.time())
    user: str | None = connection.execute(query).scalar()
    return user


def revoke(connection: Connection, token: str) -> None:
    """Make a token worthless."""
    connection.execute(delete(tokens).where(tokens.c.hash == digest(token)))


def revoke_all(connection: Connection, user: str) -> None:
    """Make all tokens of a user worthless."""
    connection.execute(delete(tokens).where(tokens.c.user == user))
