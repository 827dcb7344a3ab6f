"""The Accept header of a call (RFC 9110, section 12.5.1): which media types a client accepts, and how much."""

from __future__ import annotations

import re

JSON, TEXT = "application/json", "text/plain"
_WEIGHT = re.compile(r"q=([01](?:\.[0-9]{0,3})?)", re.IGNORECASE)


def prefers_json(header: str) -> bool:
    """Return whether JSON is among the accepted types with the highest weight."""
    accepted = _weights(header)
    return JSON in accepted and 0 < accepted[JSON] == max(accepted.values())


def accepts_only_json(header: str) -> bool:
    """Return whether a client accepts JSON, and no text."""
    accepted = {name for name, weight in _weights(header).items() if weight > 0}
    return JSON in accepted and accepted.isdisjoint({TEXT, "text/*", "*/*"})


def _weights(header: str) -> dict[str, float]:
    """Return the weight of each accepted media type, from 0 to 1. Types are in lower case, without parameters."""
    found = {}
    for part in header.lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        weight = next((match[1] for one in parameters if (match := _WEIGHT.fullmatch(one))), "1")
        if name:
            found[name] = float(weight)
    return found
