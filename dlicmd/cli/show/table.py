"""Rows in aligned columns that fit the width of the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate, zip_longest

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
    lines = [list(columns), *([one_line(row.get(name, MISSING)) for name in columns] for row in rows)]
    widths = _widths(lines)
    if sys.stdout.isatty():
        cells = [max((_width(line[index]) for line in lines[1:]), default=0) for index in range(len(columns))]
        least = [max(_NARROWEST, cell if cell <= _WHOLE else 0) for cell in cells]
        widths = _narrowed(widths, [widths[0], *least[1:]], _terminal())
    return "\n".join(_line(line, widths) for line in lines)


def grid(rows: Sequence[Sequence[str]]) -> str:
    """Return foreign rows, of any length, in columns. Every cell is one line and harmless to a terminal.

    On a terminal that is too narrow, the widest cells are cut. If that is not enough, the last columns are left out.
    """
    lines = [list(line) for line in zip(*zip_longest(*(map(one_line, row) for row in rows), fillvalue=""), strict=True)]
    widths = _widths(lines)
    if sys.stdout.isatty():
        room = _terminal()
        count = _that_fit(widths, room)
        if count < len(widths):
            lines = [[*line[:count], _MORE] for line in lines]
            widths = [*widths[:count], len(_MORE)]
        widths = _narrowed(widths, [min(width, _NARROWEST) for width in widths], room)
    return "\n".join(_line(line, widths) for line in lines)


def _that_fit(widths: Sequence[int], room: int) -> int:
    """Return how many columns fit, from the first on, beside the sign for more columns."""
    ends = list(accumulate(min(width, _NARROWEST) + len(_GAP) for width in widths))
    if not ends or ends[-1] - len(_GAP) <= room:
        return len(ends)
    return max(1, sum(end + len(_MORE) <= room for end in ends))


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(_width, column)) for column in zip(*lines, strict=True)]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    cut = [_cut(cell, width) for cell, width in zip(cells, widths, strict=True)]
    return _GAP.join(cell + " " * (width - _width(cell)) for cell, width in zip(cut, widths, strict=True)).rstrip()


def _terminal() -> int:
    import shutil  # takes time, for a terminal alone

    return shutil.get_terminal_size().columns


def _narrowed(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return the same widths, or smaller ones: the widest column shrinks first, until it is no wider than the next."""
    found = list(widths)
    excess = sum(found) + len(_GAP) * (len(found) - 1) - room
    while excess > 0 and (giving := [at for at, width in enumerate(found) if width > least[at]]):
        found[max(giving, key=found.__getitem__)] -= 1
        excess -= 1
    return found


def _cut(text: str, width: int) -> str:
    """Return as much of a text as fits."""
    if _width(text) <= width:
        return text
    text = text[: 4 * width]
    while _width(text) >= width:
        text = text[:-1]
    return text + _MORE


def _width(text: str) -> int:
    """Return the columns of a terminal that `text` takes: two for a Chinese character, none for a combining accent."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # for such text alone

    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)
