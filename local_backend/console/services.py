"""Models that answer requests: the list, and the page of one model with its load, its logs and its profile."""

from __future__ import annotations

import json
import shlex
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Request
from starlette.responses import JSONResponse, Response

from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.guard import host_name
from local_backend.api.inference_objects import service_uri
from local_backend.console import places
from local_backend.console.queries import TheTable
from local_backend.console.rendering import HEADERS, page
from local_backend.console.route import router as pages
from local_backend.console.service_logs import LogQuery, log_of
from local_backend.console.service_profile import profile_fields
from local_backend.errors import NotFound
from local_backend.services.access import Caller
from local_backend.services.load import READING
from local_backend.services.model_examples import ModelExample
from local_backend.services.model_views import ModelView
from local_backend.services.services import Services
from local_backend.services.views import slots_of
from local_backend.store.execs import ExecRow

router = pages()

#: Models of a page of the list.
ROWS = 50
ONE = places.SERVICES + "/{m}"
#: Most characters of a request in a command, and the name of the file of a longer one.
_SHORT, _INPUT = 200, "input.json"
TABS = ("overview", "profile", "logs", "readme")
#: Charts of the load: name → label of the values, and the curves with the factor by which values are shown.
CHARTS: dict[str, tuple[str, tuple[tuple[str, str, float], ...]]] = {
    "requests": ("per second", (("answers", "requests", 1.0), ("failures", "failed", 1.0))),
    "latency": ("milliseconds", (("50 %", "p50", 1000.0), ("99 %", "p99", 1000.0))),
    "queue": ("requests and kernels", (("waiting", "waiting", 1.0), ("running", "running", 1.0),
                                       ("kernels", "kernels", 1.0))),
}


def service_path(name: str) -> str:
    """Return the path of the page of a model."""
    return f"{places.SERVICES}/{quote(name, safe='')}"


@router.get(places.SERVICES)
def services_page(request: Request, services: TheServices, caller: TheCaller, table: TheTable) -> Response:
    """Show the list of models."""
    return page(request, "services.html", **_list(services, caller, table.number))


@router.get(places.HOME + "/parts/services")
def services_part(request: Request, services: TheServices, caller: TheCaller, table: TheTable) -> Response:
    """Show the table of models."""
    return page(request, "services_part.html", **_list(services, caller, table.number))


def _list(services: Services, caller: Caller, number: int) -> dict[str, Any]:
    views = sorted(services.models.list(caller), key=lambda view: (not view.row.started, view.row.name))
    shown = views[(number - 1) * ROWS:number * ROWS]
    return {"views": shown, "total": len(views), "number": number, "size": ROWS, "rates": [rates(one) for one in shown]}


def rates(view: ModelView) -> dict[str, Any]:
    """Return what a model does now: requests per second, requests that wait, kernels, and latencies in seconds."""
    found = view.instances
    half, most = view.latency
    return {"requests": sum(one.rates.requests for one in found), "waiting": sum(one.load.queued for one in found),
            "kernels": sum(view.ready(one.row.number) for one in found), "p50": half, "p99": most}


# --- one model


@router.get(ONE)
@bulk(READING, stream=False)
def service(  # noqa: PLR0917
    request: Request, services: TheServices, caller: TheCaller, m: str, log: Annotated[LogQuery, Depends()],
    tab: str = "",
) -> Response:
    """Show the page of one model."""
    view = services.models.view(caller, m)
    tab = tab if tab in TABS else TABS[0]
    values = about(request, services, caller, view)
    if tab == "profile":
        profile = json.loads(view.row.profile)
        values |= {"fields": profile_fields(profile), "profile": json.dumps(profile, indent=2)}
    elif tab == "logs":
        values |= log_of(services, caller, view, log)
    elif tab == TABS[0]:
        values["example"] = services.models.example(view)
    return page(request, "service.html", tab=tab, tabs=TABS, **values)


@router.get(ONE + "/part")
def service_part(request: Request, services: TheServices, caller: TheCaller, m: str) -> Response:
    """Show the parts of the page of a model that change."""
    return page(request, "service_part.html", **about(request, services, caller, services.models.view(caller, m)))


def about(request: Request, services: Services, caller: Caller, view: ModelView) -> dict[str, Any]:
    """Return what the page of a model shows."""
    name, why = view.row.name, services.model_logs.why(caller, view.row.name)
    address = view.address
    host = host_name(request.headers.get("host", "")) or ""
    url = "" if address is None else service_uri(address, name, host)
    owns = caller.admin or view.row.creator == caller.name
    return {
        "view": view, "row": view.row, "base": service_path(name), "rates": rates(view), "why": why, "url": url,
        "owns": owns, "revisions": list(reversed(view.revisions)),
        "loads": {one.row.number: one for one in view.instances}, "slots": _slots(services, caller, view),
        "lineage": _lineage(services, caller, view), "description": view.main.model_json,
        "commands": _commands(name, url, services.models.example(view), owns=owns),
    }


def _exec_of(services: Services, caller: Caller, exec_id: str) -> ExecRow | None:
    """Return an exec, None if it was deleted or belongs to another user."""
    try:
        return services.execs.find(caller, exec_id)
    except NotFound:
        return None


def _slots(services: Services, caller: Caller, view: ModelView) -> dict[int, list[str]]:
    """Return the slots of the revisions whose execs the caller sees."""
    found = {}
    for one in view.instances:
        row = _exec_of(services, caller, str(one.row.exec_id))
        if row is not None:
            found[one.row.number] = slots_of(row)
    return found


def _lineage(services: Services, caller: Caller, view: ModelView) -> dict[str, Any]:
    """Return what the main revision was made of: the exec, the search that ran it, the data, the saved model."""
    source: dict[str, Any] = json.loads(view.main.source) if view.main.source else {}
    row = _exec_of(services, caller, str(source["exec"])) if source.get("exec") else None
    experiment = None if row is None else row.workload.experiment
    data = source.get("data")
    shown = {key: source.get(key) for key in ("exec", "user", "saved", "version", "folder", "args")}
    return {"source": shown if source else {}, "exec_seen": row is not None, "experiment": experiment,
            "data": json.dumps(data, indent=2) if data else ""}


def _commands(name: str, url: str, example: ModelExample, *, owns: bool) -> list[tuple[str, str]]:
    """Return what a user can do with a model, and the commands that do it."""
    named = shlex.quote(name)
    text = json.dumps(json.loads(example.text))
    body = shlex.quote(text) if len(text) <= _SHORT else ""
    found = [("Show", f"dlim model view {named} -s -a"),
             ("Send a request", f"dlim invoke {named} {f'-d {body}' if body else _INPUT}")]
    if url:
        found.append(("The same with curl", f"curl -sS -H \"Authorization: Bearer $(dlim config -s)\" "
                                            f"-d {body or f'@{_INPUT}'} {url}"))
    if not owns:
        return found
    return [*found, ("Start", f"dlim model start {named}"), ("Stop", f"dlim model stop {named}"),
            ("Logs", f"dlim logs {named} -f"), ("Profile", f"dlim model viewprofile {named} -j"),
            ("Traffic", f"dlim model traffic {named} 1=90 2=10"), ("Roll back", f"dlim model rollback {named}"),
            ("Undeploy", f"dlim model undeploy {named}")]


@router.get(ONE + "/load/{chart}")
def load(request: Request, services: TheServices, caller: TheCaller, m: str, chart: str) -> Response:
    """Return a chart of the load of the last minutes."""
    if chart not in CHARTS:
        raise NotFound("http.no_such_path", "This chart does not exist")
    label, curves = CHARTS[chart]
    points = services.models.view(caller, m).points
    series = []
    for place, (name, key, factor) in enumerate(curves, 1):
        known = [(one.when, getattr(one, key)) for one in points if getattr(one, key) is not None]
        series.append({"name": name, "x": [when for when, _ in known], "y": [value * factor for _, value in known],
                       "color": place})
    return JSONResponse({"x": {"label": "time", "kind": "time"}, "y": {"label": label},
                         "series": series if points else [], "marks": []}, headers=HEADERS)


@router.get(ONE + "/log")
@bulk(READING, stream=False)
def log_part(
    request: Request, services: TheServices, caller: TheCaller, m: str, log: Annotated[LogQuery, Depends()]
) -> Response:
    """Show the end of a log again, if something was written since."""
    view = services.models.view(caller, m)
    found = log_of(services, caller, view, log)
    if found["log_end"] == log.seen:
        return Response(status_code=204, headers=HEADERS)
    return page(request, "service_log.html", base=service_path(view.row.name), **found)
