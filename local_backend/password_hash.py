"""Passwords as argon2id hashes, with the library's parameters (RFC 9106)."""

from __future__ import annotations

import threading
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

_HASHER = PasswordHasher()
_PREFIX = "$argon2id$"
#: Limit of parallel computations for all callers: each takes a core and 64 MiB.
_AT_A_TIME = threading.BoundedSemaphore(2)


def hashed(password: str) -> str:
    """Return the hash of a password, for storage. Takes some tens of milliseconds and 64 MiB."""
    with _AT_A_TIME:
        return _HASHER.hash(password.encode("utf-8", "surrogatepass"))


def matches(kept: str | None, password: str) -> bool:
    """Return whether a password matches a stored hash. For any other text, and for None, return False after the same
    time: the response time must not reveal which users exist and have a password."""
    is_hash = kept is not None and kept.startswith(_PREFIX)
    known = kept if kept is not None and is_hash else _nobodys()
    try:
        with _AT_A_TIME:
            return _HASHER.verify(known, password.encode("utf-8", "surrogatepass")) and is_hash
    except (VerificationError, InvalidHashError):
        return False


@cache
def _nobodys() -> str:
    return hashed("the password of nobody")
