"""Parsers of values in queries and bodies. Each function raises Invalid with the name of the value."""

from __future__ import annotations

from typing import Any

from local_backend.errors import Invalid


def whole(text: str, name: str, least: int) -> int:
    """Return a query value as a whole number of at least `least`. Raises Invalid (`query.number`)."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) >= least):
        raise Invalid("query.number", f"{name}: {text[:40]!r} is not a whole number >= {least}")
    return int(text)


def text_of(body: Any, key: str) -> str:
    """Return a string of a JSON body. Raises Invalid (`body.value`)."""
    value = body.get(key) if isinstance(body, dict) else None
    if not isinstance(value, str):
        raise Invalid("body.value", f'The body must be a JSON object with a string "{key}"')
    return value
