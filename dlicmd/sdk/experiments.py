"""The experiments of a search as rows, the best value so far, and the wait for its end."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from dlicmd.contract import states, wire
from dlicmd.contract.reading import number
from dlicmd.sdk.follow import POLL_FIRST, POLL_LAST, Clock, patiently
from dlicmd.sdk.search_calls import SearchCalls
from dlicmd.sdk.search_objects import Experiment, Search

VALUE, EXEC = "value", "exec"
#: Experiments of one answer about a large search.
_PAGE = 200
#: Columns before those of the parameters, and after them.
_FIRST = (wire.ID, wire.STATE, VALUE)
_LAST = (wire.RESOURCE, wire.RUNG, EXEC, wire.START_TIME, wire.END_TIME, wire.MESSAGE)


class Rows(NamedTuple):
    """Experiments as rows: the names of the columns, and a dictionary for each experiment. `parameters` are the columns
    with the parameters."""

    columns: list[str]
    parameters: list[str]
    rows: list[dict[str, Any]]


class BestSoFar(NamedTuple):
    """A finished experiment with its value, the best value until then, and the experiment that has this value."""

    experiment: Experiment
    value: float
    best: float
    leader: Experiment


def table(search: Search) -> Rows:
    """Return the experiments of a search as rows, in the order of the server. A parameter with the name of another
    column gets `param ` before it. Values that are unknown are None."""
    experiments = search.experiments
    others = list(dict.fromkeys(f"{one.name} {way}" for found in experiments for one in found.metrics
                                for way in ("min", "max", "latest")))
    taken = {*_FIRST, *_LAST, *others}
    named = {name: f"param {name}" if name in taken else name
             for found in experiments for name in found.parameters}
    rows = []
    for found in experiments:
        more = {f"{one.name} {way}": getattr(one, way) for one in found.metrics for way in ("min", "max", "latest")}
        rows.append({
            wire.ID: _number(found.id), wire.STATE: found.state, VALUE: found.value,
            **{named[name]: value for name, value in found.parameters.items()}, **more,
            wire.RESOURCE: found.resource, wire.RUNG: found.rung, EXEC: found.app_id or None,
            wire.START_TIME: found.start_time or None, wire.END_TIME: found.end_time or None,
            wire.MESSAGE: found.message or None,
        })
    parameters = list(named.values())
    optional = {wire.RESOURCE, wire.RUNG, wire.MESSAGE}
    last = [name for name in _LAST if name not in optional or any(row[name] is not None for row in rows)]
    columns = [*_FIRST, *parameters, *others, *last]
    return Rows(columns, parameters, [{name: row.get(name) for name in columns} for row in rows])


def best_first(search: Search, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of `table` with the best value first, and those without a value last."""
    sign = -1 if search.is_maximized else 1
    return sorted(rows, key=lambda row: (row[VALUE] is None, sign * (row[VALUE] or 0.0)))


def _number(text: str) -> int | str:
    found = number(text)
    return text if found is None or found != int(found) else int(found)


def best_so_far(search: Search) -> list[BestSoFar]:
    """Return an entry for each experiment that has finished with a value, in the order of the server. The first of
    equal values is the best."""
    found: list[BestSoFar] = []
    for one in search.experiments:
        if one.state != states.FINISHED or one.value is None:
            continue
        best, leader = one.value, one
        if found and not (best > found[-1].best if search.is_maximized else best < found[-1].best):
            best, leader = found[-1].best, found[-1].leader
        found.append(BestSoFar(one, one.value, best, leader))
    return found


def watch(client: SearchCalls, name: str, clock: Clock) -> Iterator[Search]:
    """Yield a search repeatedly until it has ended. Raises WaitTimeout, NoSuchSearch, Unreachable.

    A server that cannot be reached at first is an error. A server that becomes unreachable later is tried again.
    """
    found = client.search(name)
    client = client.impatient()
    pause = POLL_FIRST
    while True:
        yield found
        if found.has_ended:
            return
        clock.sleep(pause)
        pause = min(POLL_LAST, pause * 1.3)
        found = patiently(clock, partial(_now, client, name, found))


def _now(client: SearchCalls, name: str, before: Search) -> Search:
    """Return a search as it is now. Of a large one, ask only for those experiments that are not over, or that have
    ended since `before`."""
    if len(before.experiments) <= _PAGE:
        return client.search(name)
    found = client.search_state(name)
    if wire.EXPERIMENTS in found.json:  # a server without pages
        return found
    if found.has_ended:
        return client.search(name)
    known = {one.id: one for one in before.experiments}
    for one in _pages(client, name, f"state={','.join(states.OPEN_EXPERIMENTS)}"):
        known[one.id] = one
    for one in _pages(client, name, f"state={','.join(states.ENDED_EXPERIMENTS)}&sort={wire.END_TIME}&down=true"):
        if one.id in known and known[one.id].json == one.json:
            break
        known[one.id] = one
    ordered = sorted(known.values(), key=lambda one: number(one.id) or 0)
    return Search({**found.json, wire.EXPERIMENTS: [one.json for one in ordered]})


def _pages(client: SearchCalls, name: str, query: str) -> Iterator[Experiment]:
    for at in itertools.count(0, _PAGE):
        page = client.search_experiments(name, f"{query}&limit={_PAGE}&offset={at}")
        yield from page
        if len(page) < _PAGE:
            return


def clock_for(name: str, timeout: float | None) -> Clock:
    """Return the time limit of a wait for a search."""
    return Clock(name, timeout, method="Client.search_job")
