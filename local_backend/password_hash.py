"""Passwords as argon2id hashes, with the library's parameters (RFC 9106)."""

from __future__ import annotations

import threading
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

_HASHER = PasswordHasher()
#: Computed at a time, whoever asks: each takes a core and 64 MiB.
_AT_A_TIME = threading.BoundedSemaphore(2)


def hashed(password: str) -> str:
    """The hash to keep of a password; takes some tens of milliseconds and 64 MiB."""
    with _AT_A_TIME:
        return _HASHER.hash(password.encode("utf-8", "surrogatepass"))


def matches(kept: str | None, password: str) -> bool:
    """Whether a password is the one of a hash. Without one (None) it is not, after the same time: how long an answer
    takes must not tell which users there are."""
    known = kept or _nobodys()
    try:
        with _AT_A_TIME:
            return _HASHER.verify(known, password.encode("utf-8", "surrogatepass")) and kept is not None
    except (VerificationError, InvalidHashError):
        return False


@cache
def _nobodys() -> str:
    return hashed("the password of nobody")
