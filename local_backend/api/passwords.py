"""User and password, as logon takes them and as clients of the first product generation send them with every call."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import math
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import cached_property

from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from local_backend.api.caller import Caller, caller
from local_backend.api.errors import ApiError
from local_backend.api.throttle import Throttle
from local_backend.settings import Settings
from local_backend.store import tokens, users
from local_backend.store.database import Database

#: Seconds that a wrong password takes, and how many may wait like that at a time, from one address.
SLOW = 1.0
_MOST_WAITING = 20
#: Passwords that are compared at a time; and that may wait for it: hashes take long on purpose.
_AT_A_TIME = 2
_MOST_COMPARED = 50
#: Right passwords that are remembered, for those who send them with every call.
_MOST_KNOWN = 1000


class Passwords:
    """Compares passwords. Those of the user that the server runs as are `token`, which nobody can guess, and `own`,
    when there is one."""

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
        """Whom this name and password let in from this address; None, after a while, when they are wrong.

        Raises ApiError (429) when there were too many wrong ones: what is not compared cannot be guessed.
        """
        if same(user, self._settings.user) and same(password, self._token):
            return Caller(self._settings.user, True)
        if self._settings.embedded and self._own is None:
            await self._slowly(address)
            return None
        found = await run_in_threadpool(self._find, user, password, self._is_known)
        return found or await self._compared(user, password, address)

    async def _compared(self, user: str, password: str, address: str) -> Caller | None:
        """The same for a password that has not been found right before."""
        self._mind(user, address)
        if self._comparing >= _MOST_COMPARED:
            raise _too_many(SLOW)
        self._comparing += 1
        try:
            async with self._hashing:
                self._mind(user, address)  # others may have guessed while this one waited
                found = await run_in_threadpool(self._find, user, password, self._matches)
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
        """Take a while over a wrong password."""
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
        """Whether a password that was right a moment ago is so for this transaction, too."""
        kept, found = self._kept(connection, user)
        right = same(password, self._token) or any(self._is_known(candidate, password) for candidate in kept)
        return found is not None and right

    def _find(self, user: str, password: str, fits: Callable[[str | None, str], bool]) -> Caller | None:
        """Whom a name and a password let in. `fits` compares it with a hash; with None where there is none."""
        kept, found = self._database.read(lambda c: self._kept(c, user))
        candidates: list[str | None] = [*kept] or [None]
        right = [fits(candidate, password) for candidate in candidates]  # all, however the first one fits
        return found if any(right) else None

    def _kept(self, connection: Connection, user: str) -> tuple[list[str], Caller | None]:
        """The hashes of a user's passwords, and who that is."""
        row = users.get(connection, user)
        kept = [row.password] if row else []
        if same(user, self._settings.user) and self._own is not None:
            kept.append(self._own_hash)
        return kept, caller(connection, user, self._settings)

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
        """What is remembered of a right password: worthless outside this process, and when the hash is another."""
        return hmac.digest(self._key, f"{kept}\0{password}".encode("utf-8", "surrogatepass"), "sha256")


def basic_credentials(value: str) -> tuple[str, str] | None:
    """User and password of an Authorization header; None when it is not well-formed HTTP Basic."""
    scheme, _, rest = value.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return (user, password) if colon else None


def is_malformed(value: str) -> bool:
    """Whether an Authorization header means to be HTTP Basic, and holds no user and password."""
    return value.partition(" ")[0].lower() == "basic" and basic_credentials(value) is None


def same(one: str, other: str) -> bool:
    """Whether two secrets are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(tokens.digest(one), tokens.digest(other))


def _too_many(seconds: float) -> ApiError:
    whole = max(1, math.ceil(seconds))
    return ApiError(429, f"Too many wrong passwords; try again in {whole} s", {"Retry-After": str(whole)})
