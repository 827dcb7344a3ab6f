"""Logons: exchange a password for a token, find the user of a token, revoke tokens."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from local_backend.audit import RefusedCounts
from local_backend.errors import BackendError, StorageFailed, Unauthorized
from local_backend.services.access import Caller, caller_named, caller_of
from local_backend.services.base import Base
from local_backend.services.passwords import Passwords, Verified, same
from local_backend.store import tokens

if TYPE_CHECKING:
    from local_backend.signing import SigningKeys

_LOGON, _PASSWORD = "auth.logon", "auth.password"


@dataclass(frozen=True)
class Logon:
    """A new token and its claims."""

    caller: Caller
    token: str
    claims: dict[str, Any]


class LogonService:
    """Admits users by passwords and tokens."""

    def __init__(self, base: Base, refused: RefusedCounts, token: str, password: str | None) -> None:
        """`token` is a token and a password of the user that the server runs as; `password` is another password."""
        self._base = base
        self._refused = refused
        self._token = token
        self._passwords = Passwords(base.settings, base.database, token, password)

    @cached_property
    def keys(self) -> SigningKeys:
        """The keys that sign tokens. An embedded server without logons never makes them."""
        from local_backend.signing import SigningKeys

        return SigningKeys(self._base.settings.paths.keys, self._base.settings.token_seconds)

    async def by_password(self, user: str, password: str, address: str) -> Caller:
        """Return the user of this name and password. Wrong passwords are recorded.

        Raises Unauthorized (`auth.wrong_password`) after a delay, Busy (`auth.too_many_tries`).
        """
        return (await self._admitted(user, password, address, _PASSWORD)).caller

    async def logon(self, user: str, password: str, address: str) -> Logon:
        """Make a token for the user of this name and password, and record the logon.

        Raises Unauthorized (`auth.wrong_password`), Busy (`auth.too_many_tries`), StorageFailed (`auth.no_keys`).
        """
        found = await self._admitted(user, password, address, _LOGON)
        made = await asyncio.to_thread(self._made, found.caller, lambda c: self._passwords.still_right(c, found))
        self._base.note(made.caller, _LOGON, [], "done", None)
        return made

    def is_own(self, token: str) -> bool:
        """Return whether this is the token of the user that the server runs as."""
        return same(token, self._token)

    def of_token(self, token: str) -> Caller | None:
        """Return the user of a valid token, None for any other text. Raises OSError when the keys cannot be read."""
        if self.is_own(token):
            return Caller(self._base.settings.user, True)
        is_for_program = token.startswith(tokens.PREFIX)
        if not is_for_program and (token.count(".") != 2 or self.keys.claims(token) is None):
            return None

        def look(connection: Connection) -> Caller | None:
            row = tokens.find(connection, token)
            if row is None or (row.scope is not None) != is_for_program:
                return None
            return caller_of(connection, row, self._base.settings)

        return self._base.database.read(look)

    def claims(self, caller: Caller, token: str) -> dict[str, Any]:
        """Return the claims of a valid token. The server's own token has no times."""
        if token.startswith(tokens.PREFIX):
            row = self._base.database.read(lambda c: tokens.find(c, token))
            return {**_claims(caller), **({"iat": int(row.created), "exp": int(row.expires)}
                                          if row is not None and row.created is not None else {})}
        signed = None if self.is_own(token) else self.keys.claims(token)
        times = {key: signed[key] for key in ("iat", "exp")} if signed is not None else {}
        return {**_claims(caller), **times}

    def logoff(self, caller: Caller, given: list[str]) -> None:
        """Revoke these tokens."""
        with self._base.recorded(caller, "auth.logoff"):
            for token in given:
                self._base.database.write(partial(tokens.revoke, token=token))

    def close(self) -> None:
        """Write the refused logons of the present interval."""
        self._refused.close()

    async def _admitted(self, user: str, password: str, address: str, action: str) -> Verified:
        """Return the user of a name and password. Raises the errors of `by_password`."""
        try:
            found = await self._passwords.owner(user, password, address)
            if found is None:
                raise Unauthorized("auth.wrong_password", "User or password is wrong")
        except BackendError as problem:
            self._refused.note(user, address, action, problem.code)
            raise
        return replace(found, caller=replace(found.caller, address=address))

    def issue(self, caller: Caller) -> Logon:
        """Make a token for a user who was admitted without a password.

        Raises Unauthorized (`auth.wrong_password`) if the user was removed meanwhile, StorageFailed (`auth.no_keys`).
        """
        return self._made(caller, lambda c: caller_named(c, caller.name, self._base.settings) is not None)

    def for_requests(self, caller: Caller, shown: str | None = None) -> str:
        """Make a token of an admitted user that only sends requests to models. `shown` is the token of the call, if it
        has one: one that only sends requests is returned as it is, and the new token of a program's token does not
        outlive it: it is revoked with it. Raises Denied (`auth.scope`), Unauthorized (`auth.wrong_password`) if the
        user was removed meanwhile."""
        with self._base.recorded(caller, "auth.token_inference"):
            def keep(connection: Connection) -> str | None:
                if caller_named(connection, caller.name, self._base.settings) is None:
                    return None
                ends = time.time() + self._base.settings.token_seconds
                row = None if shown is None or not shown.startswith(tokens.PREFIX) else tokens.find(connection, shown)
                if row is not None:
                    if row.scope == tokens.INFERENCE:
                        return shown
                    ends = min(ends, row.expires)
                return tokens.make_for_requests(connection, caller.name, ends, None if row is None else row.id)

            token = self._base.database.write(keep)
            if token is None:
                raise Unauthorized("auth.wrong_password", "User or password is wrong")
        return token

    def _made(self, caller: Caller, is_right: Callable[[Connection], bool]) -> Logon:
        """Return a new token. The transaction that stores the token checks by `is_right` that the user is still
        admitted: the token must not outlive a change of the password, or the removal of the user."""
        now = time.time()
        ends = now + self._base.settings.token_seconds
        claims = {**_claims(caller), "iat": int(now), "exp": math.ceil(ends)}
        try:
            token = self.keys.sign(claims)
        except OSError as problem:
            raise StorageFailed(
                "auth.no_keys", f"The server cannot sign tokens ({problem.strerror}: {problem.filename})"
            ) from None

        def keep(connection: Connection) -> bool:
            right = is_right(connection)
            if right:
                tokens.keep(connection, token, caller.name, ends)
            return right

        if not self._base.database.write(keep):
            raise Unauthorized("auth.wrong_password", "User or password is wrong")
        return Logon(caller, token, claims)


def _claims(caller: Caller) -> dict[str, Any]:
    """Return the claims about a user, with the issuer and the audience of the recorded tokens."""
    return {
        "username": caller.name,
        "role": "Admin" if caller.admin else "User",
        "permissions": ["access_catalog", "can_submit", *(["administrator"] if caller.admin else [])],
        "groups": [],
        "sub": caller.name,
        "iss": "KNOXSSO",
        "aud": "DSX",
        "uid": caller.name,
        "authenticator": "default",
    }
