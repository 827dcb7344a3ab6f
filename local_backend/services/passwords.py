"""Checks user and password, for logons and for clients that send both with every call."""

from __future__ import annotations

import asyncio
import hmac
import math
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import cached_property

from sqlalchemy import Connection

from local_backend.errors import Busy
from local_backend.services.access import Caller, caller_named
from local_backend.services.throttle import Throttle
from local_backend.settings import Settings
from local_backend.store import tokens, users
from local_backend.store.database import Database

#: Delay of the answer to a wrong password in seconds, and the maximum number of delayed answers per address.
SLOW = 1.0
_MOST_WAITING = 20
#: Maximum number of simultaneous comparisons, and of comparisons that run or wait: hashes are slow on purpose.
_AT_A_TIME = 2
_MOST_COMPARED = 50
#: Maximum number of correct passwords to remember, for clients that send them with every call.
_MOST_KNOWN = 1000


class Passwords:
    """Compares passwords. For the user that the server runs as, `token` is a correct password, and so is `own` if
    given."""

    def __init__(self, settings: Settings, database: Database, token: str, own: str | None) -> None:
        self._settings = settings
        self._database = database
        self._token = token
        self._own = own
        self._throttle = Throttle()
        self._waiting: Counter[str] = Counter()
        self._comparing = 0
        self._hashing = asyncio.Semaphore(_AT_A_TIME)
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, None] = OrderedDict()

    async def owner(self, user: str, password: str, address: str) -> Caller | None:
        """Return the user of this name and password. If they are wrong, return None after a delay.

        Raises Busy (`auth.too_many_tries`) without a comparison after too many wrong passwords.
        """
        if same(user, self._settings.user) and same(password, self._token):
            return Caller(self._settings.user, True)
        if self._settings.embedded and self._own is None:
            await self._slowly(address)
            return None
        found = await asyncio.to_thread(self._find, user, password, self._is_known)
        return found or await self._compared(user, password, address)

    async def _compared(self, user: str, password: str, address: str) -> Caller | None:
        """Return the same as `owner`, for a password that has not been found correct before."""
        self._mind(user, address)
        if self._comparing >= _MOST_COMPARED:
            raise _too_many(SLOW)
        self._comparing += 1
        try:
            async with self._hashing:
                self._mind(user, address)  # other calls may have failed while this one waited
                found = await asyncio.to_thread(self._find, user, password, self._matches)
                if found is None:
                    self._throttle.failed(user, address)
        finally:
            self._comparing -= 1
        if found is None:
            await self._slowly(address)
            return None
        self._throttle.passed(user, address)
        return found

    def _mind(self, user: str, address: str) -> None:
        seconds = self._throttle.wait(user, address)
        if seconds > 0:
            raise _too_many(seconds)

    async def _slowly(self, address: str) -> None:
        """Delay the answer to a wrong password."""
        if self._waiting[address] >= _MOST_WAITING:
            raise _too_many(SLOW)
        self._waiting[address] += 1
        try:
            await asyncio.sleep(SLOW)
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address]

    def still_right(self, connection: Connection, user: str, password: str) -> bool:
        """Return whether a password that was correct before is still correct in this transaction."""
        kept, found = self._kept(connection, user)
        right = same(password, self._token) or any(self._is_known(candidate, password) for candidate in kept)
        return found is not None and right

    def _find(self, user: str, password: str, fits: Callable[[str | None, str], bool]) -> Caller | None:
        """Return the user of a name and password. `fits` compares the password with a hash, or with None."""
        kept, found = self._database.read(lambda c: self._kept(c, user))
        candidates: list[str | None] = [*kept] or [None]
        right = [fits(candidate, password) for candidate in candidates]  # compare all, even if the first one fits
        return found if any(right) else None

    def _kept(self, connection: Connection, user: str) -> tuple[list[str], Caller | None]:
        """Return the hashes of a user's passwords, and the user."""
        row = users.get(connection, user)
        kept = [row.password] if row else []
        if same(user, self._settings.user) and self._own is not None:
            kept.append(self._own_hash)
        return kept, caller_named(connection, user, self._settings)

    @cached_property
    def _own_hash(self) -> str:
        from local_backend.password_hash import hashed

        return hashed(self._own or "")

    def _is_known(self, kept: str | None, password: str) -> bool:
        return kept is not None and self._mark(kept, password) in self._known

    def _matches(self, kept: str | None, password: str) -> bool:
        from local_backend.password_hash import matches

        if not matches(kept, password):
            return False
        self._known[self._mark(kept, password)] = None
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return True

    def _mark(self, kept: str | None, password: str) -> bytes:
        """Return the mark of a correct password. It is useless outside this process and after a change of the hash."""
        return hmac.digest(self._key, f"{kept}\0{password}".encode("utf-8", "surrogatepass"), "sha256")


def same(one: str, other: str) -> bool:
    """Return whether two secrets are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(tokens.digest(one), tokens.digest(other))


def _too_many(seconds: float) -> Busy:
    whole = max(1, math.ceil(seconds))
    return Busy("auth.too_many_tries", f"Too many wrong passwords; try again in {whole} s", retry_after=whole)
