"""One-time links: a code that logs a browser on once, made for a user who is logged on already."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from local_backend.errors import AccessDenied, Busy, Invalid
from local_backend.services.access import Caller
from local_backend.services.base import Base
from local_backend.services.logons import Logon, LogonService

#: Seconds for which a code is valid, and the maximum number of valid codes of one user.
VALID, MOST = 60.0, 20


@dataclass(frozen=True)
class LinkService:
    """Operations on one-time links. Codes are kept in memory alone, by their digest."""

    base: Base
    logons: LogonService
    #: Returns seconds.
    clock: Callable[[], float] = time.monotonic
    _codes: dict[bytes, tuple[Caller, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def make(self, caller: Caller) -> str:
        """Return a new code. Raises Denied (`auth.scope`) for a token for a program, which has fewer rights than its
        user, and Busy (`auth.too_many_links`)."""
        with self.base.recorded(caller, "auth.link"):
            if caller.scope:
                raise AccessDenied("auth.scope", f"The token {caller.token} is for a program; log on as a user first")
            now, code = self.clock(), secrets.token_urlsafe(32)
            with self._lock:
                for key in [key for key, (_, ends) in self._codes.items() if ends <= now]:
                    del self._codes[key]
                if sum(owner.name == caller.name for owner, _ in self._codes.values()) >= MOST:
                    raise Busy("auth.too_many_links", f"{caller.name} has {MOST} unused links; they expire within "
                               f"{VALID:.0f} s", retry_after=int(VALID))
                self._codes[_digest(code)] = caller, now + VALID
        return code

    def take(self, code: str) -> Logon:
        """Return a new token for the user of a code, which is then used. Raises Invalid (`auth.link`), Unauthorized,
        StorageFailed."""
        with self._lock:
            found = self._codes.pop(_digest(code), None)
        if found is None or found[1] <= self.clock():
            raise Invalid("auth.link", "This link was already used, or has expired; run dlicmd --console again")
        made = self.logons.issue(found[0])
        self.base.note(made.caller, "auth.logon", ["link"], "done", None)
        return made


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode(errors="replace")).digest()
