"""Keys that look like a slip of one that means something."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_NEAR, _LONGEST = 0.8, 80


def meant(key: str, known: Collection[str]) -> str | None:
    """Which of the known keys is meant by one that is none of them: written in other letters, or a letter wrong. One
    that has another word beside a known one, or lacks one, is a name of its own."""
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
