"""GET /execs/{id}/curves and /resources: the metrics of any program, and its resources, as curves."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import OWN_EXECS, about
from local_backend.api.models.execs import Curve, Curves
from local_backend.api.route import Route
from local_backend.curves.model import value_unit
from local_backend.errors import Invalid
from local_backend.services.curves import STEP_AXIS, DrawnCurve, StepWindow
from local_backend.services.load import READING

router = APIRouter(tags=["logs"], route_class=Route)
_Names = Annotated[list[str] | None, Query(description="names of curves; all by default")]
_Since = Annotated[str, Query(description="`cursor` of an earlier answer: only later points are returned")]


@router.get(wire.EXECS + "/{exec_id}/curves")
@about(OWN_EXECS, extension=wire.EXT_CURVES, errors={
    400: "exec.not_found query.number query.value", 507: "exec.result_failed",
})
@bulk(READING)
def curves(
    *,
    services: TheServices,
    caller: TheCaller,
    exec_id: str,
    metric: _Names = None,
    since: _Since = "",
    width: Annotated[int | None, Query(
        description="number of columns of pixels: each has at most 4 points, which draw the same picture as all "
        "points; not together with `since`",
    )] = None,
    start: Annotated[float | None, Query(alias=wire.FROM, description="with `width`: the first step")] = None,
    stop: Annotated[float | None, Query(alias=wire.TO, description="with `width`: the last step")] = None,
    axis: Annotated[str, Query(
        description="with `width`: `step`; `time` for points with epoch seconds in place of steps; `elapsed` for those "
        "with seconds since the start of the exec. `from` and `to` are places on the same axis",
    )] = STEP_AXIS,
) -> JsonAnswer[Curves]:
    """Return the metrics that the program records, or that the server finds in its files and its output. Of a long
    curve, only some points are kept: at most 10,000, and at most 200 curves."""
    row = services.execs.find(caller, exec_id)
    if width is not None:
        window = _window(since, StepWindow(width, start, stop, axis))
        return _drawn(services.curves.drawn(row, metric or (), window))
    return JsonAnswer(services.execs.curves(row, metric or (), since))


@router.get(wire.EXECS + "/{exec_id}/resources")
@about(OWN_EXECS, extension=wire.EXT_RESOURCES, errors={
    400: "exec.not_found query.number query.value", 507: "exec.result_failed",
})
@bulk(READING)
def resources(
    *,
    services: TheServices,
    caller: TheCaller,
    exec_id: str,
    metric: _Names = None,
    since: _Since = "",
    width: Annotated[int | None, Query(
        description="number of columns of pixels, as of curves; not together with `since`")] = None,
    start: Annotated[float | None, Query(alias=wire.FROM, description="with `width`: the first second")] = None,
    stop: Annotated[float | None, Query(alias=wire.TO, description="with `width`: the last second")] = None,
    axis: Annotated[str, Query(description="with `width`: `step`, `time` or `elapsed`, as of curves")] = STEP_AXIS,
) -> JsonAnswer[Curves]:
    """Return the CPU cores (`cpu`) and the resident memory (`memory`) that the processes of an exec used, and the use
    of its GPUs (`gpu`, `gpu-memory`), over the seconds since it first ran. An exec with several processes or GPUs has
    them of up to 32 of each, too: `cpu worker 1`, `gpu gpu-0`."""
    row = services.execs.find(caller, exec_id)
    if width is not None:
        window = _window(since, StepWindow(width, start, stop, axis))
        return _drawn(services.curves.resources(row, metric or (), window))
    return JsonAnswer(services.execs.resources(row, metric or (), since))


def _window(since: str, window: StepWindow) -> StepWindow:
    """Return the window. Raises Invalid (`query.value`) if the call also wants later points alone."""
    if since:
        raise Invalid("query.value", "since: not together with width")
    return window


def _drawn(curves: list[DrawnCurve]) -> JsonAnswer[Curves]:
    return JsonAnswer({"curves": [_object(curve) for curve in curves], "cursor": "", "whole": True})


def _object(curve: DrawnCurve) -> Curve:
    found = Curve(
        name=curve.name, source=curve.source, unit=value_unit(curve.source, curve.name), stepUnit=curve.step_unit,
        points=[list(point) for point in curve.points],
    )
    if curve.left:
        found["left"] = curve.left
    return found
