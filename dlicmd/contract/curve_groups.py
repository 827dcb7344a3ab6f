"""The mean of several curves, and the band around it. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

#: What a band shows: the lowest and the highest value, or the standard error of the mean on both sides of it.
RANGE, ERROR = SPREADS = ("range", "error")


class GroupPoint(NamedTuple):
    """The mean of the values of curves at one place of the axis, and the band around it. So many
    `curves` have a value there."""

    place: float
    mean: float
    low: float
    high: float
    curves: int


def combined(curves: Sequence[Sequence[tuple[float, float]]], columns: int, spread: str = RANGE) -> list[GroupPoint]:
    """Return the mean of curves and the band around it.

    A curve is a straight line between two of its points. Before its first point and after its last one, it does not
    count.

    Args:
        curves: The points (place, value) of each curve; the places increase.
        columns: Maximum number of places. If the curves have more places, so many even ones count.
        spread: RANGE or ERROR.
    """
    lines = [line for line in curves if line]
    places = _places(lines, columns)
    rows = [_along(line, places) for line in lines]
    found = ((place, [row[at] for row in rows]) for at, place in enumerate(places))
    return [_point(place, known, spread) for place, values in found
            if (known := [value for value in values if value is not None])]


def _places(lines: Sequence[Sequence[tuple[float, float]]], columns: int) -> list[float]:
    places = sorted({place for line in lines for place, _ in line})
    if len(places) <= columns:
        return places
    first, last = places[0], places[-1]
    even = [first + (last - first) * at / (columns - 1) for at in range(columns - 1)] if columns > 1 else []
    return [*even, last]


def _along(line: Sequence[tuple[float, float]], places: Sequence[float]) -> list[float | None]:
    """Return the value of a line at each place, None outside of the line."""
    found: list[float | None] = []
    at = 0
    for place in places:
        while at < len(line) and line[at][0] < place:
            at += 1
        if at == len(line) or (at == 0 and place < line[0][0]):
            found.append(None)
        elif line[at][0] == place:
            found.append(line[at][1])
        else:
            (left, low), (right, high) = line[at - 1], line[at]
            part = (place - left) / (right - left)
            found.append(low * (1 - part) + high * part)
    return found


def _point(place: float, values: Sequence[float], spread: str) -> GroupPoint:
    mean = fmean(values)
    if spread == RANGE:
        return GroupPoint(place, mean, min(values), max(values), len(values))
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return GroupPoint(place, mean, mean - error, mean + error, len(values))
