"""Reading JSON of servers that differ: fields may be missing, null, or numbers as text. Nothing here raises."""

from __future__ import annotations

import math
import re
from typing import Any

_NUMBER = r"[+-]?[0-9]{0,40}\.?[0-9]{1,40}([eE][+-]?[0-9]{1,3})?"


def at(value: Any, *path: str) -> Any:
    """What is at a path of keys, or None where there is no such path."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def items(value: Any) -> list[Any]:
    """A list as it is, anything else as an empty one."""
    return value if isinstance(value, list) else []


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; what else is in it is left out."""
    return [item for item in items(value) if isinstance(item, dict)]


def words(value: Any) -> str:
    """A text as it is, a number as text, anything else as ""."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def number(value: Any) -> float | None:
    """A finite number, also one written as text, or None."""
    if isinstance(value, str) and not re.fullmatch(_NUMBER, value.strip()):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None
