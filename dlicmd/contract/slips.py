"""Keys that look like a slip of one that means something."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_NEAR, _LONGEST = 0.8, 80


def meant(key: str, known: Collection[str]) -> str | None:
    """Which of the known keys is meant by one that is none of them: written in other letters, or a letter wrong."""
    if key in known:
        return None
    plain = {_plain(one): one for one in known}
    near = difflib.get_close_matches(key[:_LONGEST], known, 1, _NEAR)
    return near[0] if near else next(
        (plain[one] for one in difflib.get_close_matches(_plain(key[:_LONGEST]), plain, 1, _NEAR)), None)


def _plain(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "")
