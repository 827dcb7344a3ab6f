"""User and password, as logon takes them and as clients of the first product generation send them with every call."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac

from local_backend.api.backend import Backend
from local_backend.store import tokens

#: Seconds that a wrong password takes, and how many may wait like that at a time.
SLOW = 1.0
_MOST_WAITING = 20
_waiting = 0


class TooManyGuesses(Exception):
    """Not even compared: what is not compared cannot be guessed."""


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


async def are_right(backend: Backend, user: str, password: str) -> bool:
    """Whether these are the backend's user and a password of his: the backend's token, or DLI_PASSWORD.

    Guessing is slow: a wrong password takes a while, and raises TooManyGuesses when many wait like that already.
    """
    global _waiting
    if _waiting >= _MOST_WAITING:
        raise TooManyGuesses
    known = [backend.token, *([backend.password] if backend.password else [])]
    matches = [same(password, secret) for secret in known]
    if same(user, backend.settings.user) and any(matches):
        return True
    _waiting += 1
    try:
        await asyncio.sleep(SLOW)
    finally:
        _waiting -= 1
    return False


def same(one: str, other: str) -> bool:
    """Whether two secrets are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(tokens.digest(one), tokens.digest(other))
