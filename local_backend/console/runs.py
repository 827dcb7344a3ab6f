"""GET /console/runs: the table of runs, and what can be done with selected ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from zlib import crc32

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from dlicmd.contract import states, wire
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places, runs_csv
from local_backend.console.rendering import HEADERS, now, page
from local_backend.console.route import router as pages
from local_backend.console.run_columns import CHOICE, columns_of, remembered
from local_backend.console.run_views import VIEWS
from local_backend.console.runs_query import MAIN, SIZE, STATES, RunsQuery, TheQuery, query_in
from local_backend.errors import Invalid
from local_backend.run_values import METRIC, PARAMETER, ValueName, main_names, with_main
from local_backend.services.access import Caller
from local_backend.services.labels import LabelChange
from local_backend.services.services import Services
from local_backend.services.views import HAS_SLOTS, ExecView, slots_of, wanted_slots
from local_backend.store.execs import ExecRow
from local_backend.store.labels import Labels

router = pages()
PART, TAGS, ACT = f"{places.RUNS}/parts/table", f"{places.RUNS}/parts/tags", f"{places.RUNS}/act"
#: Maximum number of characters of a message in the table.
_MESSAGE = 140


@dataclass(frozen=True)
class RunLine:
    """A row of the table."""

    view: ExecView
    labels: Labels
    message: str
    duration: float | None
    slots: str
    values: Mapping[ValueName, Any]
    #: Loss and accuracy → the name of the metric that stands for it.
    main: Mapping[ValueName, str]

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.view.row.id


@router.get(places.RUNS)
def runs(request: Request, services: TheServices, caller: TheCaller, query: TheQuery) -> Response:
    """Show the page. The address gets the columns that the browser has kept, so that it shows the same to others."""
    if not query.columns and (columns := remembered(request)):
        return RedirectResponse(query.link(columns=columns, number=query.number), 303, HEADERS)
    return page(request, "runs.html", suggestions=TAGS, **_found(services, caller, query))


@router.get(TAGS)
def tags(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Show the tags that the field for a tag suggests."""
    return page(request, "runs_tags.html", tags=services.labels.tags(caller))


@router.get(PART)
def table(request: Request, services: TheServices, caller: TheCaller, query: TheQuery) -> Response:
    """Show the table, for a page that searches in it or follows its changes."""
    answer = page(request, "runs_table.html", **_found(services, caller, query))
    if "searched" in request.query_params:
        answer.headers["HX-Replace-Url"] = query.link()
    return answer


def _found(services: Services, caller: Caller, query: RunsQuery) -> dict[str, Any]:
    views: list[ExecView] = []
    total, counts, problem, unknown, columns = 0, dict[str, int](), "", None, query.columns or MAIN
    try:
        rows, total = services.execs.list(caller, query.selection())
        counts = services.execs.state_counts(caller, query.selection(is_all=True))
        views = services.execs.views(rows)
        columns = columns_of(services, caller, query, views)
        unknown = None if total else services.execs.unknown_value(caller, query.selection())
    except Invalid as refused:
        problem = str(refused)
    labels = services.labels.of(caller, [view.row for view in views])
    lines = [_line(view, labels.get(view.row.id, Labels())) for view in views]
    # A column of runs with different losses names the loss of each run.
    mixed = [name for name in MAIN if len({line.main[name] for line in lines if name in line.main}) > 1]
    states_with_counts = {name: sum(counts.get(state, 0) for state in states.meant(name)) for name in STATES}
    return {"query": query, "lines": lines, "total": total, "counts": states_with_counts, "problem": problem,
            "size": SIZE, "part": PART, "act": ACT, "choice": CHOICE, "saved": VIEWS, "csv": runs_csv.CSV,
            "csv_most": runs_csv.MOST, "columns": columns, "main": MAIN, "mixed": mixed, "live": query.live(columns),
            "charts": _charts(lines, columns) if query.charts else [],
            "active": not all(view.row.terminal for view in views), "empty": _empty(query, unknown),
            "parameter": PARAMETER}


def _charts(lines: Sequence[RunLine], columns: Sequence[ValueName]) -> list[tuple[str, str, str]]:
    """Return the metrics of the columns that the listed runs have: an id that changes with the runs, the name, and the
    address of the chart. The column of a main metric has a chart for each metric that stands for it."""
    names = dict.fromkeys(line.main.get(column, column.name) for column in columns if column.kind == METRIC
                          for line in lines if line.values.get(column) is not None)
    ids = urlencode([("id", line.id) for line in lines])
    place = f"{places.RUNS}/compare/curves?{ids}&" if len(lines) > 1 else f"{places.RUNS}/{ids[3:]}/curves?"
    return [(f"chart-{crc32(f'{ids} {name}'.encode()):x}", name, place + urlencode({"metric": name}))
            for name in names]


def _empty(query: RunsQuery, unknown: ValueName | None) -> str:
    """Return why the table has no rows."""
    if unknown is not None:
        kinds = {METRIC: f"No run that has ended has the metric {unknown.name}.",
                 PARAMETER: f"No run has the parameter {unknown.name}."}
        return kinds.get(unknown.kind, " ".join(kinds.values()))
    if query.is_narrow or query.number > 1:
        return "No runs match. Remove a word or a filter."
    return "No runs yet. Create an experiment, or start a run with dlicmd run train.py."


def _line(view: ExecView, labels: Labels) -> RunLine:
    row = view.row
    diverged = {name: view.progress.get(name) for name in (wire.LOSS, wire.ACCURACY)}
    values = {ValueName(METRIC, name): value for name, value in (diverged | with_main(view.metrics)).items()}
    values |= {ValueName(PARAMETER, name): value for name, value in view.parameters.items()}
    main = {ValueName(METRIC, name): real for name, real in main_names(view.metrics).items()}
    return RunLine(view, labels, _message(view), row.seconds(now()), _slots(row), values, main)


def _slots(row: ExecRow) -> str:
    """Return the slots that a run wants; before them, while it is running, those that it holds: `2 of 4`."""
    wanted = wanted_slots(row)
    return f"{len(slots_of(row))} of {wanted}" if row.state in HAS_SLOTS else str(wanted)


def _message(view: ExecView) -> str:
    """Return why a run failed or waits."""
    row = view.row
    text = (row.message or "") if row.terminal and row.state != "FINISHED" else ""
    if view.reason is not None:
        text = view.reason.sentence
    return text if len(text) <= _MESSAGE else f"{text[:_MESSAGE]} …"


@router.post(ACT)
async def act(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Do something with the selected runs, and show the table again."""
    form = await request.form()
    return await run_in_threadpool(_acted, request, services, caller, form)


def _acted(request: Request, services: Services, caller: Caller, form: FormData) -> Response:
    ids = [one for one in form.getlist("id") if isinstance(one, str)]
    wanted = {name: value if isinstance(value := form.get(name), str) else "" for name in (
        "act", "favorite", "tag", "query")}
    if wanted["act"] == "compare":
        return _to(request, f"{places.RUNS}/compare?{urlencode([('id', one) for one in ids])}")
    said = _done(services, caller, ids, wanted)
    query = query_in(wanted["query"])
    if "hx-request" not in request.headers:
        return RedirectResponse(query.link(number=query.number), 303, HEADERS)
    answer = page(request, "runs_table.html", **_found(services, caller, query))
    if said:
        answer.headers["HX-Trigger"] = json.dumps({"said": said})
    return answer


def _done(services: Services, caller: Caller, ids: Sequence[str], wanted: Mapping[str, str]) -> str:
    """Do what the form says; return a sentence about it. Raises Invalid (`console.form`) and the errors of services."""
    if one := wanted["favorite"]:
        found = services.labels.of(caller, [services.execs.find(caller, one)])
        services.labels.change(caller, [one], LabelChange(favorite=not found.get(one, Labels()).favorite))
        return ""
    if not ids:
        raise Invalid("console.form", "No run is selected; select one with the box before its name")
    tags = wanted["tag"].replace(",", " ").split()
    match wanted["act"]:
        case "stop":
            stopped = sum(bool(one.active) for one in services.applications.stop_many(caller, list(ids)))
            return f"{_runs(stopped)} will stop"
        case "delete":
            return f"{_runs(len(services.execs.delete_many(caller, ids)))} deleted"
        case "tag" | "untag" if not tags:
            raise Invalid("console.form", "No tag is given; write one into the field beside the button")
        case "tag":
            services.labels.change(caller, ids, LabelChange(add=tags))
            return f"{_runs(len(ids))} tagged"
        case "untag":
            services.labels.change(caller, ids, LabelChange(remove=tags))
            return f"Tags removed from {_runs(len(ids))}"
    raise Invalid("console.form", "The form names no action; load the page again")


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _to(request: Request, path: str) -> Response:
    if "hx-request" in request.headers:
        return PlainTextResponse("", headers={**HEADERS, "HX-Redirect": path})
    return RedirectResponse(path, 303, HEADERS)
