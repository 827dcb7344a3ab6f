"""The mean of curves, and the band around it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dlicmd.contract.curve_groups import ERROR, RANGE, combined, group_text, group_value


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


@pytest.mark.parametrize("spread", [RANGE, ERROR])
def test_the_mean_of_large_values_is_finite(spread: str) -> None:
    [point] = combined([[(0.0, 1e308)], [(0.0, 1.7e308)]], 10, spread)
    assert (point.mean, point.low, point.high) == pytest.approx((1.35e308, 1e308, 1.7e308))
    [point] = combined([[(0.0, -1.7e308)], [(0.0, 1.7e308)]], 10, spread)
    assert (point.mean, point.low, point.high) == pytest.approx((0.0, -1.7e308, 1.7e308))


@pytest.mark.parametrize(("one", "other", "equal"), [
    ("0.1", "1e-1", True), (10, "10.0", True), ("1_0", "10", False), (True, 1, False), ("nan", float("nan"), True),
    ("20261129063801123", "20261129063801124", False), (1234567890123, 1234567890124, False), (10**400, "x", False),
    (None, "", False),
])
def test_equal_numbers_make_a_group_and_each_group_has_its_text(one: Any, other: Any, equal: bool) -> None:
    first, second = group_value(one), group_value(other)
    assert (first == second, group_text(first) == group_text(second)) == (equal, equal)
