"""A chart in characters: lines of braille dots, or of one character for each line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from dlicmd.cli.show.numbers import told_apart

#: Characters for lines without braille.
SIGNS = "*o+x#@%&" + "abcdefghijklmnpqrstuvwyz" + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: The character for a line with a single dot, which is hard to see in braille.
_DOT = "o"
#: The first character of braille, and what each dot of a character adds to it: by row, then column.
_BRAILLE = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
#: The axes, with and without braille: to the left, to the left beside a label, the corner, below.
_AXES = {True: ("│", "┤", "└", "─"), False: ("|", "|", "+", "-")}
_LEAST_CELLS = 8

#: A line: pairs of x and y, finite numbers.
Line = Sequence[tuple[float, float]]


class Cell(NamedTuple):
    """A character of the chart, and the number of the line that it shows; -1 for none."""

    text: str = " "
    line: int = -1


class Canvas(NamedTuple):
    """The area of a chart: the numbers of dots, and the functions that place `x` and `y` from the lower left."""

    columns: int
    rows: int
    across: Callable[[float], int]
    up: Callable[[float], int]


def chart(
    lines: Sequence[Line], width: int, height: int, x_name: str = "", *, braille: bool = True, stepped: bool = False,
    painted: Callable[[str, int], str] = lambda text, _: text,
) -> list[str]:
    """Return `height` rows of a chart, the axis below it and its labels. A row has at most `width` columns, but never
    fewer than axes and labels need.

    Args:
        lines: The lines; at least one has a point. Where lines meet, the first of them is seen.
        width: Columns of a row.
        height: Rows, at least 2.
        x_name: Name of the x axis.
        braille: Whether to draw lines of dots; else line n has the character `SIGNS[n]`.
        stepped: Whether a line keeps each value until the next one, instead of running straight to it.
        painted: Function that colors a text of the line with this number.
    """
    xs, ys = [x for line in lines for x, _ in line], [y for line in lines for _, y in line]
    (left, right), (low, high) = (min(xs), max(xs)), (min(ys), max(ys))
    middle = height // 2
    share = middle / (height - 1)
    labels = {middle: told_apart([low])[0]} if low == high else dict(zip(
        (0, middle, height - 1), told_apart([high, high * (1 - share) + low * share, low]), strict=True))
    margin = max(map(len, labels.values()))
    cells = max(_LEAST_CELLS, width - margin - 2)
    dots = (2, 4) if braille else (1, 1)
    columns, rows = cells * dots[0], height * dots[1]
    canvas = Canvas(columns, rows, _placed(left, right, columns), _placed(low, high, rows))
    strokes = [(_stepped if stepped else _stroke)(line, canvas) for line in lines]
    body = (_dotted if braille else _signed)(strokes, cells, height)
    side, tick, corner, below = _AXES[braille]
    drawn = [f"{labels.get(row, ''):>{margin}} {tick if row in labels else side}{_text(body, row, cells, painted)}"
             for row in range(height)]
    under = _under(told_apart([left, right]), x_name, cells)
    return [*drawn, f"{'':>{margin}} {corner}{below * cells}", " " * (margin + 2) + under]


def _placed(least: float, largest: float, count: int) -> Callable[[float], int]:
    """Return the function from a value between two ends to one of `count` positions; the middle if the ends are the
    same."""
    # Halves, because the difference of two large numbers may be infinite.
    span = largest / 2 - least / 2
    if not span:
        return lambda _: (count - 1) // 2
    return lambda value: round((value / 2 - least / 2) / span * (count - 1))


def _stroke(line: Line, canvas: Canvas) -> set[tuple[int, int]]:
    """Return the dots of a line as column and row from the upper left. The line runs through the mean of the values in
    each column."""
    columns: dict[int, list[float]] = {}
    for x, y in line:
        columns.setdefault(canvas.across(x), []).append(y)
    corners = [(column, canvas.rows - 1 - canvas.up(_mean(ys))) for column, ys in sorted(columns.items())]
    dots = set(corners)
    for (x, y), (next_x, next_y) in pairwise(corners):
        steps = max(next_x - x, abs(next_y - y))
        dots |= {(x + round((next_x - x) * step / steps), y + round((next_y - y) * step / steps))
                 for step in range(steps)}
    return dots


def _stepped(line: Line, canvas: Canvas) -> set[tuple[int, int]]:
    """Return the dots of a line that keeps each value until the next one. Of values in one column, the last one
    counts."""
    columns = {canvas.across(x): canvas.rows - 1 - canvas.up(y) for x, y in line}
    corners = sorted(columns.items())
    dots = set(corners)
    for (x, y), (next_x, next_y) in pairwise(corners):
        dots |= {(column, y) for column in range(x, next_x + 1)}
        dots |= {(next_x, row) for row in range(min(y, next_y), max(y, next_y) + 1)}
    return dots


def _mean(values: Sequence[float]) -> float:
    """Return the mean, also of numbers with an infinite sum, within the least and the largest value."""
    count = len(values)
    return min(max(sum(value / count for value in values), min(values)), max(values))


def _dotted(strokes: Sequence[Iterable[tuple[int, int]]], width: int, height: int) -> Mapping[tuple[int, int], Cell]:
    """Return the cells of braille, by row and column."""
    bits: dict[tuple[int, int], int] = {}
    owners: dict[tuple[int, int], int] = {}
    for number, stroke in reversed(list(enumerate(strokes))):
        for column, row in stroke:
            place = row // 4, column // 2
            bits[place] = bits.get(place, 0) | _DOTS[row % 4][column % 2]
            owners[place] = number
    found = {place: Cell(chr(_BRAILLE + bit), owners[place]) for place, bit in bits.items()}
    single = {number: stroke for number, stroke in enumerate(strokes) if len(list(stroke)) == 1}
    return found | {(row // 4, column // 2): Cell(_DOT, number)
                    for number, stroke in single.items() for column, row in stroke}


def _signed(strokes: Sequence[Iterable[tuple[int, int]]], width: int, height: int) -> Mapping[tuple[int, int], Cell]:
    """Return the cells of characters, by row and column."""
    return {(row, column): Cell(sign(number), number)
            for number, stroke in reversed(list(enumerate(strokes))) for column, row in stroke}


def sign(number: int) -> str:
    """Return the character of the line with this number."""
    return SIGNS[number % len(SIGNS)]


def _text(
    body: Mapping[tuple[int, int], Cell], row: int, cells: int, painted: Callable[[str, int], str],
) -> str:
    """Return a row of the chart, with each run of cells of one line painted, and without blanks at the end."""
    last = max((column for at, column in body if at == row), default=-1)
    runs: list[Cell] = []
    for column in range(last + 1):
        cell = body.get((row, column), Cell())
        if runs and runs[-1].line == cell.line:
            runs[-1] = Cell(runs[-1].text + cell.text, cell.line)
        else:
            runs.append(cell)
    return "".join(painted(run.text, run.line) if run.line >= 0 else run.text for run in runs)


def _under(ends: Sequence[str], name: str, cells: int) -> str:
    """Return the labels of the x axis: its first value, its name in the middle, its last value; or, if it has only one
    value, the name and the value in the middle."""
    first, last = ends
    if first == last:
        return f"{f'{name} {first}'.strip():^{cells}}".rstrip()
    text = f"{first}{name:^{max(0, cells - len(first) - len(last))}}{last}"
    return text if len(text) <= cells else f"{first} {name} {last}"
