"""Rows from documents, which have no schema: a sample determines the columns.

A value that the sample did not show is neither lost nor a reason to fail after an hour. Every table ends with the
column `_rest`. `_rest` is a JSON object of the fields of a document that have no column, or whose value does not fit
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from local_backend.data.columns import as_text

if TYPE_CHECKING:
    import pyarrow

REST = "_rest"
#: Documents in a sample, and most columns that a sample may create.
SAMPLE = 1000
_MOST_COLUMNS = 2000

_FITS: dict[str, Callable[[Any], bool]] = {
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool) and -2**63 <= value < 2**63,
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "datetime": lambda value: isinstance(value, datetime),
    "bytes": lambda value: isinstance(value, bytes),
    "any": lambda value: True,
}


class Documents:
    """The columns of a collection. A field that was nested or had several types becomes JSON. Other fields keep their
    type.

    Values are JSON values, bytes and datetimes.
    """

    def __init__(self, sample: Iterable[Mapping[str, Any]]) -> None:
        import pyarrow

        kinds: dict[str, str] = {}
        for document in sample:
            for name, value in document.items():
                if name != REST and (name in kinds or len(kinds) < _MOST_COLUMNS):
                    kinds[name] = _together(kinds.get(name, ""), _kind(value))
        self._kinds = {name: kind or "any" for name, kind in kinds.items()}
        types = {"bool": pyarrow.bool_(), "int": pyarrow.int64(), "float": pyarrow.float64(), "bytes": pyarrow.binary(),
                 "datetime": pyarrow.timestamp("us", "UTC")}
        self.schema: pyarrow.Schema = pyarrow.schema([
            *((name, types.get(kind, pyarrow.string())) for name, kind in self._kinds.items()),
            (REST, pyarrow.string()),
        ])

    def row(self, document: Mapping[str, Any]) -> Sequence[Any]:
        """Return a document as values of the columns."""
        rest = {name: value for name, value in document.items() if name not in self._kinds}
        row: list[Any] = []
        for name, kind in self._kinds.items():
            value = document.get(name)
            if value is not None and not _FITS[kind](value):
                rest[name] = value
                value = None
            row.append(_json(value) if kind == "any" and value is not None else value)
        return [*row, _json(rest) if rest else None]


def _kind(value: Any) -> str:
    """Return the kind of a value; empty for None, which says nothing about the type."""
    return "" if value is None else next(kind for kind, fits in _FITS.items() if fits(value))


def _together(one: str, other: str) -> str:
    if not one or not other or one == other:
        return one or other
    return "float" if {one, other} == {"int", "float"} else "any"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_part)


def _part(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else as_text(value)
