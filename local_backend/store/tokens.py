"""Tokens made by logon: opaque random text, kept as SHA-256 only, with an end."""

from __future__ import annotations

import hashlib
import secrets
import time

from sqlalchemy import Connection, delete, insert, select

from local_backend.store.schema import tokens


def digest(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def issue(connection: Connection, user: str, seconds: float) -> tuple[str, float]:
    """A new token of `user` and the time (epoch seconds) at which it ends; ended ones are forgotten on the way."""
    now = time.time()
    connection.execute(delete(tokens).where(tokens.c.expires <= now))
    token = secrets.token_urlsafe(32)
    connection.execute(insert(tokens).values(hash=digest(token), user=user, expires=now + seconds))
    return token, now + seconds


def user_of(connection: Connection, token: str) -> str | None:
    """Whose token this is; None when it is unknown, revoked or over."""
    query = select(tokens.c.user).where(tokens.c.hash == digest(token), tokens.c.expires > time.time())
    user: str | None = connection.execute(query).scalar()
    return user


def revoke(connection: Connection, token: str) -> None:
    """Make a token worthless."""
    connection.execute(delete(tokens).where(tokens.c.hash == digest(token)))
