"""Keys that look like a misspelling of a known key."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_NEAR, _LONGEST = 0.8, 80


def meant(key: str, known: Collection[str]) -> str | None:
    """Return the known key that an unknown key means, else None. The two differ in case, in separators or in a letter.
    A key that has one word more or less than a known key is a key of its own."""
    if key in known:
        return None
    short = _plain(key[:_LONGEST])
    plain = {_plain(one): one for one in known}
    near = difflib.get_close_matches(short, [one for one in plain if not _has_more(one, short)], 1, _NEAR)
    return plain[near[0]] if near else None


def _has_more(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return len(long) > len(short) + 1 and (long.startswith(short) or long.endswith(short))


def _plain(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "")
