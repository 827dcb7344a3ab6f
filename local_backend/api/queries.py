"""Values in queries."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from local_backend.errors import Invalid

#: The last second that an ISO time can express.
_NEVER = 253402300799.0


def whole(text: str, name: str, least: int, digits: int = 10) -> int:
    """Return a query value as a whole number of at least `least`, with at most so many digits. Raises Invalid
    (`query.number`)."""
    if not (text.isascii() and text.isdigit() and len(text) <= digits and int(text) >= least):
        raise Invalid("query.number", f"{name}: {text[:40]!r} is not a whole number >= {least}")
    return int(text)


def moment(text: str, name: str) -> float:
    """Return the epoch seconds of a time in a query. A time without an offset is in UTC. Raises Invalid
    (`query.time`)."""
    if re.fullmatch(r"[0-9]{1,20}(\.[0-9]{1,20})?", text):
        seconds = float(text)
    else:
        try:
            # An unescaped + arrives as a space. Python 3.10 cannot parse Z.
            found = datetime.fromisoformat(re.sub(r" (?=\d\d:?\d\d$)", "+", text.replace("Z", "+00:00"), count=1))
            seconds = (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
        except (ValueError, OverflowError):
            sentence = f"{name}: {text[:40]!r} is not a time; use ISO 8601 or epoch seconds"
            raise Invalid("query.time", sentence) from None
    if not 0 <= seconds <= _NEVER:
        raise Invalid("query.time", f"{name}: {text[:40]!r} is not between 1970 and 9999")
    return seconds
