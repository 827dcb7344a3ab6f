"""Times of the contract, and durations, for people."""

from __future__ import annotations

import re
import time
from typing import Any

from dlicmd.contract.reading import epoch

_UTC = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z\b")


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
    """Return a time as tables show it, in the time zone of this machine: `10-27 16:27`; "" when it is not known.
    `zone` names the zone."""
    seconds = epoch(text)
    return "" if seconds is None else time.strftime("%m-%d %H:%M", time.localtime(seconds))


def precise(text: Any) -> str:
    """Return a time in the time zone of this machine, which it names: `2023-10-27 16:27:29 CEST`; "" when it is not
    known."""
    seconds = epoch(text)
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds))


def localized(text: str) -> str:
    """Return a text with its ISO times in UTC as `precise` returns them."""
    return _UTC.sub(lambda found: precise(found[0]), text)


def zone() -> str:
    """Return the name of this machine's time zone: `CET`."""
    return time.strftime("%Z")


def moment(text: str, now: float | None = None) -> float:
    """Return the epoch seconds of a moment that a user typed: how long ago (`90s`, `10m`, `2h`, `3d`), a time of this
    day (`14:30`), a day (`today`, `yesterday`, `2026-11-22`), or an ISO time. Without an offset, times are those of
    this machine. `now` stands for the present. Raises ValueError, which says how to write it."""
    import re  # only for such an option
    from datetime import datetime, timedelta

    now = time.time() if now is None else now
    ago = re.fullmatch(r"([0-9]{1,9})([smhdw])", text.strip())
    if ago:
        return max(0.0, now - int(ago[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}[ago[2]])
    days = {"today": 0, "yesterday": 1}.get(text.strip().lower())
    if days is not None:
        today = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
        return (today - timedelta(days=days)).timestamp()
    typed = text.strip().replace("Z", "+00:00")
    if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?", typed):
        typed = time.strftime("%Y-%m-%dT", time.localtime(now)) + typed.zfill(5 if len(typed) < 6 else 8)
    try:
        return datetime.fromisoformat(typed).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"'{text}' is not a time; write 10m, 2h or 3d for the last minutes, hours or days, 14:30 for "
                         "today, yesterday, 2026-11-22, or an ISO time") from None


def iso(seconds: float) -> str | None:
    """Return a moment of epoch seconds in ISO 8601, in UTC with milliseconds: `2023-10-27T16:27:29.250Z`; None for a
    moment that ISO 8601 cannot express."""
    if epoch(seconds) is None:
        return None
    whole, part = divmod(int(seconds * 1000), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{part:03}Z"
