"""Curves of runs for drawing, for pages and for REST."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from dlicmd.contract.states import RECOVERING, RUNNING
from local_backend.curves.columns import LEAST_WIDTH, MOST_WIDTH, drawn, kept_numbers, within
from local_backend.curves.file import Point
from local_backend.curves.model import CPU, MEMORY, RESOURCE_KINDS
from local_backend.curves.point_reader import PointReader
from local_backend.errors import Invalid, StorageFailed
from local_backend.services.execs import ExecService
from local_backend.store.execs import ExecRow

#: Axes over which curves are drawn: steps, epoch seconds, and seconds since the start of the exec.
STEP_AXIS, TIME_AXIS, ELAPSED_AXIS = AXES = ("step", "time", "elapsed")
#: Seconds between points of the same time, so that each point has its own position on the axis.
_APART = 1e-6


@dataclass(frozen=True)
class StepWindow:
    """A part of the axis, and the number of columns of pixels to draw it in."""

    width: int
    start: float | None = None
    stop: float | None = None
    axis: str = STEP_AXIS

    def in_time(self, begin: float) -> StepWindow:
        """Return the window of an exec that began then, over epoch seconds in place of elapsed seconds."""
        start, stop = (None if one is None else one + begin for one in (self.start, self.stop))
        return replace(self, start=start, stop=stop, axis=TIME_AXIS)


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

    def drawn(self, row: ExecRow, metrics: Collection[str], window: StepWindow) -> list[DrawnCurve]:
        """Return the curves of an exec: those named in `metrics`, or all. Raises StorageFailed, Invalid
        (`query.number`, `query.value`)."""
        _check(window)
        if window.axis == ELAPSED_AXIS:
            begin = row.start_time or row.create_time
            return [replace(curve, points=[(place - begin, value, at) for place, value, at in curve.points])
                    for curve in self._over_time(row, metrics, window.in_time(begin))]
        if window.axis == TIME_AXIS:
            return self._over_time(row, metrics, window)
        reader = self._reader(row)
        thinned = [] if reader and reader.complete else self._thinned(row, metrics)
        if not reader:
            return [replace(curve, points=_seen(curve.points, window)) for curve in thinned]
        try:
            return _from_all(reader, metrics, window, thinned)
        except OSError as problem:
            raise _unreadable(row, problem) from None

    def _over_time(self, row: ExecRow, metrics: Collection[str], window: StepWindow) -> list[DrawnCurve]:
        """Return curves whose points have times in place of their steps. Points without a time are left out."""
        reader = self._reader(row)
        curves = reader.curves(metrics)
        try:
            timed = [reader.timed(one, window.start, window.stop) for one in curves]
        except OSError as problem:
            raise _unreadable(row, problem) from None
        is_whole = reader and reader.complete and all(one.steps for one in timed)
        others = {} if is_whole else {(one.source, one.name): one for one in self._thinned(row, metrics)}
        found: list[DrawnCurve] = []
        for curve, arrays in zip(curves, timed, strict=True):
            other = others.pop((curve.source, curve.name), None)
            last = arrays.steps[-1] if arrays.steps else -math.inf
            for moment, value, _ in () if other is None else _in_time(other.points, window):
                if moment > last:
                    arrays.steps.append(moment)
                    arrays.values.append(value)
            points: list[Point] = [(arrays.steps[number], arrays.values[number], None)
                                   for number in kept_numbers(*arrays, window.width)]
            found.append(DrawnCurve(curve.name, curve.source, curve.unit, _apart(points)))
        return found + [replace(one, points=_apart(drawn(_in_time(one.points, window), window.width)))
                        for one in others.values()]

    def resources(self, row: ExecRow, metrics: Collection[str], window: StepWindow) -> list[DrawnCurve]:
        """Return the CPU cores and the memory in use over the seconds of an exec, as `drawn` does."""
        _check(window)
        found = _curves_in(self.execs.resources(row, metrics, ""))
        if window.axis == TIME_AXIS:  # without an axis of elapsed seconds: their steps are these
            return [replace(one, points=_apart(drawn(_in_time(one.points, window), window.width))) for one in found]
        return [replace(one, points=_seen(one.points, window)) for one in found]

    def resource_kinds(self, row: ExecRow) -> list[str]:
        """Return what is, or will be, recorded of the resources of an exec. Raises StorageFailed."""
        found = {curve.name.partition(" ")[0] for curve in _curves_in(self.execs.resources(row, (), ""))}
        if row.state in (RUNNING, RECOVERING):
            found |= {CPU, MEMORY}
        return [kind for kind in RESOURCE_KINDS if kind in found]

    def names(self, row: ExecRow) -> list[str]:
        """Return the names of the curves of an exec. Raises StorageFailed."""
        reader = self._reader(row)
        found = reader.curves(()) if reader else []
        known = [curve.name for curve in found]
        if reader and reader.complete:
            return known
        return list(dict.fromkeys([*known, *(curve.name for curve in self._thinned(row, ()))]))

    def _reader(self, row: ExecRow) -> PointReader:
        paths = self.execs.paths(row)
        try:
            return PointReader(lambda name: paths.opened(paths.points / name))
        except OSError as problem:
            raise _unreadable(row, problem) from None

    def _thinned(self, row: ExecRow, metrics: Collection[str]) -> list[DrawnCurve]:
        """Return curves with the points that the smaller file has."""
        return _curves_in(self.execs.curves(row, metrics, ""))


def _curves_in(answer: bytes) -> list[DrawnCurve]:
    return [DrawnCurve(one["name"], one["source"], one["stepUnit"], [tuple(point) for point in one["points"]],
                       one.get("left", 0)) for one in json.loads(answer)["curves"]]


def _from_all(
    reader: PointReader, metrics: Collection[str], window: StepWindow, thinned: Sequence[DrawnCurve]
) -> list[DrawnCurve]:
    """Return the curves of which all points are kept. Those that the files lack come from the thinned curves."""
    others = {(curve.source, curve.name): curve for curve in thinned}
    curves = []
    for one in reader.curves(metrics):
        found = reader.points(one, window.width, window.start, window.stop)
        other = others.pop((one.source, one.name), None)
        if other is not None:
            last = reader.last_step(one)
            for step, value, _ in within([point for point in other.points if point[0] > last],
                                         window.start, window.stop):
                found.steps.append(step)
                found.values.append(value)
        points: list[Point] = [(found.steps[number], found.values[number], None)
                               for number in kept_numbers(*found, window.width)]
        curves.append(DrawnCurve(one.name, one.source, one.unit, points))
    return [*curves, *(replace(curve, points=_seen(curve.points, window)) for curve in others.values())]


def _seen(points: Sequence[Point], window: StepWindow) -> list[Point]:
    return drawn(within(points, window.start, window.stop), window.width)


def _in_time(points: Sequence[Point], window: StepWindow) -> Sequence[Point]:
    """Return the points with a time, in the order of their times, as (time, value, None): those in the window."""
    return within(sorted((at, value, None) for _, value, at in points if at is not None), window.start, window.stop)


def _apart(points: Sequence[Point]) -> list[Point]:
    """Return points with growing times: those of the same time follow each other."""
    found: list[Point] = []
    for moment, value, _ in points:
        found.append((max(moment, found[-1][0] + _APART) if found else moment, value, None))
    return found


def _unreadable(row: ExecRow, problem: OSError) -> StorageFailed:
    return StorageFailed("exec.result_failed", f"The server cannot read the curves of {row.id} ({problem.strerror})")


def _check(window: StepWindow) -> None:
    """Refuse a window that is impossible. Raises Invalid."""
    if not LEAST_WIDTH <= window.width <= MOST_WIDTH:
        raise Invalid("query.number", f"width: {window.width} is not from {LEAST_WIDTH} to {MOST_WIDTH}")
    if window.axis not in AXES:
        raise Invalid("query.value", f"axis: {window.axis[:40]!r} is none of {', '.join(AXES)}")
    limits = [limit for limit in (window.start, window.stop) if limit is not None]
    if not all(map(math.isfinite, limits)):
        raise Invalid("query.value", "from, to: not finite numbers")
    if len(limits) == 2 and limits[0] > limits[1]:
        raise Invalid("query.value", f"from: {limits[0]:g} is greater than to: {limits[1]:g}")
