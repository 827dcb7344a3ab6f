"""A chart in characters: a line of braille dots, or of stars without braille, and marks on the line."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

MARK, STAR = "o", "*"
#: The first character of braille, and what each dot of a character adds to it: by row, then column.
_BRAILLE = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
#: The axes, with and without braille: to the left, to the left beside a label, the corner, below.
_AXES = {True: ("│", "┤", "└", "─"), False: ("|", "|", "+", "-")}
_LABEL = "{:.4g}"


class Canvas(NamedTuple):
    """The area of a chart: the numbers of dots, and the least and the largest value of `x` and `y`."""

    columns: int
    rows: int
    x: tuple[float, float]
    y: tuple[float, float]

    def dot(self, x: float, y: float) -> tuple[int, int]:
        """Return column and row of a point, counted from the upper left."""
        return _place(x, self.x, self.columns), self.rows - 1 - _place(y, self.y, self.rows)


def chart(
    line: Mapping[int, float], marks: Mapping[int, float], width: int, height: int, braille: bool = True
) -> list[str]:
    """Return `height` lines of the chart, the axis below it and its labels. A line has at most `width` columns, but
    never fewer than axes and labels need.

    `line` and `marks` map x to y. All values are finite, and at least one of the two has a point.
    """
    xs, ys = [*line, *marks], [*line.values(), *marks.values()]
    low, high = min(ys), max(ys)
    labels = {0: _LABEL.format(high), height // 2: _LABEL.format(high + (low - high) * (height // 2) / (height - 1)),
              height - 1: _LABEL.format(low)}
    margin = max(map(len, labels.values()))
    cells = max(8, width - margin - 2)
    across, down = (2, 4) if braille else (1, 1)
    canvas = Canvas(cells * across, height * down, (min(xs), max(xs)), (low, high))
    body = _characters(_stroke(line, canvas), cells, height, braille)
    for point in marks.items():
        column, row = canvas.dot(*point)
        body[row // down][column // across] = MARK
    left, tick, corner, below = _AXES[braille]
    rows = [f"{labels.get(row, ''):>{margin}} {tick if row in labels else left}{''.join(body[row]).rstrip()}"
            for row in range(height)]
    first, last = str(min(xs)), str(max(xs))
    gap = " " * (margin + 2)
    under = first + f"{last:>{cells - len(first)}}" if last != first else first
    return [*rows, f"{'':>{margin}} {corner}{below * cells}", gap + under]


def _place(value: float, ends: tuple[float, float], count: int) -> int:
    """Return which of `count` positions a value has between two ends; the middle if the ends are the same."""
    least, largest = ends
    share = (value - least) / (largest - least) if largest > least else 0.5
    return round(share * (count - 1))


def _stroke(line: Mapping[int, float], canvas: Canvas) -> set[tuple[int, int]]:
    """Return the dots of a line, drawn through the mean of the values in each column."""
    columns: dict[int, list[float]] = {}
    for x, y in line.items():
        columns.setdefault(canvas.dot(x, y)[0], []).append(y)
    corners = [(column, canvas.dot(0, sum(ys) / len(ys))[1]) for column, ys in sorted(columns.items())]
    dots = set(corners)
    for (x, y), (next_x, next_y) in pairwise(corners):
        steps = max(next_x - x, abs(next_y - y))
        dots |= {(x + round((next_x - x) * step / steps), y + round((next_y - y) * step / steps))
                 for step in range(steps)}
    return dots


def _characters(dots: set[tuple[int, int]], width: int, height: int, braille: bool) -> list[list[str]]:
    if not braille:
        return [[STAR if (column, row) in dots else " " for column in range(width)] for row in range(height)]
    cells = [[0] * width for _ in range(height)]
    for column, row in dots:
        cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
    return [[chr(_BRAILLE + cell) if cell else " " for cell in row] for row in cells]
