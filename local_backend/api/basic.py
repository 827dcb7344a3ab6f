"""HTTP Basic: user and password of a call."""

from __future__ import annotations

import base64
import binascii


def basic_credentials(value: str) -> tuple[str, str] | None:
    """Return user and password of an Authorization header, None if it is not well-formed HTTP Basic."""
    scheme, _, rest = value.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return (user, password) if colon else None


def is_malformed(value: str) -> bool:
    """Return whether an Authorization header starts as HTTP Basic, but contains no user and password."""
    return value.partition(" ")[0].lower() == "basic" and basic_credentials(value) is None
