"""Rows in aligned columns that fit the width of the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, zip_longest
from typing import NamedTuple

from dlicmd.cli.console import paint
from dlicmd.cli.show.times import zone
from dlicmd.sdk.messages import one_line

MISSING = "n/a"
_GAP, _MORE = "  ", "…"
#: Cells up to the first width are never cut: states, times, numbers. Other cells are cut down to the second width.
_WHOLE, _NARROWEST = 11, 5


def table(rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> str:
    """Return rows in columns under their names. Every cell is one line and harmless to a terminal.

    On a terminal that is too narrow, headings and the widest cells are cut. The first column is not, because people
    copy ids and names.
    """
    lines = [[*map(one_line, columns)], *([one_line(row.get(name, MISSING)) for name in columns] for row in rows)]
    widths = _widths(lines)
    if sys.stdout.isatty():
        cells = [max((column_width(line[index]) for line in lines[1:]), default=0) for index in range(len(columns))]
        least = [max(_NARROWEST, cell if cell <= _WHOLE else 0) for cell in cells]
        widths = _narrowed(widths, [widths[0], *least[1:]], terminal_width())
    return "\n".join(_line(line, widths) for line in lines)


class Column(NamedTuple):
    """A column of a table that leaves columns out on a narrow terminal.

    `least` is the smallest width that the column is cut to; 0: it is never cut. Columns of the highest `rank` are left
    out first; those of rank 0 stay. `style` returns the style of a cell for `paint`, "" for none.
    """

    name: str
    least: int = 0
    rank: int = 0
    style: Callable[[str], str] = lambda _: ""


def ranked(rows: Sequence[Mapping[str, str]], columns: Sequence[Column], width: int | None) -> list[str]:
    """Return the lines of a table of at most `width` columns of a terminal, None for any width. Every cell is one line
    and harmless to a terminal. Styles appear only where `paint` shows them.

    On a narrow terminal, columns are left out by rank. The width that remains goes to cut columns, the first one first.
    """
    kept = [column for column in columns if not column.rank or any(row.get(column.name) for row in rows)]
    texts = {column.name: [one_line(row.get(column.name, "")) for row in rows] for column in kept}
    natural = {name: max(map(column_width, [name, *cells])) for name, cells in texts.items()}
    least = {column.name: min(natural[column.name], column.least or natural[column.name]) for column in kept}
    while width is not None and _total([least[column.name] for column in kept]) > width:
        most = max(column.rank for column in kept)
        if not most:
            break
        kept = [column for column in kept if column.rank != most]
    widths = [natural[column.name] for column in kept]
    if width is not None:
        spare = max(0, width - _total([least[column.name] for column in kept]))
        for at, column in enumerate(kept):
            widths[at] = min(widths[at], least[column.name] + spare)
            spare -= widths[at] - least[column.name]
    head = paint(_line([column.name for column in kept], widths), "dim")
    return [head, *(_styled([texts[column.name][at] for column in kept], kept, widths) for at in range(len(rows)))]


#: Column of a list → its smallest width (0: never cut) and its rank. Columns without an entry are left out before
#: those with one, the last first.
_USUAL = {
    "id": (0, 0), "name": (16, 0), "state": (0, 0), "message": (16, 1), "age": (0, 1), "duration": (0, 1),
    "submit_time": (0, 2), "start_time": (0, 3), "create_time": (0, 3), "num": (0, 4), "nodes": (10, 4),
    "submit_user": (8, 5), "framework": (8, 6), "consumer": (12, 7), "pri": (0, 8), "type": (0, 9), "tag": (16, 0),
    "PENDING": (0, 4), "RUNNING": (0, 4), "FINISHED": (0, 4), "KILLED": (0, 4), "ERROR": (0, 4), "UNKNOWN": (0, 10),
}
_OTHERS = 20


def usual(
    rows: Sequence[Mapping[str, str]], columns: Sequence[str],
) -> tuple[list[dict[str, str]], list[Column]]:
    """Return the rows and columns of a list for `ranked`. The headings of times name the time zone."""
    headings = {name: f"{name.removesuffix('_time')} {zone()}" if name.endswith("_time") else name for name in columns}
    ranks = {name: _USUAL.get(name, (0, _OTHERS + at)) for at, name in enumerate(columns)}
    return ([{headings[name]: row[name] for name in columns} for row in rows],
            [Column(headings[name], *ranks[name]) for name in columns])


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _styled(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    found = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        text, style = cut(cell, width), column.style(cell)
        found.append((paint(text, style) if style else text) + " " * (width - column_width(text)))
    return _GAP.join(found).rstrip()


def grid(rows: Sequence[Sequence[str]]) -> str:
    """Return foreign rows, of any length, in columns. Every cell is one line and harmless to a terminal.

    On a terminal that is too narrow, the widest cells are cut. If that is not enough, the last columns are left out.
    """
    lines = [list(line) for line in zip(*zip_longest(*(map(one_line, row) for row in rows), fillvalue=""), strict=True)]
    widths = _widths(lines)
    if sys.stdout.isatty():
        width = terminal_width()
        count = _that_fit(widths, width)
        if count < len(widths):
            lines = [[*line[:count], _MORE] for line in lines]
            widths = [*widths[:count], len(_MORE)]
        widths = _narrowed(widths, [min(each, _NARROWEST) for each in widths], width)
    return "\n".join(_line(line, widths) for line in lines)


def _that_fit(widths: Sequence[int], width: int) -> int:
    """Return how many columns fit, from the first on, beside the sign for more columns."""
    ends = list(accumulate(min(width, _NARROWEST) + len(_GAP) for width in widths))
    if not ends or ends[-1] - len(_GAP) <= width:
        return len(ends)
    return max(1, sum(end + len(_MORE) <= width for end in ends))


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(column_width, column)) for column in zip(*lines, strict=True)]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    texts = [cut(cell, width) for cell, width in zip(cells, widths, strict=True)]
    padded = (text + " " * (width - column_width(text)) for text, width in zip(texts, widths, strict=True))
    return _GAP.join(padded).rstrip()


def terminal_width() -> int:
    """Return the width of the terminal, or that in COLUMNS, in characters."""
    import shutil  # takes time, for a terminal alone

    return shutil.get_terminal_size().columns


def _narrowed(widths: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Return the same widths, or smaller ones: the widest column shrinks first, until it is no wider than the next."""
    found = list(widths)
    excess = _total(found) - width
    while excess > 0 and (giving := [at for at, width in enumerate(found) if width > least[at]]):
        found[max(giving, key=found.__getitem__)] -= 1
        excess -= 1
    return found


def cut(text: str, width: int) -> str:
    """Return as much of a text as fits `width` columns of a terminal."""
    if column_width(text) <= width:
        return text
    text = text[: 4 * width]
    while column_width(text) >= width:
        text = text[:-1]
    return text + _MORE


def column_width(text: str) -> int:
    """Return the columns of a terminal that `text` takes: two for a Chinese character, none for a combining accent."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # only for such text

    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)
