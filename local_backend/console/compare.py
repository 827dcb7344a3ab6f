"""GET /console/runs/compare: several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request
from starlette.responses import JSONResponse, Response

from dlicmd.contract import metric_names, wire
from dlicmd.contract.submission_values import PROGRAM
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import compare_groups, places
from local_backend.console.compare_groups import GroupQuery, TheGroups
from local_backend.console.rendering import HEADERS, now, page, shown_duration
from local_backend.console.route import router as pages
from local_backend.console.run_curves import DEATHS, across, coordinates, look
from local_backend.errors import Invalid
from local_backend.run_values import amount
from local_backend.services.comparisons import ComparedMetric, ComparedValues, Values
from local_backend.services.curves import STEP_AXIS, StepWindow
from local_backend.services.load import READING
from local_backend.store.execs import ExecRow

router = pages()
COMPARE = f"{places.RUNS}/compare"
#: Minimum number of runs, and maximum numbers of parameters and of other metrics, of the parallel coordinates.
_LEAST_LINES, _MOST_PARAMETERS, _MOST_METRICS = 3, 10, 3
#: An axis whose largest value is so many times its smallest one is logarithmic.
_LOG = 100

#: Name on the wire → word of pages.
_WORDS = {wire.NUM_WORKER: "workers"}

Ids = Annotated[list[str], Query(alias="id")]


@dataclass(frozen=True)
class CompareAddress:
    """What the page shows; the query of its address."""

    ids: Sequence[str]
    groups: GroupQuery
    #: Whether equal values are shown, too.
    everything: bool
    #: The chosen metric, "" for the default.
    by: str

    @property
    def runs(self) -> list[tuple[str, str]]:
        """The part of the query with the runs."""
        return [("id", one) for one in self.ids]

    def link(self, **changes: Any) -> str:
        """Return the path of the page after changes."""
        one = replace(self, **changes)
        more = [*one.groups.pairs, *([("equal", "1")] if one.everything else []), *([("by", one.by)] if one.by else [])]
        return f"{COMPARE}?{urlencode([*one.runs, *more])}"


@router.get(COMPARE)
@bulk(READING, stream=False)
def compare(
    *, request: Request, services: TheServices, caller: TheCaller, groups: TheGroups, ids: Ids = [],  # noqa: B006
    everything: Annotated[str, Query(alias="equal")] = "", by: str = "",
) -> Response:
    """Show the metrics and the values of the submissions; `by` is the metric of the parallel coordinates and of the
    groups, by default the first that most runs have. The page loads the code when it comes into view."""
    try:
        rows = services.comparisons.rows(caller, ids)
    except Invalid as problem:
        return page(request, "compare.html", 400, problem=str(problem), rows=[], tables={}, results=[])
    values = services.comparisons.values(rows)
    options = {_WORDS.get(name, name): found for name, found in values.options.items()}
    tables = {"Parameters": values.parameters, "Options": options, "Environment": values.environment,
              "Run details": _details(rows)}
    shown = {title: found if everything else _different(found) for title, found in tables.items()}
    metrics = services.comparisons.metrics(rows)
    results = _results(metrics) if len(rows) >= _LEAST_LINES and _inputs(values) else []
    chosen = next((one for one in results if one.name == by), None) or max(results, key=_count, default=None)
    address = CompareAddress([row.id for row in rows], groups, bool(everything), by)
    return page(request, "compare.html", problem="", rows=rows, tables=shown, address=address,
                query=urlencode(address.runs), drawn=urlencode([*address.runs, *groups.pairs]), place=COMPARE,
                metrics=metrics, charts=[one for one in metrics if not _is_without_deaths(one)],
                hidden=sum(map(len, tables.values())) - sum(map(len, shown.values())),
                results=[one.name for one in results], chosen=chosen and chosen.name,
                without=len(rows) - _count(chosen) if chosen else 0,
                **compare_groups.shown(rows, groups, metrics, chosen))


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
    groups: TheGroups,
    ids: Ids,
    metric: str,
    width: int,
    start: Annotated[float | None, Query(alias="from")] = None,
    stop: Annotated[float | None, Query(alias="to")] = None,
    axis: str = STEP_AXIS,
) -> Response:
    """Return the curves of a metric as charts.js draws them: of each run, or of each group of runs."""
    rows = services.comparisons.rows(caller, ids)
    window = StepWindow(width, start, stop, axis)
    if groups.names:
        return JsonAnswer(compare_groups.chart(services, rows, groups, metric, window), headers=HEADERS)
    found = services.comparisons.curve(rows, metric, window)
    numbers = {row.id: number for number, row in enumerate(rows)}
    series = [{"name": f"{row.app_name} ({row.id})", "run": row.id, **look(numbers[row.id]),
               **coordinates(curve.points)} for row, curve in found]
    units = (curve.step_unit for _, curve in found)
    return JsonAnswer({"x": across(axis, units), "y": {"label": ""}, "series": series,
                       "left": sum(curve.left for _, curve in found)}, headers=HEADERS)


@router.get(f"{COMPARE}/parallel")
@bulk(READING, stream=False)
def parallel(
    *, request: Request, services: TheServices, caller: TheCaller, ids: Ids, metric: str
) -> Response:
    """Return the parameters that differ and the metrics of the runs that have a metric, as parallel.js draws them."""
    rows = services.comparisons.rows(caller, ids)
    results = _results(services.comparisons.metrics(rows))
    chosen = next((one for one in results if one.name == metric), None)
    if chosen is None:
        raise Invalid("query.value", f"These runs have no metric {metric[:100]}; load the page again")
    others = [one for one in results if one is not chosen][:_MOST_METRICS]
    columns = _inputs(services.comparisons.values(rows)) | {_titled(one): _amounts(one) for one in others}
    there = [at for at, point in enumerate(chosen.best) if point is not None]
    columns = {name: values for name, values in columns.items() if len({values[at] for at in there}) > 1}
    answer = {
        "metric": _titled(chosen), "maximize": not metric_names.is_lower_better(metric),
        "axes": [{"name": name, "log": _is_log([values[at] for at in there])} for name, values in columns.items()],
        "lines": [{"id": f"{row.app_name} ({row.id})", "run": row.id, "value": value,
                   "at": [values[at] for values in columns.values()]}
                  for at, (row, value) in enumerate(zip(rows, _amounts(chosen), strict=True)) if at in there],
    }
    return JSONResponse(answer, headers=HEADERS)


def _results(metrics: Sequence[ComparedMetric]) -> list[ComparedMetric]:
    """Return the metrics whose names say which values are better, and which at least two runs have."""
    return [one for one in metrics if _count(one) > 1]


def _count(metric: ComparedMetric) -> int:
    """Return the number of the runs that have a metric with a direction."""
    return sum(point is not None for point in metric.best)


def _titled(metric: ComparedMetric) -> str:
    return f"best {metric.name}"


def _amounts(metric: ComparedMetric) -> list[float | None]:
    return [None if point is None else point[1] for point in metric.best]


def _inputs(values: ComparedValues) -> dict[str, list[Any]]:
    """Return the first parameters and environment variables that differ, with numbers where texts are numbers."""
    different = _different({**values.environment, **values.parameters})
    named = {name.removeprefix(PROGRAM).strip() or PROGRAM: [*map(_number, row)] for name, row in different.items()}
    return dict(list(named.items())[:_MOST_PARAMETERS])


def _number(value: Any) -> Any:
    """Return the number that a value is, else its text; None for no value."""
    found = amount(value)
    return found if found is not None or value is None else str(value)


def _is_log(values: Sequence[Any]) -> bool:
    known = [one for one in values if one is not None]
    return all(isinstance(one, float) for one in known) and min(known) > 0 and max(known) >= _LOG * min(known)


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
