"""Curves for drawing: of the points in one column of pixels, only those that change the picture.

A column keeps its first, its lowest, its highest and its last point. Lines through the kept points cover the same
pixels as lines through all points (the aggregation M4: Jugel et al., VLDB 2014).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from local_backend.curves.file import Point

#: Limits of the number of columns.
LEAST_WIDTH, MOST_WIDTH = 1, 4000
#: Maximum number of points of one column.
PER_COLUMN = 4


def within(points: Sequence[Point], start: float | None, stop: float | None) -> Sequence[Point]:
    """Return the points whose steps are in [start, stop], and one more on each side: the lines to them are visible.
    `points` are in the order of their steps; None: no limit."""
    low = 0 if start is None else max(0, bisect_left(points, start, key=_step) - 1)
    high = len(points) if stop is None else bisect_right(points, stop, key=_step) + 1
    return points[low:high]


def drawn(points: Sequence[Point], width: int) -> list[Point]:
    """Return the points to draw in `width` columns of equal size, in the order of their steps: all points if the
    columns could keep that many."""
    if len(points) <= PER_COLUMN * width:
        return list(points)
    kept = kept_numbers(array("d", [point[0] for point in points]), array("d", [point[1] for point in points]), width)
    return [points[number] for number in kept]


def kept_numbers(steps: array[float], values: array[float], width: int) -> Sequence[int]:
    """Return the numbers of the points to draw in `width` columns of equal size: all numbers if the
    columns could keep that many points. `steps` increase."""
    count = len(steps)
    if count <= PER_COLUMN * width:
        return range(count)
    first, last = steps[0], steps[-1]
    scale = width / (last - first) if last > first else 0.0
    kept: list[int] = []
    at = 0
    for column in range(1, width + 1):
        end = count
        if column < width and scale:
            end = bisect_left(steps, first + column / scale, at)
            # The computed limit of a column is rounded, so compare with the columns of the steps around it.
            while end < count and int((steps[end] - first) * scale) < column:
                end += 1
            while end > at and int((steps[end - 1] - first) * scale) >= column:
                end -= 1
        if end > at:
            kept += _kept(values[at:end], at)
            at = end
    return kept


def _kept(values: array[float], at: int) -> list[int]:
    """Return the numbers of the first, lowest, highest and last of these values, each once. `at`: the first number."""
    lowest, highest = values.index(min(values)), values.index(max(values))
    return sorted({at, at + lowest, at + highest, at + len(values) - 1})


def _step(point: Point) -> float:
    return point[0]
