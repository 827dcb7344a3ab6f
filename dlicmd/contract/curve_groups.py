"""Jobs with equal values of a parameter, the mean of their curves, and the band around it. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

#: What a band shows: the lowest and the highest value, or the standard error of the mean on both sides of it.
RANGE, ERROR = SPREADS = ("range", "error")
#: Larger whole numbers may be equal as floats and differ as texts.
_MOST_EXACT = 2.0**53


class GroupPoint(NamedTuple):
    """The mean of the values of curves at one place of the axis, and the band around it. `curves` is the number of
    curves that have a value there."""

    place: float
    mean: float
    low: float
    high: float
    curves: int


def group_value(value: Any) -> Any:
    """Return the value that makes the group of a job, from the value of its parameter.

    That is a number for each spelling of it, and a text for other values. None stays None. `1_0`, and numbers with too
    many digits for a float, are texts."""
    if value is None or isinstance(value, bool):
        return value if value is None else "yes" if value else "no"
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return str(value)
    return number if abs(number) < _MOST_EXACT and "_" not in str(value) else str(value)


def group_text(value: Any) -> str:
    """Return the value of a group as a text. Different numbers have different texts."""
    if not isinstance(value, float):
        return "–" if value is None else str(value)
    short = f"{value:.12g}"
    return short if float(short) == value else f"{value:.17g}"


def combined(curves: Sequence[Sequence[tuple[float, float]]], columns: int, spread: str = RANGE) -> list[GroupPoint]:
    """Return the mean of curves and the band around it.

    A curve is a straight line between two of its points. Before its first point and after its last one, it does not
    count.

    Args:
        curves: The points (place, value) of each curve; the places increase.
        columns: Maximum number of places. If the curves have more, the mean has this many at equal distances.
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


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of finite values, which is finite, too."""
    try:
        return fmean(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)


def _point(place: float, values: Sequence[float], spread: str) -> GroupPoint:
    mean, low, high = mean_of(values), min(values), max(values)
    if spread == ERROR:
        error = _error(values)
        low, high = max(low, mean - error), min(high, mean + error)  # both differ from these ends by rounding alone
    return GroupPoint(place, mean, low, high, len(values))


def _error(values: Sequence[float]) -> float:
    """Return the standard error of the mean. Squares of large values would have no place in a float."""
    size = max(map(abs, values)) or 1.0
    return stdev(value / size for value in values) / math.sqrt(len(values)) * size if len(values) > 1 else 0.0
