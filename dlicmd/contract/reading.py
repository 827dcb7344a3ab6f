"""Readers for JSON of servers that differ: fields may be missing, null, or numbers as text. No function here raises."""

from __future__ import annotations

import math
import re
from typing import Any

_NUMBER = r"[+-]?[0-9]{0,40}\.?[0-9]{1,40}([eE][+-]?[0-9]{1,3})?"
#: Epoch seconds from which on a time cannot be formatted.
_YEAR_10000 = 253_402_300_800
#: Whole numbers up to here are exact as floating point.
_EXACT = 2.0 ** 53


def at(value: Any, *path: str) -> Any:
    """Return the value at a path of keys, or None if there is no such path."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def items(value: Any) -> list[Any]:
    """Return a list unchanged, any other value as an empty list."""
    return value if isinstance(value, list) else []


def objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list. Other items are left out."""
    return [item for item in items(value) if isinstance(item, dict)]


def words(value: Any) -> str:
    """Return a text unchanged, a number as text, any other value as ""."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def number(value: Any) -> float | None:
    """Return a finite number, also one written as text, or None."""
    if isinstance(value, str):
        value = value.strip()  # of more characters than `float` strips
        if not re.fullmatch(_NUMBER, value):
            return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def whole(value: float) -> float:
    """Return a number as an int if it is a whole number that floating point represents exactly."""
    return int(value) if abs(value) < _EXACT and value == int(value) else value


def epoch(text: Any) -> float | None:
    """Return the seconds since 1970 of an ISO time (UTC without an offset) or of a number; None for any other value."""
    from datetime import datetime, timezone  # takes time, for people alone

    if isinstance(text, int | float) and not isinstance(text, bool):
        return float(text) if 0 <= text < _YEAR_10000 else None
    if not isinstance(text, str):
        return None
    head, dot, fraction = text.strip().replace("Z", "+00:00").partition(".")
    digits = len(fraction) - len(fraction.lstrip("0123456789"))
    try:
        # Python 3.10 reads 3 or 6 decimals only. Servers write any number of them.
        found = datetime.fromisoformat(head + fraction[digits:])
        found = found if found.tzinfo else found.replace(tzinfo=timezone.utc)
        return found.timestamp() + (float(f"0.{fraction[:digits]}") if dot and digits else 0.0)
    except (ValueError, OverflowError):
        return None
