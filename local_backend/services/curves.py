"""Curves of runs for drawing, for pages and for REST."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from local_backend.curves.columns import LEAST_WIDTH, MOST_WIDTH, drawn, within
from local_backend.curves.file import Point
from local_backend.curves.point_reader import PointReader
from local_backend.errors import Invalid, StorageFailed
from local_backend.services.access import Caller
from local_backend.services.execs import ExecService


@dataclass(frozen=True)
class StepWindow:
    """A part of the steps, and the number of columns of pixels to draw it in."""

    width: int
    start: float | None = None
    stop: float | None = None


@dataclass(frozen=True)
class DrawnCurve:
    """A curve with only the points that are visible in a window."""

    name: str
    source: str
    step_unit: str
    points: Sequence[Point]
    #: Number of values that were not finite.
    left: int = 0


@dataclass(frozen=True)
class CurveService:
    """Curves for drawing."""

    execs: ExecService

    def drawn(self, caller: Caller, exec_id: str, metrics: Collection[str], window: StepWindow) -> list[DrawnCurve]:
        """Return the curves named in `metrics`, or all. Raises NotFound (`exec.not_found`), StorageFailed, Invalid
        (`query.number`, `query.value`)."""
        _check(window)
        reader = self._reader(caller, exec_id)
        thinned = [] if reader and reader.complete else self._thinned(caller, exec_id, metrics)
        if not reader:
            return [replace(curve, points=_seen(curve.points, window)) for curve in thinned]
        try:
            return _from_all(reader, metrics, window, thinned)
        except OSError as problem:
            raise _unreadable(exec_id, problem) from None

    def names(self, caller: Caller, exec_id: str) -> list[str]:
        """Return the names of the curves. Raises NotFound (`exec.not_found`), StorageFailed."""
        reader = self._reader(caller, exec_id)
        found = reader.curves(()) if reader else []
        known = [curve.name for curve in found]
        if reader and reader.complete:
            return known
        return list(dict.fromkeys([*known, *(curve.name for curve in self._thinned(caller, exec_id, ()))]))

    def _reader(self, caller: Caller, exec_id: str) -> PointReader:
        paths = self.execs.paths(self.execs.find(caller, exec_id))
        try:
            return PointReader(lambda name: paths.opened(paths.points / name))
        except OSError as problem:
            raise _unreadable(exec_id, problem) from None

    def _thinned(self, caller: Caller, exec_id: str, metrics: Collection[str]) -> list[DrawnCurve]:
        """Return curves with the points that the smaller file has."""
        found = json.loads(self.execs.curves(caller, exec_id, metrics, ""))
        return [DrawnCurve(one["name"], one["source"], one["stepUnit"], [tuple(point) for point in one["points"]],
                           one.get("left", 0)) for one in found["curves"]]


def _from_all(
    reader: PointReader, metrics: Collection[str], window: StepWindow, thinned: Sequence[DrawnCurve]
) -> list[DrawnCurve]:
    """Return the curves of which all points are kept. Those that the files lack come from the thinned curves."""
    others = {(curve.source, curve.name): curve for curve in thinned}
    curves = []
    for one in reader.curves(metrics):
        points: list[Point] = [(step, value, None) for step, value in reader.points(
            one, window.width, window.start, window.stop)]
        other = others.pop((one.source, one.name), None)
        if other is not None:
            last = reader.last_step(one)
            newer = [point for point in other.points if point[0] > last]
            points += within(newer, window.start, window.stop)
        curves.append(DrawnCurve(one.name, one.source, one.unit, drawn(points, window.width)))
    return [*curves, *(replace(curve, points=_seen(curve.points, window)) for curve in others.values())]


def _seen(points: Sequence[Point], window: StepWindow) -> list[Point]:
    return drawn(within(points, window.start, window.stop), window.width)


def _unreadable(exec_id: str, problem: OSError) -> StorageFailed:
    return StorageFailed("exec.result_failed", f"The server cannot read the curves of {exec_id} ({problem.strerror})")


def _check(window: StepWindow) -> None:
    """Refuse a window that is impossible. Raises Invalid."""
    if not LEAST_WIDTH <= window.width <= MOST_WIDTH:
        raise Invalid("query.number", f"width: {window.width} is not from {LEAST_WIDTH} to {MOST_WIDTH}")
    limits = [limit for limit in (window.start, window.stop) if limit is not None]
    if not all(map(math.isfinite, limits)):
        raise Invalid("query.value", "from, to: not finite numbers")
    if len(limits) == 2 and limits[0] > limits[1]:
        raise Invalid("query.value", f"from: {limits[0]:g} is greater than to: {limits[1]:g}")
