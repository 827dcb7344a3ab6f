"""Times of the contract, and durations, for people."""

from __future__ import annotations

import time
from typing import Any

#: Epoch seconds from which on a time cannot be formatted.
_YEAR_10000 = 253_402_300_800


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


def since(begin: Any, end: Any = None) -> str | None:
    """Return the time from `begin` to `end`, or to now: `10s`, `2m5s`, `3h20m`, `2d4h`; None when one is not known."""
    first, last = epoch(begin), time.time() if end is None else epoch(end)
    return None if first is None or last is None else duration(last - first)


def duration(seconds: float) -> str:
    """Return a length of time in its two largest units."""
    whole = max(0, int(seconds))
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size}{unit}" + (f"{rest}{smaller}" if rest else "")
    return f"{whole}s"


def full(seconds: float) -> str:
    """Return a moment of epoch seconds, in UTC: `2023-10-27 16:27:29`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def short(text: Any) -> str:
    """Return a time as tables show it, in UTC: `10-27 16:27`; "" when it is not known."""
    seconds = epoch(text)
    return "" if seconds is None else time.strftime("%m-%d %H:%M", time.gmtime(seconds))
