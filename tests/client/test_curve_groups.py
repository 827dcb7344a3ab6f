"""The mean of curves, and the band around it."""

from __future__ import annotations

import math

import pytest

from dlicmd.contract.curve_groups import ERROR, combined


def test_more_places_than_columns_are_even_ones() -> None:
    line = [(float(step), 2.0 * step) for step in range(1000)]
    found = combined([line, line], 10)
    assert len(found) == 10 and (found[0].place, found[-1].place) == (0.0, 999.0)
    assert [point.mean for point in found] == pytest.approx([2 * point.place for point in found])
    assert [point.place for point in combined([line], 1)] == [999.0]


def test_the_error_is_that_of_the_mean() -> None:
    found = combined([[(0.0, 1.0)], [(0.0, 3.0)], [(0.0, 5.0), (1.0, 5.0)]], 10, ERROR)
    error = 2 / math.sqrt(3)
    assert found[0] == pytest.approx((0.0, 3.0, 3 - error, 3 + error, 3))
    assert found[1] == (1.0, 5.0, 5.0, 5.0, 1), "one curve has no error"


def test_no_curves_have_no_mean() -> None:
    assert combined([], 10) == [] and combined([[]], 10) == []
