"""The values of a metric of a job over its steps, ready to draw, to compare and to export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple

from dlicmd.contract import metric_names
from dlicmd.contract.curve_groups import GroupPoint
from dlicmd.contract.reading import items, number


class Point(NamedTuple):
    """One value. `step` counts in the unit of its series, `time` are epoch seconds or None."""

    step: float
    value: float
    time: float | None = None


class Series(NamedTuple):
    """One metric of one job. `points` has at least one point, and each step once, in the order of the steps.

    `name` is that of the job, `step_unit` is `step` or `epoch`, `unit` is that of the values or "". `left` is the
    number of values that are not finite, and therefore no points. `band`: the points of a mean of several jobs.
    """

    job: str
    metric: str
    points: Sequence[Point]
    name: str = ""
    step_unit: str = "step"
    unit: str = ""
    source: str = ""
    left: int = 0
    band: Sequence[GroupPoint] = ()

    @property
    def last(self) -> Point:
        """The point of the last step."""
        return self.points[-1]

    @property
    def best(self) -> Point:
        """The first point with the best value."""
        value = metric_names.best(self.metric, (point.value for point in self.points))
        return next(point for point in self.points if point.value == value)


def read(points: Any) -> list[Point]:
    """Return the points in the lists `[step, value, time]` of a server, in the order of their steps. If a step has
    several points, the last one counts. Anything else is left out."""
    found: dict[float, Point] = {}
    for point in items(points):
        if isinstance(point, list) and len(point) > 1:
            step, value = _number(point[0]), _number(point[1])
            if step is not None and value is not None:
                found[step] = Point(step, value, _number(point[2]) if len(point) > 2 else None)
    return sorted(found.values(), key=itemgetter(0))


def _number(value: Any) -> float | None:
    """Return a finite number or None, as `number`, in a third of the time for most points."""
    return value if type(value) is float and -inf < value < inf else None if value is None else number(value)


def of_losses(losses: Mapping[int, float]) -> list[Point]:
    """Return losses by step as points."""
    return [Point(float(step), loss) for step, loss in sorted(losses.items())]
