"""Decides what a search does next: a pure function of its definition, its seed, and what it knows of its experiments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from statistics import median

from local_backend.hypersearch import rungs, space
from local_backend.hypersearch.definition import ASKING, WITH_RUNGS, Beginning, Definition, Known, Step

#: The terminator ends a search of at least `_FEW` results when the last part of them, half and at least `_PATIENCE`,
#: has improved the best value by less than `_GAIN` of the distance between the best and the median value.
_FEW, _PATIENCE, _GAIN = 20, 10, 0.01
#: More experiments than a search starts in one step, for limits that do not exist.
_NO_LIMIT = 2**31


def next_step(definition: Definition, seed: int, known: Sequence[Known], exhausted: bool = False) -> Step:
    """Return what to do now.

    `known` has all experiments of the search in order of their ids. `exhausted` says that the plugin has suggested
    fewer experiments than it was asked for. Not more than `parallel` experiments run after the step.
    """
    active = sum(map(rungs.is_active, known))
    if gave_up(definition, known) or no_gain(definition, known):
        return Step(over=not active)
    places = definition.parallel - active
    if places <= 0 or (active and definition.refill == "batch"):
        return Step()
    new = max(0, (definition.max_experiments or _NO_LIMIT) - len(known))
    if definition.algorithm in WITH_RUNGS:
        found = _in_rungs(definition, seed, known, places, new)
    elif definition.algorithm in ASKING or definition.plugin:
        found = Step(ask=0 if exhausted else min(places, new))
    else:
        found = Step(start=tuple(islice(_listed(definition, seed, known), min(places, new))))
    return found if active or found != Step() else Step(over=True)


def gave_up(definition: Definition, known: Sequence[Known]) -> bool:
    """Return whether more experiments have failed than maxFailedJobNum permits."""
    return definition.max_failed is not None and sum(one.state == "failed" for one in known) > definition.max_failed


def no_gain(definition: Definition, known: Sequence[Known]) -> bool:
    """Return whether the search ends because no improvement is to be expected. Only with `terminator`."""
    told = sorted((one for one in known if one.told is not None), key=lambda one: one.told or 0)
    values = [(-one.value if definition.maximize else one.value) for one in told
              if one.value is not None and math.isfinite(one.value)]
    if not definition.terminator or len(values) < _FEW:
        return False
    last = max(_PATIENCE, len(values) // 2)
    before, best = min(values[:-last]), min(values)
    return before - best <= _GAIN * (median(values) - best)


def _in_rungs(definition: Definition, seed: int, known: Sequence[Known], places: int, new: int) -> Step:
    """Return the moves for the free places. At most `new` of them create experiments."""
    start: list[Beginning] = []
    promote: list[tuple[int, int, int]] = []
    moves: Iterable[rungs.Move | None] = (rungs.asha if definition.algorithm == "ASHA" else rungs.hyperband)(
        definition, seed, known)
    for move in moves:
        if move is None:
            if definition.refill == "batch":
                break
        elif move.promote is not None:
            promote.append(move.promote)
        elif len(start) < new and move.begin is not None:
            start.append(move.begin)
        else:
            break
        if len(start) + len(promote) == places:
            break
    return Step(tuple(start), tuple(promote))


def _listed(definition: Definition, seed: int, known: Sequence[Known]) -> Iterable[Beginning]:
    """Return the experiments that follow the known ones, for an algorithm that uses no results."""
    if definition.algorithm == "ExperimentGridSearch":
        ids = {one.id for one in known}
        return (Beginning(one.parameters, id=one.id) for one in definition.given if one.id not in ids)
    if definition.algorithm == "Grid":
        return map(Beginning, islice(space.grid(definition.parameters), len(known), None))
    return (Beginning(space.sample(definition.parameters, seed, number)) for number in range(len(known), _NO_LIMIT))
