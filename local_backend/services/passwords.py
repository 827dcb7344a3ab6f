"""Checks user and password, for logons and for clients that send both with every call.

Each attempt takes the same steps, in this order, for known and unknown users and for correct and wrong passwords: the
throttle, a turn in the queue, the throttle again, one argon2 hash. The token and DLI_PASSWORD, which the server holds
without a hash, admit the user that it runs as. The token is too long to guess, so it needs no attempt.
"""

from __future__ import annotations

import asyncio
import hmac
import math
from dataclasses import dataclass

from sqlalchemy import Connection

from local_backend.errors import Busy
from local_backend.services.access import Caller, caller_named
from local_backend.services.throttle import Throttle, account_key, network_of
from local_backend.services.turns import Turns
from local_backend.settings import Settings
from local_backend.store import tokens, users
from local_backend.store.database import Database

#: Maximum number of simultaneous hashes. Each takes a core and 64 MiB.
_AT_A_TIME = 2


@dataclass(frozen=True)
class Verified:
    """A user whose password is correct, and the stored hash that it fits; None for another secret."""

    caller: Caller
    kept: str | None


class Passwords:
    """Compares passwords. For the user that the server runs as, `token` is a correct password, and so is `own` if
    given."""

    def __init__(self, settings: Settings, database: Database, token: str, own: str | None) -> None:
        self._settings = settings
        self._database = database
        self._token = token
        self._own = own
        self._throttle = Throttle()
        self._turns = Turns(_AT_A_TIME)

    async def owner(self, user: str, password: str, address: str) -> Verified | None:
        """Return the user of this name and password. If they are wrong, return None after a delay.

        Raises Busy (`auth.too_many_tries`) without a comparison after too many wrong passwords.
        """
        if same(user, self._settings.user) and same(password, self._token):  # 256 random bits: no guess finds it
            return Verified(Caller(self._settings.user, True), None)
        self._mind(user, address)
        async with self._turns.turn(network_of(address), account_key(user)):
            self._mind(user, address)  # other calls may have failed while this one waited
            found = await asyncio.to_thread(self._find, user, password)
            delay = 0.0 if found else self._throttle.failed(user, address)
        if found is None:
            await asyncio.sleep(delay)
        else:
            self._throttle.passed(user, address)
        return found

    def still_right(self, connection: Connection, found: Verified) -> bool:
        """Return whether a password that was correct before is still correct in this transaction."""
        row = users.get(connection, found.caller.name)
        if caller_named(connection, found.caller.name, self._settings) is None:
            return False
        return found.kept is None or (row is not None and row.password == found.kept)

    def _mind(self, user: str, address: str) -> None:
        seconds = self._throttle.wait(user, address)
        if seconds > 0:
            whole = max(1, math.ceil(seconds))
            raise Busy("auth.too_many_tries", f"Too many wrong passwords; try again in {whole} s", retry_after=whole)

    def _find(self, user: str, password: str) -> Verified | None:
        """Return the user of a name and password. Compute one hash in every case."""
        from local_backend.password_hash import matches

        def look(connection: Connection) -> tuple[str | None, Caller | None]:
            row = users.get(connection, user)
            return (row.password if row else None), caller_named(connection, user, self._settings)

        kept, caller = self._database.read(look)
        fits = matches(kept, password)
        is_own = self._own is not None and same(user, self._settings.user) and same(password, self._own)
        return Verified(caller, kept if fits else None) if caller is not None and (fits or is_own) else None


def same(one: str, other: str) -> bool:
    """Return whether two secrets are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(tokens.digest(one), tokens.digest(other))
