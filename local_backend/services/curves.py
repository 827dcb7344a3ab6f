"""Curves of runs for drawing, for pages and for REST."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from local_backend.curves.columns import LEAST_WIDTH, MOST_WIDTH, drawn, within
from local_backend.curves.file import Point
from local_backend.errors import Invalid
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
        found = json.loads(self.execs.curves(caller, exec_id, metrics, ""))
        curves = []
        for one in found["curves"]:
            points = [(step, value, at) for step, value, at in one["points"]]
            seen = drawn(within(points, window.start, window.stop), window.width)
            curves.append(DrawnCurve(one["name"], one["source"], one["stepUnit"], seen, one.get("left", 0)))
        return curves


def _check(window: StepWindow) -> None:
    """Refuse a window that is impossible. Raises Invalid."""
    if not LEAST_WIDTH <= window.width <= MOST_WIDTH:
        raise Invalid("query.number", f"width: {window.width} is not from {LEAST_WIDTH} to {MOST_WIDTH}")
    limits = [limit for limit in (window.start, window.stop) if limit is not None]
    if not all(map(math.isfinite, limits)):
        raise Invalid("query.value", "from, to: not finite numbers")
    if len(limits) == 2 and limits[0] > limits[1]:
        raise Invalid("query.value", f"from: {limits[0]:g} is greater than to: {limits[1]:g}")
