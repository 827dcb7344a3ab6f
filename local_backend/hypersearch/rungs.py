"""Hyperband (Li et al., 2017) and ASHA (Li et al., 2018): pure arithmetic on rungs.

A rung is a limit of the resource. A bracket begins with many experiments at a low rung, and the best of each rung
continue at the next one: as new trainings, or, with `resume`, as the same experiments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from local_backend.hypersearch import space
from local_backend.hypersearch.definition import Beginning, Definition, Known

#: Powers of eta are not exact.
_ROUNDING = 1e-9


class Rung(NamedTuple):
    """Number of experiments of a rung, and their resource."""

    size: int
    resource: int


class Move(NamedTuple):
    """An experiment to create, or the id of a resting one with its next rung and resource."""

    begin: Beginning | None
    promote: tuple[int, int, int] | None = None


def resources(most: int, least: int, eta: float) -> tuple[int, ...]:
    """Return the resources of the longest bracket, ascending: most, most/eta, and so on, not below `least`."""
    found = [most]
    power = 1
    while most / eta**power >= least - _ROUNDING:
        found.append(max(least, math.floor(most / eta**power + _ROUNDING)))
        power += 1
    return tuple(reversed(found))


@lru_cache(maxsize=64)
def schedule(most: int, least: int, eta: float) -> tuple[tuple[Rung, ...], ...]:
    """Return the brackets of Hyperband in the order in which they run, each with its rungs. Neighboring rungs with the
    same resource, which small values of eta make, are one."""
    all_resources = resources(most, least, eta)
    top = len(all_resources) - 1
    brackets = []
    for s in range(top, -1, -1):
        count = math.ceil((top + 1) / (s + 1) * eta**s - _ROUNDING)
        rungs: list[Rung] = []
        for index, resource in enumerate(all_resources[top - s :]):
            if not rungs or resource > rungs[-1].resource:
                rungs.append(Rung(max(1, math.floor(count / eta**index + _ROUNDING)), resource))
        brackets.append(tuple(rungs))
    return tuple(brackets)


def is_active(one: Known) -> bool:
    """Return whether an experiment runs, or waits for its start."""
    return one.state in ("waiting", "running")


def value_at(one: Known, rung: int) -> float | None:
    """Return the value of an experiment at a rung. None if it is not known, or not a finite number. Raises ValueError
    for an experiment that has passed the rung, and has no value for it."""
    if len(one.values) > rung:
        value: float | None = one.values[rung]
    elif one.rung > rung:
        raise ValueError(f"experiment {one.id} has passed rung {rung}, but its value there is not known")
    else:
        value = None if one.rung < rung or is_active(one) or one.state == "failed" else one.value
    return finite(value)


def finite(value: float | None) -> float | None:
    """Return a value if it is a finite number, else None."""
    return value if value is not None and math.isfinite(value) else None


def best_first(members: Iterable[Known], rung: int, maximize: bool) -> list[Known]:
    """Return the members with a value at the rung: the best first, of equal ones that with the lowest id."""
    valued = [(value, one) for one in members if (value := value_at(one, rung)) is not None]
    return [one for _, one in sorted(valued, key=lambda pair: (-pair[0] if maximize else pair[0], pair[1].id))]


def _next(definition: Definition, one: Known, rung: int, resource: int) -> Move:
    """Return the move of an experiment to a rung."""
    if definition.resume:
        return Move(None, (one.id, rung, resource))
    return Move(Beginning(one.parameters, resource, one.bracket, rung, one.id))


def hyperband(definition: Definition, seed: int, known: Sequence[Known]) -> Iterator[Move | None]:
    """Yield the moves that are possible now, in order. None stands for experiments that must end first: what follows
    belongs to later brackets, and a search in batches waits."""
    assert definition.most_resource is not None
    first = 0
    brackets = schedule(definition.most_resource, definition.least_resource, definition.eta)
    for bracket, published in enumerate(brackets):
        rungs: tuple[Rung, ...] = published
        if definition.resume and definition.max_experiments is not None:
            rungs = _shortened(published, definition.max_experiments - first, definition.eta)
        if not rungs:
            return
        members = [one for one in known if one.bracket == bracket]
        yield from _bracket(definition, seed, members, rungs, (bracket, first))
        first += rungs[0].size


def _shortened(rungs: tuple[Rung, ...], most: int, eta: float) -> tuple[Rung, ...]:
    """Return the rungs of a bracket that may begin with `most` experiments only. Experiments that continue count once,
    so the limit would end them all in the first rungs, if these did not become smaller, too."""
    if most <= 0 or rungs[0].size <= most:
        return rungs if most > 0 else ()
    return tuple(Rung(max(1, math.floor(most / eta**index + _ROUNDING)), rung.resource)
                 for index, rung in enumerate(rungs))


def _bracket(definition: Definition, seed: int, members: Sequence[Known], rungs: Sequence[Rung],
             place: tuple[int, int]) -> Iterator[Move | None]:
    """Yield the possible moves of a bracket, then None if it is not complete. `place` has its number, and the number of
    its first sample."""
    bracket, first = place
    chosen = [one for one in members if definition.resume or one.rung == 0]
    for number in range(len(chosen), rungs[0].size):
        values = space.sample(definition.parameters, seed, first + number)
        yield Move(Beginning(values, rungs[0].resource, bracket))
    if len(chosen) < rungs[0].size:
        yield None
        return
    for rung in range(1, len(rungs)):
        if any(is_active(one) and one.rung < rung for one in chosen):
            yield None
            return
        best = best_first(chosen, rung - 1, definition.maximize)[: rungs[rung].size]
        if definition.resume:
            # An experiment that has ended before its rung has no more to do. It stays among the others.
            missing = [one for one in best if one.rung < rung and one.state == "resting"]
            chosen = [one if one.rung >= rung or one.state == "resting" else _stays(one, rung) for one in best]
        else:
            again = {one.origin: one for one in members if one.rung == rung}
            missing = [one for one in best if one.id not in again]
            chosen = [again[one.id] for one in best if one.id in again]
        yield from (_next(definition, one, rung, rungs[rung].resource) for one in missing)
        if missing:
            yield None
            return
    if any(map(is_active, chosen)):
        yield None


def _stays(one: Known, rung: int) -> Known:
    """Return an ended experiment as if it had passed on to a rung with the value that it has."""
    before = one.values[: one.rung]
    value = value_at(one, one.rung)
    return replace(one, rung=rung, values=(*before, *[math.nan if value is None else value] * (rung - len(before))))


def asha(definition: Definition, seed: int, known: Sequence[Known]) -> Iterator[Move]:
    """Yield the moves that are possible now, without end: the best experiment of the highest rung that belongs to the
    best 1/eta there and has not continued yet; without one, a new experiment at the lowest rung."""
    assert definition.most_resource is not None
    levels = asha_levels(definition)
    continued: set[tuple[int, int]] = set()
    members: list[list[Known]] = []
    for rung in range(len(levels)):
        here = [one for one in known if one.rung == rung or (definition.resume and one.rung > rung)]
        members.append(best_first(here, rung, definition.maximize))
        if definition.resume:
            # Those that ended before their rung have no more to do.
            continued |= {(rung, one.id) for one in here if one.rung > rung or one.state != "resting"}
    if not definition.resume:
        continued = {(one.rung - 1, one.origin) for one in known if one.origin is not None}
    for rung in range(len(levels) - 2, -1, -1):
        for one in members[rung][: int(len(members[rung]) / definition.eta + _ROUNDING)]:
            if (rung, one.id) not in continued:
                yield _next(definition, one, rung + 1, levels[rung + 1])
    number = sum(one.origin is None for one in known)
    while True:
        yield Move(Beginning(space.sample(definition.parameters, seed, number), levels[0]))
        number += 1


def asha_levels(definition: Definition) -> tuple[int, ...]:
    """Return the resources of the rungs of ASHA, ascending."""
    assert definition.most_resource is not None
    return tuple(dict.fromkeys(resources(definition.most_resource, definition.least_resource, definition.eta)))
