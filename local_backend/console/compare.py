"""GET /console/runs/compare: several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.rendering import HEADERS, now, page, shown_duration
from local_backend.console.route import router as pages
from local_backend.console.run_curves import DEATHS, coordinates, step_label
from local_backend.errors import Invalid
from local_backend.services.comparisons import ComparedMetric, Values
from local_backend.services.curves import STEP_AXIS, TIME_AXIS, StepWindow
from local_backend.services.load import READING
from local_backend.store.execs import ExecRow

router = pages()
COMPARE = f"{places.RUNS}/compare"
#: Number of colors of curves. The next runs have them again, with dashes.
COLORS = 8

#: Name on the wire → word of pages.
_WORDS = {wire.NUM_WORKER: "workers"}

Ids = Annotated[list[str], Query(alias="id")]


@router.get(COMPARE)
@bulk(READING, stream=False)
def compare(
    request: Request, services: TheServices, caller: TheCaller, ids: Ids = [], everything: Annotated[  # noqa: B006
        str, Query(alias="equal")] = "",
) -> Response:
    """Show the metrics and the values of the submissions. The page loads the code when it comes into view."""
    try:
        rows = services.comparisons.rows(caller, ids)
    except Invalid as problem:
        return page(request, "compare.html", 400, problem=str(problem), rows=[], tables={})
    values = services.comparisons.values(rows)
    options = {_WORDS.get(name, name): found for name, found in values.options.items()}
    tables = {"Parameters": values.parameters, "Options": options, "Environment": values.environment,
              "Run details": _details(rows)}
    shown = {title: found if everything else _different(found) for title, found in tables.items()}
    query = urlencode([("id", row.id) for row in rows])
    metrics = services.comparisons.metrics(rows)
    return page(request, "compare.html", problem="", rows=rows, tables=shown, query=query, everything=bool(everything),
                place=COMPARE, metrics=metrics, charts=[one for one in metrics if not _is_without_deaths(one)],
                hidden=sum(map(len, tables.values())) - sum(map(len, shown.values())))


@router.get(f"{COMPARE}/parts/code")
@bulk(READING, stream=False)
def code(request: Request, services: TheServices, caller: TheCaller, ids: Ids = []) -> Response:  # noqa: B006
    """Show which submitted files differ."""
    rows = services.comparisons.rows(caller, ids)
    files = services.comparisons.files(caller, rows)
    return page(request, "compare_code.html", rows=rows, files=[file for file in files if file.differs],
                same=sum(not file.differs for file in files), place=COMPARE,
                uncertain=[file.path for file in files if not file.certain])


@router.get(f"{COMPARE}/parts/diff")
@bulk(READING, stream=False)
def diff(
    *, request: Request, services: TheServices, caller: TheCaller, first: str, second: str, path: str
) -> Response:
    """Show the difference of a file of two runs."""
    text = services.comparisons.diff(caller, first, second, path)
    return page(request, "compare_diff.html", first=first, second=second, file=path, lines=_lines(text))


@router.get(f"{COMPARE}/curves")
@bulk(READING)
def curves(
    *,
    request: Request,
    services: TheServices,
    caller: TheCaller,
    ids: Ids,
    metric: str,
    width: int,
    start: Annotated[float | None, Query(alias="from")] = None,
    stop: Annotated[float | None, Query(alias="to")] = None,
    axis: str = STEP_AXIS,
) -> Response:
    """Return the curves of a metric as charts.js draws them."""
    rows = services.comparisons.rows(caller, ids)
    found = services.comparisons.curve(rows, metric, StepWindow(width, start, stop, axis))
    numbers = {row.id: number for number, row in enumerate(rows)}
    series = [{
        "name": f"{row.app_name} ({row.id})", "color": numbers[row.id] % COLORS + 1,
        "dash": numbers[row.id] // COLORS % 2 == 1,
        **coordinates(curve.points),
    } for row, curve in found]
    label = "seconds since the start" if axis == TIME_AXIS else step_label(curve for _, curve in found)
    return JsonAnswer({"x": {"label": label, "kind": "number"}, "y": {"label": ""}, "series": series}, headers=HEADERS)


def _is_without_deaths(metric: ComparedMetric) -> bool:
    """Return whether this is the number of deaths, and no worker died: a chart would be empty."""
    return metric.name == DEATHS and not any(point[1] for point in metric.last if point is not None)


def _details(rows: Sequence[ExecRow]) -> dict[str, list[Any]]:
    """Return users, states, times and messages of the runs."""
    return {
        "user": [row.creator for row in rows], "state": [row.shown_state for row in rows],
        "duration": [shown_duration(row.seconds(now())) or None for row in rows],
        "attempts": [row.attempt for row in rows], "exit code": [row.exit_code for row in rows],
        "message": [row.message for row in rows], "data sources": [row.data_source for row in rows],
    }


def _different(values: Values) -> Values:
    """Return the values that differ between runs."""
    return {name: row for name, row in values.items() if any(one != row[0] for one in row)}


def _lines(text: str | None) -> list[tuple[str, str]] | None:
    """Return the lines of a diff with the class of each: added, removed, a place, or neither."""
    if text is None:
        return None
    classes = {"+": "good", "-": "bad", "@": "soft"}
    return [(classes.get(line[:1], ""), line) for line in text.splitlines()]
