"""Tokens, stored as SHA-256 with their expiry: those of logons, and those that users make for programs.

A token of a logon is signed, and one that is not stored is invalid all the same. A token for a program is a random text
with a name and a scope.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, or_, select

from local_backend.store.schema import tokens

#: The first characters of a token for a program, by which programs that look for leaked secrets find it.
PREFIX = "dlit_"
#: Scope of a token that may only send requests to models.
INFERENCE = "inference"
#: Number of random bytes of a token.
_RANDOM = 32
#: Most tokens of a user that only send requests. A further one takes the place of the one that was made first.
_MOST_FOR_REQUESTS = 1000


@dataclass(frozen=True)
class TokenRow:
    """One row of `tokens`, with the same names, without its hash. Of a token of a logon, only user and expiry are
    known. A token that only sends requests has no id; its `name` is the id of the program's token that it was made
    with, if there is one."""

    user: str
    expires: float
    id: str | None = None
    name: str | None = None
    scope: str | None = None
    created: float | None = None


def digest(token: str) -> str:
    """Return what is stored of a token: its SHA-256."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def keep(connection: Connection, token: str, user: str, expires: float) -> None:
    """Store a new token of a logon of `user` that expires at `expires` (epoch seconds), and delete all expired
    tokens."""
    _insert(connection, token, TokenRow(user, expires))


def make(connection: Connection, user: str, name: str, scope: str, seconds: float) -> tuple[TokenRow, str]:
    """Store a new token for a program, and delete all expired tokens. Return the token, which is stored nowhere."""
    now = time.time()
    row, token = TokenRow(user, now + seconds, secrets.token_hex(8), name, scope, now), PREFIX + _random()
    _insert(connection, token, row)
    return row, token


def find(connection: Connection, token: str) -> TokenRow | None:
    """Return a token; None if it is unknown, revoked or expired."""
    found = _found(connection, tokens.c.hash == digest(token))
    return found[0] if found else None


def for_gateway(connection: Connection, digests: Collection[str], newest: int) -> dict[str, TokenRow]:
    """Return those of these tokens that are known and not expired, and the `newest` others that expire last, by their
    digests."""
    wanted = sorted(digests)
    columns = [tokens.c.hash, *(tokens.c[name] for name in TokenRow.__dataclass_fields__)]
    last = select(*columns).where(tokens.c.expires > time.time()).order_by(tokens.c.expires.desc()).limit(newest)
    found = {row[0]: TokenRow(*row[1:]) for row in connection.execute(last)}
    for at in range(0, len(wanted), 500):  # databases limit the number of parameters
        query = select(*columns).where(tokens.c.hash.in_(wanted[at : at + 500]), tokens.c.expires > time.time())
        found.update((row[0], TokenRow(*row[1:])) for row in connection.execute(query))
    return found


def make_for_requests(connection: Connection, user: str, expires: float, origin: str | None) -> str:
    """Store a new token that only sends requests to models, and return it. It expires as a token of a logon does, and
    no list shows it. `origin`: the id of the program's token that it is made with, and ends with."""
    token = PREFIX + _random()
    _insert(connection, token, TokenRow(user, expires, None, origin, INFERENCE, time.time()))
    mine = select(tokens.c.hash).where(tokens.c.user == user, tokens.c.scope == INFERENCE, tokens.c.id.is_(None))
    surplus = mine.order_by(tokens.c.created.desc(), tokens.c.hash).offset(_MOST_FOR_REQUESTS).limit(_MOST_FOR_REQUESTS)
    for (one,) in connection.execute(surplus).all():
        connection.execute(delete(tokens).where(tokens.c.hash == one))
    return token


def of_programs(connection: Connection, user: str | None) -> list[TokenRow]:
    """Return the tokens for programs of a user, oldest first; with None those of all users."""
    for_program = tokens.c.id.is_not(None)
    return _found(connection, for_program if user is None else and_(for_program, tokens.c.user == user))


def revoke(connection: Connection, token: str) -> None:
    """Revoke a token."""
    connection.execute(delete(tokens).where(tokens.c.hash == digest(token)))


def revoke_id(connection: Connection, token_id: str) -> None:
    """Revoke the token for a program with this id, and those that were made with it."""
    made_with_it = and_(tokens.c.id.is_(None), tokens.c.scope == INFERENCE, tokens.c.name == token_id)
    connection.execute(delete(tokens).where(or_(tokens.c.id == token_id, made_with_it)))


def revoke_all(connection: Connection, user: str) -> None:
    """Revoke all tokens of a user."""
    connection.execute(delete(tokens).where(tokens.c.user == user))


def _random() -> str:
    return secrets.token_urlsafe(_RANDOM)


def _insert(connection: Connection, token: str, row: TokenRow) -> None:
    connection.execute(delete(tokens).where(tokens.c.expires <= time.time()))
    connection.execute(insert(tokens).values(hash=digest(token), **vars(row)))


def _found(connection: Connection, condition: ColumnElement[bool]) -> list[TokenRow]:
    columns = [tokens.c[name] for name in TokenRow.__dataclass_fields__]
    query = select(*columns).where(condition, tokens.c.expires > time.time()).order_by(tokens.c.created, tokens.c.id)
    return [TokenRow(**row) for row in connection.execute(query).mappings()]
