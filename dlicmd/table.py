"""Rows in aligned columns, on a terminal as wide as that is."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from dlicmd.console import one_line

MISSING = "n/a"
_GAP = "  "
#: What is no wider is never cut: states, times, numbers. Other cells are, down to the second number.
_WHOLE, _NARROWEST = 11, 5


def table(rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> str:
    """Rows in columns under their names; every cell is one line and harmless to a terminal.

    On a terminal that is too narrow headings and the widest cells are cut, but not the first column: people copy ids
    and names.
    """
    lines = [list(columns), *([one_line(row.get(name, MISSING)) for name in columns] for row in rows)]
    widths = [max(_width(line[index]) for line in lines) for index in range(len(columns))]
    if sys.stdout.isatty():
        cells = [max((_width(line[index]) for line in lines[1:]), default=0) for index in range(len(columns))]
        least = [max(_NARROWEST, cell if cell <= _WHOLE else 0) for cell in cells]
        widths = _narrowed(widths, [widths[0], *least[1:]], _terminal())
    return "\n".join(_line(line, widths) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    cut = [_cut(cell, width) for cell, width in zip(cells, widths, strict=True)]
    return _GAP.join(cell + " " * (width - _width(cell)) for cell, width in zip(cut, widths, strict=True)).rstrip()


def _terminal() -> int:
    import shutil

    return shutil.get_terminal_size().columns


def _narrowed(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """The same widths, or smaller ones: the widest gives first, until it is no wider than the next."""
    found = list(widths)
    excess = sum(found) + len(_GAP) * (len(found) - 1) - room
    while excess > 0 and (giving := [at for at, width in enumerate(found) if width > least[at]]):
        found[max(giving, key=found.__getitem__)] -= 1
        excess -= 1
    return found


def _cut(text: str, width: int) -> str:
    """As much of a text as there is room for."""
    if _width(text) <= width:
        return text
    text = text[: 4 * width]
    while _width(text) >= width:
        text = text[:-1]
    return text + "…"


def _width(text: str) -> int:
    """Columns of a terminal that `text` takes: Chinese characters two each, accents of their own none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)
