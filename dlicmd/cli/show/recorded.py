"""The layout of the original client, which scripts cut by lines and columns: tables, times, ages, amounts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dlicmd.contract.reading import epoch
from dlicmd.sdk.messages import one_line

MISSING, NOTHING = "n/a", "No result found"
#: Blanks between two columns.
_GAP = 2
_YEAR, _DAY, _HOUR, _MINUTE = 365 * 86400, 86400, 3600, 60
#: Width of a line when standard output is not a terminal and COLUMNS is not set.
_PIPED = 80
#: One cell of an item: a text, a number, or None if the value is missing.
Cell = Callable[[Mapping[str, Any], str], Any]


class RecordedTable(NamedTuple):
    """A table of the original client.

    `empty` replaces the table of an empty list; None keeps borders and header. `below` returns the lines of the table
    under an item, such as the experiments of a search.
    """

    columns: Sequence[str]
    cell: Cell
    empty: str | None = NOTHING
    below: Callable[[Mapping[str, Any]], Sequence[str]] = lambda _: ()

    def text(self, items: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> str:
        """Return items as a table of `columns`, or of the usual columns."""
        if not items and self.empty is not None:
            return self.empty
        names = list(columns or self.columns)
        numbers = ["", *(str(place) for place in range(1, len(items) + 1))]
        widths = [len(str(len(items))) + _GAP, *_widths([names, *(self._cells(item, names) for item in items)])]
        border = "-" * min(sum(widths), line_width())
        lines = [border]
        for number, cells, item in zip(numbers, [names, *(self._cells(item, names) for item in items)],
                                       [{}, *items], strict=True):
            lines.append(_line([number, *cells], widths))
            lines += self.below(item) if number else ()
        return "\n".join([*lines, border])

    def _cells(self, item: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
        return [cell_text(self.cell(item, name)) for name in columns]


def sub_table(rows: Sequence[Sequence[Any]], indent: str) -> list[str]:
    """Return the lines of a table under an item: without borders, header and numbers, indented by its first cell."""
    cells = [[indent + cell_text(first), *map(cell_text, others)] for first, *others in rows]
    return [_line(row, _widths(cells)) for row in cells]


def cell_text(value: Any) -> str:
    """Return a value as the text of a cell: `n/a` for None, "" for an empty text. The text is one line and harmless to
    a terminal."""
    return MISSING if value is None else one_line(str(value))


def line_width() -> int:
    """Return the width of separators and the largest width of borders, in characters."""
    import shutil  # takes time, for tables alone

    return shutil.get_terminal_size((_PIPED, 24)).columns


def separator() -> str:
    """Return the line before each log."""
    return "=" * line_width()


def age(begin: Any, end: Any = None) -> str | None:
    """Return the time from `begin` to `end`, or to now, in its two largest units: `2d,4h`, `1m,2s`, `7s`. None if a
    time is not known."""
    first, last = epoch(begin), time.time() if end is None else epoch(end)
    if first is None or last is None:
        return None
    seconds = max(0, int(last - first))
    for unit, size, smaller, part in (("y", _YEAR, "d", _DAY), ("d", _DAY, "h", _HOUR), ("h", _HOUR, "m", _MINUTE),
                                      ("m", _MINUTE, "s", 1)):
        if seconds >= size:
            return f"{seconds // size}{unit},{seconds % size // part}{smaller}"
    return f"{seconds}s"


def moment(value: Any) -> str | None:
    """Return a time in UTC as `2026-11-22 14:57:37`, with the fraction of the second that the server sends; None if it
    is not known."""
    from datetime import datetime, timezone  # takes time, for tables alone

    seconds = epoch(value)
    if seconds is None:
        return None
    return str(datetime.fromtimestamp(seconds, timezone.utc).replace(tzinfo=None))


def amounts(used: float | None, asked: float | None) -> str:
    """Return an amount in use and the requested amount: `1.0/2.0`."""
    return f"{used or 0:.1f}/{asked or 0:.1f}"


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column: the longest cell, and a gap after all columns but the last."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [*(width + _GAP for width in widths[:-1]), *widths[-1:]]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
