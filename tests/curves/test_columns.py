"""Curves for drawing: what a column of pixels keeps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from local_backend.curves.columns import PER_COLUMN, drawn, within
from local_backend.curves.file import Point

STEPS = st.floats(-1e6, 1e6, allow_nan=False).map(lambda one: round(one, 3))
VALUES = st.floats(allow_nan=False, allow_infinity=False, width=32)
POINTS = st.dictionaries(STEPS, VALUES, max_size=300).map(
    lambda found: [(step, found[step], None) for step in sorted(found)]
)


def column(points: Sequence[Point], width: int, step: float) -> int:
    """Return the column of a step by the definition: columns of equal size over all points."""
    first, last = points[0][0], points[-1][0]
    return min(width - 1, int((step - first) * (width / (last - first)))) if last > first else 0


@given(POINTS, st.integers(1, 400))
def test_few_points_stay_as_they_are(points: list[Point], width: int) -> None:
    if len(points) <= width:
        assert drawn(points, width) == points


@given(POINTS, st.integers(1, 40))
def test_each_column_keeps_its_ends_and_its_extremes(points: list[Point], width: int) -> None:
    kept = drawn(points, width)
    assert len(kept) <= PER_COLUMN * width
    assert [point[0] for point in kept] == sorted({point[0] for point in kept})
    assert set(kept) <= set(points)
    for number in range(width):
        every = [point for point in points if column(points, width, point[0]) == number]
        some = [point for point in kept if column(points, width, point[0]) == number]
        assert bool(every) == bool(some)
        if every:
            assert (some[0], some[-1]) == (every[0], every[-1])
            assert min(some, key=lambda one: one[1])[1] == min(every, key=lambda one: one[1])[1]
            assert max(some, key=lambda one: one[1])[1] == max(every, key=lambda one: one[1])[1]


@given(POINTS, STEPS, STEPS)
def test_a_part_has_all_its_points_and_one_more_on_each_side(points: list[Point], one: float, other: float) -> None:
    start, stop = min(one, other), max(one, other)
    found = list(within(points, start, stop))
    inner = [point for point in points if start <= point[0] <= stop]
    before = [point for point in points if point[0] < start][-1:]
    after = [point for point in points if point[0] > stop][:1]
    assert found == before + inner + after


def test_without_limits_a_part_is_everything() -> None:
    points: list[Point] = [(0.0, 1.0, None), (1.0, 2.0, 5.0)]
    assert list(within(points, None, None)) == points
    assert drawn([], 10) == []


def test_a_peak_of_one_step_stays_visible() -> None:
    points: list[Point] = [(float(step), math.sin(step / 1000), None) for step in range(100_000)]
    points[54_321] = (54_321.0, 1000.0, None)
    assert (54_321.0, 1000.0, None) in drawn(points, 300)
