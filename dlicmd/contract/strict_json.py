"""Reads JSON that was written for us, in the client and in the server: everything in it is said once, can be passed on
in UTF-8, and is no deeper than functions that call themselves can follow."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

#: Lists and objects within each other.
DEEPEST = 100
_LONGEST = 80
_SURROGATE = re.compile("[\ud800-\udfff]")
_TOO_DEEP = f"is nested more than {DEEPEST} deep"
_TOO_LARGE = "is JSON with a number that is too large"
_NOT_UNICODE = "has half of a surrogate pair (such as \\ud800) in it, which is no text"


def read(text: str | bytes) -> Any:
    """The value. Raises ValueError with what is wrong, to be said of what it was read from: `is not JSON: ...`. Values
    are not quoted in it: they may be secrets."""
    try:
        found = json.loads(text, parse_constant=_constant, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except UnicodeDecodeError:
        raise ValueError("is not JSON: it is not UTF-8") from None
    except json.JSONDecodeError as problem:
        raise ValueError(f"is not JSON: {problem}") from None
    except _Refused:
        raise
    except ValueError:  # an integer with more digits than Python reads
        raise ValueError(_TOO_LARGE) from None
    fault = next(_faults(found), None)
    if fault is not None:
        raise _Refused(fault)
    return found


def is_unicode(text: str) -> bool:
    """Whether a text can be written down in UTF-8."""
    return text.isascii() or _SURROGATE.search(text) is None


class _Refused(ValueError):
    """What JSON can say, and we do not take."""


def _faults(value: Any) -> Iterator[str]:
    """What is wrong with what JSON can say and we cannot pass on."""
    waiting: list[tuple[str, int, Any]] = [("", 1, value)]
    while waiting:
        key, depth, item = waiting.pop()
        if isinstance(item, dict | list) and depth > DEEPEST:
            yield _TOO_DEEP
        elif isinstance(item, dict):
            yield from (f"{_NOT_UNICODE}: the key '{_shown(name)}'" for name in item if not is_unicode(name))
            waiting += [(name, depth + 1, inner) for name, inner in item.items()]
        elif isinstance(item, list):
            waiting += [(key, depth + 1, inner) for inner in item]
        elif isinstance(item, str) and not is_unicode(item):
            yield _NOT_UNICODE + _of(key)
        elif isinstance(item, float) and not math.isfinite(item):
            yield _TOO_LARGE + _of(key)


def _of(key: str) -> str:
    return f": the value of '{_shown(key)}'" if key else ""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise _Refused(f"has the key '{_shown(twice)}' twice in one object; one of them would be lost")
    return found


def _constant(name: str) -> None:
    raise _Refused(f"is not JSON: {name} is not a number")


def _shown(key: str) -> str:
    clean = "".join(character if character.isprintable() else "?" for character in key)
    return clean if len(clean) <= _LONGEST else clean[: _LONGEST - 1] + "…"
