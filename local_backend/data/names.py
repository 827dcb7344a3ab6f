"""Names that programs use for the data sources of a job: from the submission, or derived from the location."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from dlicmd.contract import data_sources as wire
from dlicmd.contract.secret import masked_place
from local_backend.data.errors import DataError
from local_backend.data.listing import named

#: Longest derived name, in characters.
_LONGEST = 100
#: Unicode categories of invisible characters, and invisible characters that some scripts need.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"
_TABLES = (wire.TABLE_NAME, wire.COLLECTION)


class Names:
    """The names of the sources of one submission. Derived names differ from given names and from each other."""

    def __init__(self, sources: Sequence[Mapping[str, Any]]) -> None:
        """Collect the given names. Raises DataError when two sources have the same name, and for a name with invisible
        characters."""
        self._taken: set[str] = set()
        given: dict[str, int] = {}
        for number, source in enumerate(sources, 1):
            if wire.NAME in source:
                name = source[wire.NAME]
                if any(map(_unseen, name)):
                    raise DataError(f"data source {number}: its name {name!a} contains invisible characters; remove "
                                    "them")
                first = given.setdefault(_same(name), number)
                if first != number:
                    raise DataError(f"data source {number}: data source {first} already has the name '{name}'; "
                                    "give each source a different name")
        self._given = set(given)
        #: Name → last number that was appended to it: thousands of sources may have the same name.
        self._last: dict[str, int] = {}

    def of(self, source: Mapping[str, Any], what: str) -> str:
        """Return a name for data of a source: the source's own name, or else `what`. A repeated name gets a number, as
        in `mnist-2`."""
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
    """Return the name that is derived from a path: its last part, or `data`."""
    return _shown(path.rstrip("/").rpartition("/")[2]) or "data"


def after_location(location: Mapping[str, Any], kind: str) -> str:
    """Return the name that is derived from a location of a connection. The first of these counts: the table (or
    `query`), the only path, the bucket, the first path or another value, the kind of connection."""
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
    """Return the same key for names that look the same: an ö may also be written as an o and two dots."""
    return unicodedata.normalize("NFC", name)


def _unseen(character: str) -> bool:
    return unicodedata.category(character) in _UNSEEN and character not in _JOINERS


def _shown(text: str) -> str:
    return "".join("-" if _unseen(character) else character for character in text[:_LONGEST]).strip()
