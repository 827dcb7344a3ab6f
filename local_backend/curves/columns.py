"""Curves for drawing: of the points in one column of pixels, only those that change the picture.

A column keeps its first, its lowest, its highest and its last point. Lines through the kept points cover the same
pixels as lines through all points (the aggregation M4: Jugel et al., VLDB 2014).
"""

from __future__ import annotations

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
    """Return the points to draw in `width` columns of equal size, in the order of their steps: all points if they are
    at most as many as would be kept otherwise."""
    if len(points) <= PER_COLUMN * width:
        return list(points)
    first, last = points[0][0], points[-1][0]
    scale = width / (last - first) if last > first else 0.0
    kept: list[Point] = []
    at = 0
    while at < len(points):
        column = min(width - 1, int((points[at][0] - first) * scale))
        end = at + 1
        while end < len(points) and min(width - 1, int((points[end][0] - first) * scale)) == column:
            end += 1
        kept += _kept(points, at, end)
        at = end
    return kept


def _kept(points: Sequence[Point], at: int, end: int) -> list[Point]:
    """Return the first, lowest, highest and last of the points from `at` to before `end`, each once."""
    numbers = range(at, end)
    chosen = {at, min(numbers, key=lambda one: points[one][1]), max(numbers, key=lambda one: points[one][1]), end - 1}
    return [points[number] for number in sorted(chosen)]


def _step(point: Point) -> float:
    return point[0]
