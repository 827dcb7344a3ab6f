"""What programs call the data sources of a job: as the submission does, or else after what they are."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from dlicmd.contract import data_sources as wire
from dlicmd.contract.secret import masked_place
from local_backend.data.errors import DataError
from local_backend.data.listing import named

#: Characters of a name that nobody gave.
_LONGEST = 100
#: Kinds of characters that cannot be seen, and those of them that some scripts cannot be written without.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"
_TABLES = (wire.TABLE_NAME, wire.COLLECTION)


class Names:
    """The names of the sources of one submission: those that it gives, and others that are like none of them."""

    def __init__(self, sources: Sequence[Mapping[str, Any]]) -> None:
        """Raises DataError when two sources are given the same, and for a name that cannot be shown."""
        self._taken: set[str] = set()
        given: dict[str, int] = {}
        for number, source in enumerate(sources, 1):
            if wire.NAME in source:
                name = source[wire.NAME]
                if any(map(_unseen, name)):
                    raise DataError(f"data source {number}: its name, {name!a}, has characters that cannot be seen; "
                                    "leave them out")
                first = given.setdefault(_same(name), number)
                if first != number:
                    raise DataError(f"data source {number}: data source {first} is called '{name}' already, and "
                                    "programs tell sources by their names; give it another")
        self._given = set(given)
        #: The last number that was put behind a name: there may be thousands of the same.
        self._last: dict[str, int] = {}

    def of(self, source: Mapping[str, Any], what: str) -> str:
        """The name of what comes of a source: its own, or else `what`; a further one of the same has a number behind
        it."""
        own = source.get(wire.NAME)
        name = wish = what if own is None else own
        count = self._last.get(wish, 1)
        while _same(name) in self._taken or (_same(name) in self._given and name != own):
            count += 1
            name = f"{wish}-{count}"
        self._last[wish] = count
        self._taken.add(_same(name))
        return name


def after_path(path: str) -> str:
    """What a source is called after the path of its files: the last part of it."""
    return _shown(path.rstrip("/").rpartition("/")[2]) or "data"


def after_location(location: Mapping[str, Any], kind: str) -> str:
    """What a source from elsewhere is called after what of its connection is meant: a table, else the path where there
    is one alone, else the bucket, or what else the location says; the kind of connection when it says nothing."""
    table = next((location[key] for key in _TABLES if location.get(key)), "query" if location.get(wire.QUERY) else "")
    if table:
        return _shown(str(table)) or kind
    paths = [path for path in named(location) if path.strip("/")]
    top = next((str(location[key]) for key in wire.TOPS if location.get(key)), "")
    if top and len(paths) != 1:
        return after_path(top)
    other = (str(value) for key, value in location.items() if key not in wire.PATH_KEYS and value)
    found = next(iter(paths), "") or next(other, "") or kind
    return after_path(masked_place(found) if "://" in found else found)


def _same(name: str) -> str:
    """The same for names that look the same: an ö may also be written as an o and two dots."""
    return unicodedata.normalize("NFC", name)


def _unseen(character: str) -> bool:
    return unicodedata.category(character) in _UNSEEN and character not in _JOINERS


def _shown(text: str) -> str:
    return "".join("-" if _unseen(character) else character for character in text[:_LONGEST]).strip()
