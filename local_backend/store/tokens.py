"""Tokens made by logon, stored as SHA-256 with their expiry. A signed token that is not stored is invalid."""

from __future__ import annotations

import hashlib
import time

from sqlalchemy import Connection, delete, insert, select

from local_backend.store.schema import tokens


def digest(token: str) -> str:
    """Return what is stored of a token: its SHA-256."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def keep(connection: Connection, token: str, user: str, expires: float) -> None:
    """Store a new token of `user` that expires at `expires` (epoch seconds), and delete all expired tokens."""
    connection.execute(delete(tokens).where(tokens.c.expires <= time.time()))
    connection.execute(insert(tokens).values(hash=digest(token), user=user, expires=expires))


def user_of(connection: Connection, token: str) -> str | None:
    """Return the user of a token; None if it is unknown, revoked or expired."""
    query = select(tokens.c.user).where(tokens.c.hash == digest(token), tokens.c.expires > time.time())
    user: str | None = connection.execute(query).scalar()
    return user


def revoke(connection: Connection, token: str) -> None:
    """Revoke a token."""
    connection.execute(delete(tokens).where(tokens.c.hash == digest(token)))


def revoke_all(connection: Connection, user: str) -> None:
    """Revoke all tokens of a user."""
    connection.execute(delete(tokens).where(tokens.c.user == user))
