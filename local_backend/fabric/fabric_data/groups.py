"""The columns of a sample, and which of them form one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fabric_data.errors import DataProblem

#: Names of columns; a list of names inside it is one tensor.
Columns = Sequence["str | Sequence[str]"]


@dataclass(frozen=True)
class ColumnGroup:
    """One part of a sample: a column, or the columns of one tensor."""

    names: tuple[str, ...]
    tensor: bool = False


def groups(columns: Columns) -> list[ColumnGroup]:
    """Return the named parts of a sample. Raises DataProblem if `columns` is empty or no list of names."""
    found = [
        ColumnGroup((item,)) if isinstance(item, str) else ColumnGroup(_names(item), True) for item in _items(columns)
    ]
    if not found:
        raise DataProblem("'columns' is empty; leave it out to get all columns")
    return found


def _names(columns: object) -> tuple[str, ...]:
    found = _items(columns)
    wrong = [item for item in found if not isinstance(item, str)]
    if wrong:
        raise DataProblem(f"columns: {wrong[0]!r} is not a column name")
    if not found:
        raise DataProblem("a group of columns is empty")
    return tuple(str(item) for item in found)


def _items(columns: object) -> list[object]:
    if isinstance(columns, str):
        raise DataProblem(f"columns: {columns!r} is one name, not a list of names; write [{columns!r}]")
    try:
        return list(columns)  # type: ignore[call-overload]
    except TypeError:
        raise DataProblem(f"columns: {columns!r} is neither a name nor a list of names") from None
