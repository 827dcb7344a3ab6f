"""What data sources are called: in file names, and by programs that tell them apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dlicmd.contract import data_sources as wire
from local_backend.data.errors import DataError

_LONGEST = 60


class Names:
    """The names of the sources of one submission: those that it gives, and others that are like none of them."""

    def __init__(self, sources: Sequence[Mapping[str, Any]]) -> None:
        """Raises DataError when two sources are given the same."""
        self._taken: set[str] = set()
        given: dict[str, int] = {}
        for number, source in enumerate(sources, 1):
            if wire.NAME in source:
                name = _clean(source[wire.NAME])
                first = given.setdefault(name, number)
                if first != number:
                    raise DataError(f"data source {number}: data source {first} is called '{name}' already, and "
                                    "programs tell sources by their names; give it another")
        self._given = set(given)

    def of(self, source: Mapping[str, Any], what: str) -> str:
        """The name of what comes of a source: its own, or else after `what` it is; a further one of the same has a
        number behind it."""
        wish = _clean(source[wire.NAME]) if wire.NAME in source else what
        name, count = wish, 1
        while name in self._taken or (name in self._given and (name != wish or wire.NAME not in source)):
            count += 1
            name = f"{wish}-{count}"
        self._taken.add(name)
        return name


def file_name(what: str) -> str:
    """A name for a file, after the last part of what something is."""
    return _clean(what.partition(",")[0].rstrip("/").rpartition("/")[2])


def _clean(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-")[:_LONGEST] or "data"
