"""CMA-ES as a function of the told results: the library's state is made anew for every suggestion. Only the suggester
imports this module.

Choices and conditional parameters are drawn at random, because CMA-ES knows only numbers that all experiments have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import cmaes
import numpy as np

from local_backend.hypersearch import space
from local_backend.hypersearch.definition import Definition, Parameter, Value

#: Standard deviation at the beginning, as a part of each range.
_SIGMA = 1 / 6


def suggestions(definition: Definition, seed: int, results: Sequence[tuple[Mapping[str, Value], float]], number: int,
                count: int) -> list[dict[str, Value]]:
    """Return `count` suggestions, the first of which has this number in the search."""
    return [_suggestion(definition, seed, results, number + index) for index in range(count)]


def _suggestion(definition: Definition, seed: int, results: Sequence[tuple[Mapping[str, Value], float]],
                number: int) -> dict[str, Value]:
    found = space.sample(definition.parameters, seed, number)
    numeric = [one for one in definition.parameters
               if not one.choices and not one.when and space.axis(one).low < space.axis(one).high]
    if not numeric:
        return found
    # The library needs 2 dimensions. A second one without meaning does no harm.
    size = max(2, len(numeric))
    told = [(point, -value if definition.maximize else value) for values, value in results
            if (point := _point(numeric, values, size)) is not None]
    state = _state(size, told, space.seed_of(seed, "suggestion", number))
    point = state.ask()
    return found | {one.name: space.draw(one, min(float(part), 1 - 2**-53))
                    for one, part in zip(numeric, point, strict=False)}


def _state(size: int, told: Sequence[tuple[np.ndarray, float]], seed: int) -> cmaes.CMA:
    """Return the state after the told generations. It begins again where the library would stop."""
    def fresh() -> cmaes.CMA:
        return cmaes.CMA(mean=np.full(size, 0.5), sigma=_SIGMA, bounds=np.tile([0.0, 1.0], (size, 1)), seed=seed)

    state = fresh()
    each = state.population_size
    for first in range(0, len(told) - each + 1, each):
        state.tell(list(told[first : first + each]))
        if state.should_stop():
            state = fresh()
    return state


def _point(numeric: Sequence[Parameter], values: Mapping[str, Value], size: int) -> np.ndarray | None:
    """Return the values as parts of their ranges: the inverse of `space.draw`. None if one is outside of its range."""
    point = np.full(size, 0.5)
    for index, one in enumerate(numeric):
        place = space.place(one, values[one.name]) if one.name in values else None
        if place is None:
            return None
        kind, low, high, log = space.axis(one)
        if kind == "whole":
            low, high = low - 0.5, high + 0.5
        if log:
            low, high, place = math.log(low), math.log(high), math.log(place)
        point[index] = (place - low) / (high - low)
    return point
