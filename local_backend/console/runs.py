"""GET /console/runs: the table of runs, and what can be done with selected ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

from fastapi import Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from dlicmd.contract import metric_names, states, wire
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.rendering import HEADERS, now, page
from local_backend.console.route import router as pages
from local_backend.errors import Invalid
from local_backend.services.access import Caller
from local_backend.services.execs import ExecSelection, states_named
from local_backend.services.labels import LabelChange
from local_backend.services.services import Services
from local_backend.services.views import HAS_SLOTS, ExecView, slots_of, wanted_slots
from local_backend.store.execs import ExecRow
from local_backend.store.labels import Labels

router = pages()
PART, TAGS, ACT = f"{places.RUNS}/parts/table", f"{places.RUNS}/parts/tags", f"{places.RUNS}/act"
#: Rows of one page, maximum number of a page, and of characters of a message in the table.
SIZE, _MOST_PAGE, _MESSAGE = 50, 1_000_000, 140
#: Heading in the URL → column of the list, and whether the first click sorts from the largest down.
SORTS: Mapping[str, tuple[str, bool]] = {
    "name": ("app_name", False), "id": ("number", True), "user": ("creator", False), "state": ("state", False),
    "started": ("start_time", True), "duration": ("duration", True), "workers": ("num_worker", True),
    "loss": ("loss", False), "accuracy": ("accuracy", True), "tags": ("tag", False), "favorite": ("favorite", True),
}
#: Names of the states that can be selected, in the order of the life of a run.
STATES = ("pending", "running", "finished", "error", "killed")
#: Maximum number of metrics in a row without a loss and an accuracy.
_MOST_OTHERS = 2


@dataclass(frozen=True)
class RunsQuery:
    """What the table shows; the query of the URL."""

    find: str = ""
    state: str = ""
    favorites: bool = False
    everyone: bool = False
    sort: str = "id"
    #: Whether the order is the reverse of the usual one of the column.
    back: bool = False
    number: int = 1

    def text(self, **changes: Any) -> str:
        """Return the query of the URL after changes. A change other than that of the page leads to the first page."""
        one = replace(self, **({"number": 1} | changes))
        values = {
            "find": one.find, "state": one.state, "favorites": "1" * one.favorites, "all": "1" * one.everyone,
            "sort": one.sort if one.sort != "id" else "", "back": "1" * one.back,
            "page": str(one.number) if one.number > 1 else "",
        }
        return urlencode({name: value for name, value in values.items() if value})

    @property
    def kept(self) -> list[tuple[str, str]]:
        """The values that a new search keeps."""
        return [pair for pair in parse_qsl(self.text()) if pair[0] != "find"]

    def link(self, **changes: Any) -> str:
        """Return the path of the page after changes."""
        text = self.text(**changes)
        return f"{places.RUNS}?{text}" if text else places.RUNS

    def sorted_by(self, name: str) -> str:
        """Return the path of the page sorted by a column; by the same column, in the reverse order."""
        return self.link(sort=name, back=not self.back if name == self.sort else False)

    @property
    def descending(self) -> bool:
        """Whether the largest come first."""
        return SORTS[self.sort][1] != self.back

    def with_state(self, name: str) -> str:
        """Return the path of the page with a state selected, or no longer selected."""
        chosen = {*self.states} ^ {name}
        return self.link(state=",".join(one for one in STATES if one in chosen))

    @property
    def states(self) -> list[str]:
        """The selected states; none for all."""
        return [one for one in self.state.split(",") if one in STATES]

    def selection(self, is_all: bool = False) -> ExecSelection:
        """Return the execs of the page; with `is_all`, of any state and all pages. Raises Invalid (`query.find`)."""
        wanted = None if is_all else ",".join(self.states)
        find = f"{self.find} is:favorite" if self.favorites else self.find
        return ExecSelection(
            states_named(wanted), SORTS[self.sort][0], self.descending, SIZE,
            everyone=self.everyone, find=find, offset=(self.number - 1) * SIZE,
        )


@dataclass(frozen=True)
class RunLine:
    """A row of the table."""

    view: ExecView
    labels: Labels
    message: str
    duration: float | None
    slots: str
    loss: float | None
    accuracy: float | None
    others: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.view.row.id


def query_of(
    *, find: Annotated[str, Query()] = "", state: str = "", favorites: str = "", everyone: Annotated[
        str, Query(alias="all")] = "", sort: str = "id", back: str = "",
    number: Annotated[str, Query(alias="page")] = "1",
) -> RunsQuery:
    """Return the query of a URL. Impossible values are left out, so that an old link still leads to the table."""
    whole = int(number) if number.isascii() and number.isdigit() and len(number) < 8 else 1
    return RunsQuery(find, state, favorites == "1", everyone == "1", sort if sort in SORTS else "id", back == "1",
                     min(max(1, whole), _MOST_PAGE))


TheQuery = Annotated[RunsQuery, Depends(query_of)]


@router.get(places.RUNS)
def runs(request: Request, services: TheServices, caller: TheCaller, query: TheQuery) -> Response:
    """Show the page."""
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
    try:
        rows, total = services.execs.list(caller, query.selection())
        counts = services.execs.state_counts(caller, query.selection(is_all=True))
        problem = ""
    except Invalid as refused:
        rows, total, counts, problem = [], 0, {}, str(refused)
    labels = services.labels.of(caller, rows)
    lines = [_line(view, labels.get(view.row.id, Labels())) for view in services.execs.views(rows)]
    states_with_counts = {name: sum(counts.get(state, 0) for state in states.meant(name)) for name in STATES}
    return {"query": query, "lines": lines, "total": total, "counts": states_with_counts, "problem": problem,
            "size": SIZE, "part": PART, "act": ACT, "is_narrow": bool(query.find or query.state or query.favorites)}


def _line(view: ExecView, labels: Labels) -> RunLine:
    row, progress = view.row, view.progress
    last = {name: one.get(wire.VALUE) for name, one in (progress.get(wire.LAST_METRICS) or {}).items()}
    loss, accuracy = progress.get(wire.LOSS), progress.get(wire.ACCURACY)
    if loss is None:
        loss = last.pop(next(filter(metric_names.is_loss, last), ""), None)
    if accuracy is None:
        accuracy = last.pop(next((one for one in last if metric_names.kind(one) == wire.ACCURACY), ""), None)
    others = {} if (loss, accuracy) != (None, None) else dict(list(last.items())[:_MOST_OTHERS])
    return RunLine(view, labels, _message(view), row.seconds(now()), _slots(row), loss, accuracy, others)


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
    query = _query_in(wanted["query"])
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


def _query_in(text: str) -> RunsQuery:
    found = dict(parse_qsl(text))
    names = {"find": "find", "state": "state", "favorites": "favorites", "all": "everyone", "sort": "sort",
             "back": "back", "page": "number"}
    return query_of(**{names[name]: value for name, value in found.items() if name in names})


def _to(request: Request, path: str) -> Response:
    if "hx-request" in request.headers:
        return PlainTextResponse("", headers={**HEADERS, "HX-Redirect": path})
    return RedirectResponse(path, 303, HEADERS)
