"""GET /console/runs/{id}/curves and /resources: the curves of a run as the points of a chart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.rendering import HEADERS
from local_backend.console.route import router as pages
from local_backend.curves.file import Point
from local_backend.curves.model import OF_RUN, RESOURCES, STEP, value_unit
from local_backend.services.curves import ELAPSED_AXIS, STEP_AXIS, TIME_AXIS, DrawnCurve, StepWindow
from local_backend.services.load import READING

router = pages()
_, WORKERS, DEATHS = OF_RUN
_GIB = 1 << 30
#: Label of an axis with the seconds of each run.
_SINCE_START = "seconds since the start"
#: Number of colors of curves. The next curves have them again, with dashes.
_COLORS = 8


@router.get(places.RUNS + "/{run}/curves")
@bulk(READING)
def curves(
    *,
    request: Request,
    services: TheServices,
    caller: TheCaller,
    run: str,
    width: int,
    metric: Annotated[list[str] | None, Query()] = None,
    start: Annotated[float | None, Query(alias="from")] = None,
    stop: Annotated[float | None, Query(alias="to")] = None,
    axis: str = STEP_AXIS,
) -> Response:
    """Return the curves named `metric`, or all, as charts.js draws them."""
    row = services.execs.find(caller, run)
    found = services.curves.drawn(row, metric or (), StepWindow(width, start, stop, axis))
    return JsonAnswer(_chart(found, axis), headers=HEADERS)


@router.get(places.RUNS + "/{run}/resources")
@bulk(READING)
def resources(
    *,
    request: Request,
    services: TheServices,
    caller: TheCaller,
    run: str,
    width: int,
    kind: str,
    start: Annotated[float | None, Query(alias="from")] = None,
    stop: Annotated[float | None, Query(alias="to")] = None,
    axis: str = STEP_AXIS,
) -> Response:
    """Return the use of the CPU, the memory or the GPUs, altogether and of each process or GPU, as charts.js draws
    it."""
    found = services.curves.resources(services.execs.find(caller, run), (), StepWindow(width, start, stop, axis))
    shown = [curve for curve in found if curve.name.partition(" ")[0] == kind]
    unit = value_unit(RESOURCES, kind)
    # From 0, so that a full core does not look like an idle one.
    chart = _chart(shown, axis) | {
        "y": {"label": "GiB" if unit == "bytes" else unit.replace("gpus", "GPUs"), "zero": True}}
    if axis == STEP_AXIS:  # its points are seconds
        chart["x"] = across(ELAPSED_AXIS, ())
    for one in chart["series"]:
        one["name"] = one["name"].removeprefix(kind).strip() or ("all together" if len(shown) > 1 else kind)
        if unit == "bytes":
            one["y"] = [round(value / _GIB, 4) for value in one["y"]]
    return JsonAnswer(chart, headers=HEADERS)


def _chart(curves: list[DrawnCurve], axis: str) -> dict[str, Any]:
    """Return curves as the object that charts.js draws."""
    deaths = next((curve for curve in curves if curve.name == DEATHS), None)
    return {
        "x": across(axis, (curve.step_unit for curve in curves)),
        "y": {"label": ""},
        "series": [{"name": curve.name, **coordinates(curve.points), "step": curve.name in (WORKERS, DEATHS)}
                   for curve in curves if curve is not deaths],
        "marks": _marks(deaths),
        "left": sum(curve.left for curve in curves),
    }


def across(axis: str, step_units: Iterable[str]) -> dict[str, str]:
    """Return the axis of a chart. The label of steps names all units of the curves."""
    if axis == TIME_AXIS:
        return {"label": "time", "kind": "time"}
    is_elapsed = axis == ELAPSED_AXIS
    return {"label": _SINCE_START if is_elapsed else " or ".join(sorted(set(step_units))) or STEP, "kind": "number"}


def look(number: int) -> dict[str, Any]:
    """Return the color of a curve by its number, and whether it is dashed."""
    return {"color": number % _COLORS + 1, "dash": number // _COLORS % 2 == 1}


def coordinates(points: Iterable[Point]) -> dict[str, Any]:
    """Return the coordinates of points. Whole numbers are short in JSON."""
    return {"x": [int(point[0]) if point[0].is_integer() else point[0] for point in points],
            "y": [point[1] for point in points]}


def _marks(deaths: DrawnCurve | None) -> list[dict[str, Any]]:
    """Return a mark for each step at which the number of deaths was larger than before."""
    found: list[dict[str, Any]] = []
    before = 0.0
    for step, count, _ in deaths.points if deaths is not None else ():
        if count > before:
            died = count - before
            found.append({"x": step, "text": "a worker died" if died == 1 else f"{died:g} workers died"})
        before = count
    return found
