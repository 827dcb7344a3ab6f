"""The metrics of jobs with equal parameters as one curve: their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dlicmd.cli.show.series import Point, Series
from dlicmd.cli.show.values import PARAMETER, NamedValue, meant_value, value_of
from dlicmd.contract import wire
from dlicmd.contract.curve_groups import combined, group_text, group_value
from dlicmd.contract.reading import words
from dlicmd.sdk.errors import DlicmdError

#: Maximum number of points of a mean.
_MOST = 10_000


def grouped(jobs: Sequence[Mapping[str, Any]], series: Sequence[Series], names: Sequence[str]) -> list[Series]:
    """Return the mean of each metric of the jobs with equal values of these parameters; `name` is the name of a job if
    no job has such a parameter. Raises DlicmdError for a parameter that no job has."""
    keys = [_key(name, jobs) for name in names]
    titles = {words(job.get(wire.ID)): ", ".join(f"{label}={_shown(job, value)}" for label, value in keys)
              for job in jobs}
    found: dict[tuple[str, str, str, str], list[Series]] = {}
    for one in series:
        found.setdefault((titles[one.job], one.metric, one.step_unit, one.unit), []).append(one)
    return [_mean(title, members) for (title, *_), members in found.items()]


def _key(name: str, jobs: Sequence[Mapping[str, Any]]) -> tuple[str, NamedValue | None]:
    value = meant_value(name if name.startswith(f"{PARAMETER}.") else f"{PARAMETER}.{name}", jobs)
    if value is not None and value.kind == PARAMETER:
        return value.name, value
    if name == wire.NAME:
        return name, None
    raise DlicmdError(f"no job has a parameter '{name}'; dlicmd get ID -o json shows the parameters of a job")


def _shown(job: Mapping[str, Any], value: NamedValue | None) -> str:
    return words(job.get(wire.APP_NAME)) if value is None else group_text(group_value(value_of(job, value)))


def _mean(title: str, members: Sequence[Series]) -> Series:
    band = combined([[(point.step, point.value) for point in one.points] for one in members], _MOST)
    first, count = members[0], len(members)
    return Series(title, first.metric, [Point(one.place, one.mean) for one in band],
                  f"{count} job{'' if count == 1 else 's'}", first.step_unit, first.unit, first.source, band=band)
