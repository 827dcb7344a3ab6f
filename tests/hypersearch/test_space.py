"""Values of parameters."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from simulated import RATE, definition, rung_search

from local_backend.hypersearch import space
from local_backend.hypersearch.definition import Parameter


def ranges() -> st.SearchStrategy[Parameter]:
    """Return parameters of all forms."""
    small = st.integers(-1000, 1000)

    def whole(low: int, width: int, step: int | None) -> Parameter:
        return Parameter("p", "INT", low, low + width, step=step)

    def real(low: int, width: int, step: int | None) -> Parameter:
        return Parameter("p", "DOUBLE", low / 100, (low + width) / 100, step=None if step is None else step / 1000)

    def powered(low: int, width: int, step: int | None) -> Parameter:
        return Parameter("p", "DOUBLE", low / 100, (low + width) / 100, step=None if step is None else step / 100,
                         power=10.0)

    def log(low: int, width: int, step: int | None) -> Parameter:
        return Parameter("p", "INT" if step is None else "DOUBLE", abs(low) + 1, abs(low) + 1 + width, log=True)

    width, step = st.integers(0, 500), st.none() | st.integers(1, 50)
    choices = st.lists(st.text() | small, min_size=1, unique=True).map(
        lambda values: Parameter("p", "STR", choices=tuple(map(str, values))))
    return st.one_of(*(st.builds(one, small, width, step) for one in (whole, real, log)),
                     st.builds(powered, st.integers(-300, 0), width, step), choices)


@given(ranges(), st.floats(0, 1, exclude_max=True))
def test_every_draw_has_a_place(one: Parameter, part: float) -> None:
    value = space.draw(one, part)
    place = space.place(one, value)
    assert place is not None
    assert space.at(one, place) == value
    if one.choices:
        assert value in one.choices
    else:
        low, high = (one.low, one.high) if one.power is None else (one.power**one.low, one.power**one.high)
        assert isinstance(value, int if one.data == "INT" else float)
        rounding = 1e-9 * max(1, abs(low), abs(high))
        assert low - rounding <= value <= high + rounding


def test_steps_are_rounded() -> None:
    one = Parameter("p", "DOUBLE", 0.01, 1.0, step=0.01)
    assert [space.text(space.at(one, number)) for number in (0, 46, 99)] == ["0.01", "0.47", "1.0"]
    assert space.points(one) == 100
    assert space.text(space.at(Parameter("p", "DOUBLE", 0.001, 0.1, step=0.002), 47)) == "0.095"


def test_both_ends_of_whole_numbers_occur() -> None:
    one = Parameter("p", "INT", 1, 14)
    assert {space.draw(one, space.uniform(1, number)) for number in range(500)} == set(range(1, 15))


def test_powers_are_uniform_in_their_range() -> None:
    one = Parameter("p", "DOUBLE", -2.0, 5.0, power=10.0)
    values = [float(space.draw(one, space.uniform(3, number))) for number in range(2000)]
    assert 0.45 < sum(value < 50_000 for value in values) / len(values) < 0.55
    log = Parameter("p", "DOUBLE", -2.0, 5.0, power=10.0, log=True)
    values = [math.log10(float(space.draw(log, space.uniform(3, number)))) for number in range(2000)]
    assert 0.45 < sum(value < 1.5 for value in values) / len(values) < 0.55


def test_powers_with_steps_are_a_grid_of_exponents() -> None:
    one = definition("Random", space=[{"name": "p", "type": "Range", "dataType": "INT", "minIntVal": 3, "maxIntVal": 8,
                                       "power": 2, "step": 1}]).parameters[0]
    assert [space.at(one, number) for number in range(int(space.points(one)))] == [8, 16, 32, 64, 128, 256]


def test_the_stream_of_numbers_never_changes() -> None:
    """Searches that began with an earlier version go on with the same experiments."""
    assert [space.uniform(42, number, "rate") for number in range(3)] == STREAM
    assert space.seed_of(42, "suggestion", 7) == SEED


STREAM = [0.4290863545540675, 0.2473038812976418, 0.7625093575714765]
SEED = 1422841275
TREE = [
    {"name": "o", "type": "Discrete", "dataType": "STR", "discreateStrVal": ["sgd", "adam"]},
    {"name": "m", "type": "Discrete", "dataType": "INT", "discreteIntVal": [1, 2, 3], "if": {"o": "sgd"}},
    {"name": "b", "type": "Range", "dataType": "INT", "minIntVal": 1, "maxIntVal": 2, "if": {"m": [2, 3]}},
]


def test_samples_have_only_parameters_that_apply() -> None:
    found = definition("Random", space=TREE)
    samples = [space.sample(found.parameters, 1, number) for number in range(300)]
    assert samples == [space.sample(found.parameters, 1, number) for number in range(300)]
    assert all(("m" in one) == (one["o"] == "sgd") and ("b" in one) == (one.get("m", 0) in (2, 3)) for one in samples)
    assert len(Counter(map(str, samples))) == 6


def test_a_grid_has_each_combination_once() -> None:
    cells = list(space.grid(definition("Grid", space=TREE).parameters))
    assert cells == [{"o": "sgd", "m": 1}, {"o": "sgd", "m": 2, "b": 1}, {"o": "sgd", "m": 2, "b": 2},
                     {"o": "sgd", "m": 3, "b": 1}, {"o": "sgd", "m": 3, "b": 2}, {"o": "adam"}]


def test_experiments_are_shown_as_wmla_shows_them() -> None:
    found = rung_search("Hyperband", 81, space=[RATE])
    assert space.listing(found, {"rate": 0.07682903454845375}, 1) == [
        {"name": "rate", "dataType": "double", "userDefined": False, "fixedVal": "0.07682903454845375"},
        {"name": "epochs", "dataType": "str", "userDefined": False, "fixedVal": "1"}]
    assert space.config(found, {"rate": 0.5}, 27) == {"rate": 0.5, "epochs": 27}
