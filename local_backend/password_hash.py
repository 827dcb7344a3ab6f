"""Passwords as argon2id hashes, with the library's parameters (RFC 9106)."""

from __future__ import annotations

import threading
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

_HASHER = PasswordHasher()
#: Limit of parallel computations for all callers: each takes a core and 64 MiB.
_AT_A_TIME = threading.BoundedSemaphore(2)


def hashed(password: str) -> str:
    """Return the hash of a password, for storage. Takes some tens of milliseconds and 64 MiB."""
    with _AT_A_TIME:
        return _HASHER.hash(password.encode("utf-8", "surrogatepass"))


def matches(kept: str | None, password: str) -> bool:
    """Return whether a password matches a stored hash. Without a hash (None) return False after the same time: the
    response time must not reveal which users exist."""
    known = kept or _nobodys()
    try:
        with _AT_A_TIME:
            return _HASHER.verify(known, password.encode("utf-8", "surrogatepass")) and kept is not None
    except (VerificationError, InvalidHashError):
        return False


@cache
def _nobodys() -> str:
    return hashed("the password of nobody")
