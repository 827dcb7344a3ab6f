"""Passwords as argon2id hashes, with the library's parameters (RFC 9106)."""

from __future__ import annotations

from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

_HASHER = PasswordHasher()


def hashed(password: str) -> str:
    """The hash to keep of a password; takes some tens of milliseconds and 64 MiB."""
    return _HASHER.hash(password.encode("utf-8", "surrogatepass"))


def matches(kept: str | None, password: str) -> bool:
    """Whether a password is the one of a hash. Without one (None) it is not, after the same time: how long an answer
    takes must not tell which users there are."""
    try:
        return _HASHER.verify(kept or _nobodys(), password.encode("utf-8", "surrogatepass")) and kept is not None
    except (VerificationError, InvalidHashError):
        return False


@cache
def _nobodys() -> str:
    return hashed("the password of nobody")
