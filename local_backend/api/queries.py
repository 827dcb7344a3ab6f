"""Values in queries."""

from __future__ import annotations

from local_backend.errors import Invalid


def whole(text: str, name: str, least: int) -> int:
    """Return a query value as a whole number of at least `least`. Raises Invalid (`query.number`)."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) >= least):
        raise Invalid("query.number", f"{name}: {text[:40]!r} is not a whole number >= {least}")
    return int(text)
