"""Makes the workload of an experiment, and shows rows of experiments to the algorithms. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from dlicmd.contract.slips import meant
from local_backend.hypersearch import space
from local_backend.hypersearch.definition import Definition, Known, Value
from local_backend.store import searches
from local_backend.store.searches import ExperimentRow, SearchRow
from local_backend.submit import catalogue
from local_backend.workload import Membership, Workload

#: `metricVal` of an experiment without a value: worse than any other.
WORST = 9999.99
_SHOWN: dict[str, Any] = {
    searches.NOTRUN: "waiting", searches.SUBMITTED: "running", searches.RUNNING: "running",
    searches.WAITING: "resting", searches.FINISHED: "done",
}
#: Characters of the name of a search in the names of its jobs.
_NAME = 180
_PLACE = re.compile(r"\{([^{}]+)\}")


def failed_value(definition: Definition) -> float:
    """Return the `metricVal` of an experiment that failed."""
    return -WORST if definition.maximize else WORST


def known(row: ExperimentRow, definition: Definition) -> Known:
    """Return an experiment as the algorithms see it."""
    state = _SHOWN.get(row.state, "failed")
    measured = json.loads(row.measured) if row.measured else {}
    value = None if state == "failed" else measured.get(definition.metric)
    passed = json.loads(row.rungs) if row.rungs else []
    if definition.resume and value is not None:
        passed.append(value)
    return Known(
        id=row.id, parameters=row.values, state=state, resource=row.resource, bracket=row.bracket, rung=row.rung,
        value=value, told=row.told, origin=row.origin,
        metrics={} if state == "failed" else measured, values=tuple(passed),
    )


def workload(search: SearchRow, row: ExperimentRow, definition: Definition) -> Workload:
    """Return the workload of an experiment; `id` is still empty."""
    spec = Workload.from_json(search.workload)
    # With `resume`, the program trains all epochs, and the engine sets it aside at the rungs.
    values = space.config(definition, row.values, definition.most_resource if definition.resume else row.resource)
    names = frozenset(names_of(definition))
    command = spec.program.user_cmd
    program = replace(
        spec.program, parameters=values, arguments=tuple(filled(spec.program.arguments, values, names)),
        user_cmd=None if command is None else tuple(filled(command, values, names)),
    )
    name = spec.name
    if name == catalogue.BY_NAME[program.framework].app_name:  # the submission names none
        name = f"{search.name[:_NAME]} {row.id}"
    return replace(spec, name=name, program=program, parent=search.id, experiment=Membership(search.name, row.id))


def names_of(definition: Definition) -> set[str]:
    """Return the names of everything that config.json may contain."""
    found = {one.name for one in definition.parameters} | {name for one in definition.given for name in one.parameters}
    return found | ({definition.resource} if definition.resource else set())


def misspelled(words: Collection[str], names: Collection[str]) -> tuple[str, str] | None:
    """Return a name in braces that is none of `names`, but resembles one, and that one; None without such a name."""
    for name in (name for word in words for name in _PLACE.findall(word) if name not in names):
        if near := meant(name.strip(), names):
            return name, near
    return None


def filled(words: Collection[str], values: Mapping[str, Value], names: Collection[str]) -> list[str]:
    """Return the words of a program with the values of parameters in the places of their names in braces. A word with
    the name of a parameter that this experiment does not have is left out, with the option before it."""
    found: list[str] = []
    for word in words:
        asked = [name for name in _PLACE.findall(word) if name in names]
        if all(name in values for name in asked):
            found.append(_PLACE.sub(
                lambda place: space.text(values[place[1]]) if place[1] in values else place[0], word))
        elif _PLACE.fullmatch(word) and found and found[-1].startswith("-") and "=" not in found[-1]:
            found.pop()
    return found
