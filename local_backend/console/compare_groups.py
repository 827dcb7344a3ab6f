"""Compared runs in groups with equal parameters: their curves, and the distribution of their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import Depends, Query

from dlicmd.contract import metric_names
from dlicmd.contract.curve_groups import RANGE, SPREADS
from local_backend.console.run_curves import across, look
from local_backend.services import exec_groups
from local_backend.services.comparisons import ComparedMetric
from local_backend.services.curves import StepWindow
from local_backend.services.exec_groups import Distribution, ExecGroup
from local_backend.services.services import Services
from local_backend.store.execs import ExecRow


@dataclass(frozen=True)
class GroupQuery:
    """The part of the address about groups."""

    #: Names of the values that make the groups; none for no groups.
    names: tuple[str, ...] = ()
    spread: str = RANGE

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The query of the address."""
        more = [("spread", self.spread)] if self.names and self.spread != RANGE else []
        return [*(("group", name) for name in self.names), *more]

    def toggled(self, name: str) -> GroupQuery:
        """Return the query with a name added, or left out."""
        others = tuple(one for one in self.names if one != name)
        return replace(self, names=others if len(others) < len(self.names) else (*self.names, name))

    def with_spread(self, spread: str) -> GroupQuery:
        """Return the query with another band."""
        return replace(self, spread=spread)


def groups_of(group: Annotated[Sequence[str], Query()] = (), spread: str = RANGE) -> GroupQuery:
    """Return the groups of an address."""
    return GroupQuery(tuple(dict.fromkeys(group)), spread)


TheGroups = Annotated[GroupQuery, Depends(groups_of)]


@dataclass(frozen=True)
class GroupLine:
    """A row of the table of groups. `values` is None if no run of the group has the metric."""

    group: ExecGroup
    values: Distribution | None
    is_best: bool = False


def shown(
    rows: Sequence[ExecRow], query: GroupQuery, metrics: Sequence[ComparedMetric], chosen: ComparedMetric | None
) -> dict[str, Any]:
    """Return what the page shows about groups. Raises Invalid (`query.value`)."""
    metric = chosen or next(iter(metrics), None)
    groups = exec_groups.grouped(rows, query.names) if query.names else []
    lines = _lines(groups, rows, metric) if metric is not None else [GroupLine(group, None) for group in groups]
    known = [line.values for line in lines if line.values is not None]
    low, high = min((one.least for one in known), default=0.0), max((one.most for one in known), default=0.0)
    offered = exec_groups.names(rows)
    offered += [name for name in query.names if name not in offered]
    numbers = {row.id: number for number, group in enumerate(groups) for row in group.rows}
    colors = numbers or {row.id: at for at, row in enumerate(rows)}
    return {"offered": offered, "lines": lines, "colors": colors, "spreads": SPREADS, "low": low,
            "size": (high - low) or 1.0,
            "measured": "" if metric is None else _title(metric)}


def _lines(groups: Sequence[ExecGroup], rows: Sequence[ExecRow], metric: ComparedMetric) -> list[GroupLine]:
    points = dict(zip((row.id for row in rows), metric.best or metric.last, strict=True))
    found = []
    for group in groups:
        of_group = [points[row.id] for row in group.rows]
        found.append(GroupLine(group, exec_groups.distribution([one[1] for one in of_group if one is not None])))
    means = [line.values.mean for line in found if line.values is not None]
    if not metric.best or len(set(means)) < 2:
        return found
    best = metric_names.best(metric.name, means)
    return [replace(line, is_best=line.values is not None and line.values.mean == best) for line in found]


def _title(metric: ComparedMetric) -> str:
    return f"{'best' if metric.best else 'last'} {metric.name}"


def chart(
    services: Services, rows: Sequence[ExecRow], query: GroupQuery, metric: str, window: StepWindow
) -> dict[str, Any]:
    """Return the curves of groups as charts.js draws them: the mean, and the band between `low` and `high`. Raises
    Invalid, StorageFailed."""
    groups = exec_groups.grouped(rows, query.names)
    numbers = {id(group): number for number, group in enumerate(groups)}
    found = services.comparisons.group_curves(groups, metric, window, query.spread)
    series = [{"name": f"{one.group.title} ({one.count} run{'' if one.count == 1 else 's'})",
               **look(numbers[id(one.group)]), "x": [point.place for point in one.points],
               **{key: [getattr(point, name) for point in one.points]
                  for key, name in (("y", "mean"), ("low", "low"), ("high", "high"))}} for one in found]
    units = (unit for one in found for unit in one.step_units)
    return {"x": across(window.axis, units), "y": {"label": ""}, "series": series,
            "left": sum(one.left for one in found)}
