"""The scheduler's view: applications, Kubernetes objects, instances."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bodies import JsonRoute
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import query
from local_backend.api.errors import RangeUnsatisfied, answers
from local_backend.api.objects import (
    APPLICATION_FIELDS,
    INSTANCE_ID,
    SPARK_FIELDS,
    application_object,
    parallel_job,
    pods,
    spark_application,
)
from local_backend.api.packs import parents
from local_backend.api.queries import whole
from local_backend.errors import Invalid, NotFound
from local_backend.services.access import Caller
from local_backend.services.applications import Stopped
from local_backend.services.execs import states_named
from local_backend.services.services import Services
from local_backend.services.views import HAS_SLOTS
from local_backend.store.execs import NAMESPACE

router = APIRouter(tags=["scheduler"], route_class=JsonRoute)

_MOST = 10_000
#: Query parameters that select applications of the first product generation.
CHOICE: dict[str, Any] = {"responses": answers(416), "openapi_extra": {"parameters": query(
    "applicationid", "applicationname", "driverid", "search", "state", "sort", "order", "start", "length")}}
_FILTERS = {"applicationid": "id", "driverid": "id", "applicationname": "app_name"}


@router.get(wire.ENGINE_APPLICATIONS)
def applications(
    *,
    services: TheServices,
    caller: TheCaller,
    start: str = "",
    length: str = "",
    sort: str = "",
    state: str | None = None,
) -> list[dict[str, Any]]:
    """List applications, and packs of them. `sort` is a field, `submit_time` by default; a leading `-` means
    descending order. `state` is one state or a comma-separated list."""
    wanted = states_named(state)
    rows = services.applications.rows_with_packs(caller, wanted)
    known = [application_object(view) for view in services.execs.views(rows)]
    found = [shown for shown in (*known, *parents(known)) if wanted is None or shown["state"] in wanted]
    found = _sorted(found, sort or "submit_time", APPLICATION_FIELDS)
    first = whole(start or "0", "start", 0)
    return found[first : first + whole(length or str(_MOST), "length", 0)]


@router.get(wire.ENGINE_APPLICATIONS + "/{app_id}")
def application(services: TheServices, caller: TheCaller, app_id: str) -> list[dict[str, Any]]:
    """Return one application or pack, as a list with one element. The list is empty for an unknown id."""
    views = services.execs.views(services.applications.named(caller, app_id))
    found = [application_object(view) for view in views]
    return [shown for shown in (*found, *parents(found)) if shown["id"] == app_id]


@router.get(wire.APPLICATIONS, **CHOICE)
def application_details(request: Request, services: TheServices, caller: TheCaller) -> list[dict[str, Any]]:
    """List applications with their driver (`driver`, `task0`) and executors (`executors`, `task12n`).
    `applicationid`, `applicationname`, `driverid`, `search`, `state`, `sort`, `order`, `start` and `length` select
    among them."""
    return chosen(request.query_params, services, caller)


def chosen(query: Mapping[str, str], services: Services, caller: Caller) -> list[dict[str, Any]]:
    """Return the applications that a query with the parameters of CHOICE selects. Raises Invalid, RangeUnsatisfied."""
    wanted, asked = states_named(query.get("state")), query.get("applicationid")
    applications = services.applications
    rows = applications.named(caller, asked) if asked else applications.rows(caller, wanted)
    rows = [row for row in rows if wanted is None or row.state in wanted]
    for name, column in _FILTERS.items():
        if query.get(name):
            rows = [row for row in rows if getattr(row, column) == query[name]]
    if query.get("search"):
        rows = [row for row in rows if query["search"] in f"{row.id} {row.app_name} {row.creator}"]
    now = time.time()
    found = [spark_application(application_object(view), view.row, now) for view in services.execs.views(rows)]
    if query.get("sort"):
        down = query.get("order", "").lower() == "desc"
        found = _sorted(found, ("-" if down else "") + query["sort"], APPLICATION_FIELDS | SPARK_FIELDS)
    first = whole(query.get("start") or "0", "start", 0)
    if first > len(found):
        raise RangeUnsatisfied("query.start", f"start: {first} is more than the {len(found)} applications")
    return found[first : first + whole(query.get("length") or str(_MOST), "length", 0)]


@router.put(wire.APPLICATIONS + "/{app_id}/stop")
def stop_application(services: TheServices, caller: TheCaller, app_id: str) -> Response:
    """Stop an application, or all jobs of a pack."""
    services.applications.stop(caller, app_id)
    return JsonAnswer({"id": app_id, "message": "stop requested"})


@router.post(wire.STOP_MANY)
def stop_many(
    services: TheServices, caller: TheCaller, body: Annotated[Any, Body()] = None
) -> list[dict[str, Any]]:
    """Stop the applications and packs with these `ids` in one transaction. Return a result for each, in the same
    order."""
    ids = body.get(wire.IDS) if isinstance(body, dict) else None
    if not (isinstance(ids, list) and all(isinstance(name, str) for name in ids) and len(ids) <= wire.MOST_IDS):
        raise Invalid(
            "body.value", f'The body must be a JSON object with a list "{wire.IDS}" of at most {wire.MOST_IDS} strings'
        )
    return [_stopped(found) for found in services.applications.stop_many(caller, ids)]


@router.get(wire.KUBERNETES_OBJECTS)
def kubernetes_objects(
    services: TheServices, caller: TheCaller, type: str = "", name: str | None = None
) -> dict[str, Any]:
    """Return the ParallelJobs (`type=paralleljob`) or pods (`type=pod`): a list under `items`, or the object with the
    name `name`."""
    objects: list[dict[str, Any]] = []
    if type == "paralleljob":
        rows = services.applications.rows(caller) if name is None else services.applications.named(caller, name)
        objects = [parallel_job(view) for view in services.execs.views(rows)]
    elif type == "pod":
        node, rows = socket.gethostname(), services.applications.rows(caller, HAS_SLOTS)
        objects = [pod for view in services.execs.views(rows) for pod in pods(view, node)]
    if name is None:
        return {"items": objects}
    for found in objects:
        if found["metadata"]["name"] == name:
            return found
    raise NotFound("object.not_found", f"No object has the type {type[:40]!r} and the name {name[:80]!r}")


@router.get(wire.BASE + "/scheduler/instances")
def instances(request: Request, caller: TheCaller) -> list[dict[str, str]]:
    """Return the only instance."""
    return [
        {
            "uuid": INSTANCE_ID,
            "name": NAMESPACE,
            "version": "",
            "masterUrl": str(request.base_url).rstrip("/"),
            "executionUser": caller.name,
            "state": "STARTED",
            "historyServerUrl": "",
        }
    ]


def _stopped(found: Stopped) -> dict[str, Any]:
    """Return the result of a request to stop an application, or all jobs of a pack."""
    name = found.app_id
    if not found.states:
        return {wire.ID: name, wire.STOPPED_NOW: False, wire.MESSAGE: f"Exec {name[:80]!r} is not found"}
    said = "stop requested" if found.active else f"{name} is already {found.states[0]}"
    state = (found.active or found.states)[0]
    return {wire.ID: name, wire.STOPPED_NOW: bool(found.active), wire.STATE: state, wire.MESSAGE: said}


def _sorted(objects: list[dict[str, Any]], sort: str, fields: frozenset[str]) -> list[dict[str, Any]]:
    """Return the objects in the order of a field; a leading `-` means descending order. In ascending order, objects
    without the field come first, and objects with equal values follow each other from old to new. Lists and objects
    compare by their length. Raises Invalid (`query.sort`)."""
    field = sort.removeprefix("-")
    if field not in fields:
        raise Invalid("query.sort", f"sort: unknown field {field[:40]!r}")

    def key(shown: dict[str, Any]) -> tuple[bool, Any]:
        value = shown.get(field)
        if value is None:
            return False, 0
        return True, len(value) if isinstance(value, list | dict) else value

    down = sort.startswith("-")
    return sorted(objects[::-1] if down else objects, key=key, reverse=down)
