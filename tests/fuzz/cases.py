"""The numbers of random cases: some for every push, and many for a long run (`-m slow`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

#: Kind of case → number for every push, and for a long run.
CASES = {
    "calls of the API": (650, 20_000),
    "words": (3000, 50_000),
    "command lines": (500, 10_000),
    "args of submissions": (500, 10_000),
    "data parts of submissions": (250, 10_000),
    "data sources": (250, 5_000),
    "YAML files": (250, 5_000),
    "environments": (250, 3_000),
    "archives": (250, 10_000),
    "damaged archives": (150, 5_000),
    "zips of results": (60, 2_000),
}
_HOUR = 3600


def counted(what: str) -> pytest.MarkDecorator:
    """Run a test with both numbers of CASES, as its argument `cases`."""
    some, many = CASES[what]
    long = [pytest.mark.slow, pytest.mark.timeout(_HOUR)]
    return pytest.mark.parametrize("cases", [pytest.param(some, id="some"), pytest.param(many, id="many", marks=long)])


def tried(cases: int, *strategies: SearchStrategy[Any]) -> Callable[[Callable[..., None]], None]:
    """Run the decorated function for this many cases: the same ones every time, if fewer than 10,000."""

    def run(test: Callable[..., None]) -> None:
        made = 0

        def case(values: tuple[Any, ...]) -> None:
            nonlocal made
            made += 1
            test(*values)

        fixed = cases < 10_000
        settled = settings(max_examples=cases, database=None, derandomize=fixed, deadline=None,
                           suppress_health_check=list(HealthCheck))
        settled(given(st.tuples(*strategies))(case))()
        assert made >= cases, f"only {made} different cases can be made"

    return run
