"""A strict reader of JSON for client and server. The reader refuses a key that occurs twice in an object, and values
that UTF-8 or JSON cannot pass on. Nesting must not be too deep for recursive functions."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

#: The most levels of nested lists and objects.
DEEPEST = 100
_LONGEST = 80
_SURROGATE = re.compile("[\ud800-\udfff]")
_TOO_DEEP = f"is nested more than {DEEPEST} levels deep"
_TOO_LARGE = "contains a number that is too large"
_NOT_UNICODE = "contains half of a surrogate pair (such as \\ud800), which is not text"


def read(text: str | bytes) -> Any:
    """Return the value. Raises ValueError; the caller puts the name of the source before the message, such as
    `is not JSON: ...`. The message quotes no values, because they may be secrets."""
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
    """Return whether UTF-8 can encode a text."""
    return text.isascii() or _SURROGATE.search(text) is None


class _Refused(ValueError):
    """A value that JSON allows and this reader refuses."""


def _faults(value: Any) -> Iterator[str]:
    """Yield the errors about values that JSON allows and that cannot be passed on."""
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
