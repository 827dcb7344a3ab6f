"""The scheduler's view: applications, Kubernetes objects, instances."""

from __future__ import annotations

import socket
import time
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request
from pydantic import WithJsonSchema

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import EVERY_USER, OWN_EXECS, about
from local_backend.api.errors import RangeUnsatisfied
from local_backend.api.models.applications import (
    Application,
    ApplicationDetails,
    ApplicationQuery,
    Instance,
    StopMany,
    StopRequested,
    StopResult,
)
from local_backend.api.models.kubernetes import ObjectList, ParallelJob, Pod
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
from local_backend.api.route import Route
from local_backend.errors import Invalid, NotFound
from local_backend.services.access import Caller
from local_backend.services.applications import StoppedApplication
from local_backend.services.execs import states_named
from local_backend.services.services import Services
from local_backend.services.views import HAS_SLOTS
from local_backend.store.execs import NAMESPACE
from local_backend.store.states import shown_as

T = TypeVar("T", Application, ApplicationDetails)

router = APIRouter(tags=["scheduler"], route_class=Route)

_MOST = 10_000
#: The query of applications in the form of the first product generation, and its errors.
Choice = Annotated[ApplicationQuery, Query()]
CHOICE_ERRORS = {400: "query.number query.sort query.state", 416: "query.start"}
#: A number, or nothing.
_NUMBER = WithJsonSchema({"type": "string", "pattern": "^[0-9]{0,10}$"})
_FILTERS = {"applicationid": "id", "driverid": "id", "applicationname": "app_name"}


@router.get(wire.ENGINE_APPLICATIONS)
@about(OWN_EXECS, errors={400: "query.number query.sort query.state"})
def applications(
    *,
    services: TheServices,
    caller: TheCaller,
    start: Annotated[str, _NUMBER] = "",
    length: Annotated[str, _NUMBER] = "",
    sort: str = "",
    state: str | None = None,
) -> JsonAnswer[list[Application]]:
    """List applications, and packs of them. `sort` is a field, `submit_time` by default; a leading `-` means
    descending order. `state` is one state or a comma-separated list."""
    wanted = states_named(state)
    rows = services.applications.rows_with_packs(caller, wanted)
    known = [application_object(view) for view in services.execs.views(rows)]
    found = [shown for shown in (*known, *parents(known)) if wanted is None or shown["state"] in wanted]
    found = _sorted(found, sort or "submit_time", APPLICATION_FIELDS)
    first = whole(start or "0", "start", 0)
    return JsonAnswer(found[first : first + whole(length or str(_MOST), "length", 0)])


@router.get(wire.ENGINE_APPLICATIONS + "/{app_id}")
@about(OWN_EXECS)
def application(services: TheServices, caller: TheCaller, app_id: str) -> JsonAnswer[list[Application]]:
    """Return one application or pack, as a list with one element. The list is empty for an unknown id."""
    views = services.execs.views(services.applications.named(caller, app_id))
    found = [application_object(view) for view in views]
    return JsonAnswer([shown for shown in (*found, *parents(found)) if shown["id"] == app_id])


@router.get(wire.APPLICATIONS)
@about(OWN_EXECS, errors=CHOICE_ERRORS)
def application_details(
    services: TheServices, caller: TheCaller, choice: Choice
) -> JsonAnswer[list[ApplicationDetails]]:
    """List applications with their driver (`driver`, `task0`) and executors (`executors`, `task12n`)."""
    return JsonAnswer(chosen(choice, services, caller))


def chosen(query: ApplicationQuery, services: Services, caller: Caller) -> list[ApplicationDetails]:
    """Return the applications that a query selects. Raises Invalid, RangeUnsatisfied."""
    wanted, asked = states_named(query.state), query.applicationid
    applications = services.applications
    rows = applications.named(caller, asked) if asked else applications.rows(caller, wanted)
    rows = [row for row in rows if wanted is None or row.state in wanted]
    for name, column in _FILTERS.items():
        if value := getattr(query, name):
            rows = [row for row in rows if getattr(row, column) == value]
    if query.search:
        rows = [row for row in rows if query.search in f"{row.id} {row.app_name} {row.creator}"]
    now = time.time()
    found = [spark_application(application_object(view), view.row, now) for view in services.execs.views(rows)]
    if query.sort:
        down = query.order.lower() == "desc"
        found = _sorted(found, ("-" if down else "") + query.sort, APPLICATION_FIELDS | SPARK_FIELDS)
    first = whole(query.start or "0", "start", 0)
    if first > len(found):
        raise RangeUnsatisfied("query.start", f"start: {first} is more than the {len(found)} applications")
    return found[first : first + whole(query.length or str(_MOST), "length", 0)]


@router.put(wire.APPLICATIONS + "/{app_id}/stop")
@about(OWN_EXECS, errors={400: "exec.not_found exec.ended"})
def stop_application(services: TheServices, caller: TheCaller, app_id: str) -> JsonAnswer[StopRequested]:
    """Stop an application, or all jobs of a pack."""
    services.applications.stop(caller, app_id)
    return JsonAnswer({"id": app_id, "message": "stop requested"})


@router.post(wire.STOP_MANY)
@about(OWN_EXECS, extension=wire.EXT_STOP_MANY, errors={400: "body.json body.value"})
def stop_many(services: TheServices, caller: TheCaller, body: StopMany) -> JsonAnswer[list[StopResult]]:
    """Stop the applications and packs with these `ids` in one transaction. Return a result for each, in the same
    order."""
    return JsonAnswer([_stopped(found) for found in services.applications.stop_many(caller, body.ids)])


@router.get(wire.KUBERNETES_OBJECTS)
@about(OWN_EXECS, errors={400: "object.not_found"})
def kubernetes_objects(
    services: TheServices, caller: TheCaller, type: str = "", name: str | None = None
) -> JsonAnswer[ObjectList | ParallelJob | Pod]:
    """Return the ParallelJobs (`type=paralleljob`) or pods (`type=pod`): a list under `items`, or the object with the
    name `name`."""
    objects: list[ParallelJob] | list[Pod] = []
    if type == "paralleljob":
        rows = services.applications.rows(caller) if name is None else services.applications.named(caller, name)
        objects = [parallel_job(view) for view in services.execs.views(rows)]
    elif type == "pod":
        node, rows = socket.gethostname(), services.applications.rows(caller, HAS_SLOTS)
        objects = [pod for view in services.execs.views(rows) for pod in pods(view, node)]
    if name is None:
        return JsonAnswer({"items": objects})
    for found in objects:
        if found["metadata"]["name"] == name:
            return JsonAnswer(found)
    raise NotFound("object.not_found", f"No object has the type {type[:40]!r} and the name {name[:80]!r}")


@router.get(wire.BASE + "/scheduler/instances")
@about(EVERY_USER)
def instances(request: Request, caller: TheCaller) -> JsonAnswer[list[Instance]]:
    """Return the only instance."""
    return JsonAnswer([
        {
            "uuid": INSTANCE_ID,
            "name": NAMESPACE,
            "version": "",
            "masterUrl": str(request.base_url).rstrip("/"),
            "executionUser": caller.name,
            "state": "STARTED",
            "historyServerUrl": "",
        }
    ])


def _stopped(found: StoppedApplication) -> StopResult:
    """Return the result of a request to stop an application, or all jobs of a pack."""
    name = found.app_id
    if not found.states:
        return {"id": name, "stopped": False, "message": f"Exec {name[:80]!r} is not found"}
    said = "stop requested" if found.active else f"{name} is already {found.states[0]}"
    state = shown_as((found.active or found.states)[0])
    return {"id": name, "stopped": bool(found.active), "state": state, "message": said}


def _sorted(objects: list[T], sort: str, fields: frozenset[str]) -> list[T]:
    """Return the objects in the order of a field; a leading `-` means descending order. In ascending order, objects
    without the field come first, and objects with equal values follow each other from old to new. Lists and objects
    compare by their length. Raises Invalid (`query.sort`)."""
    field = sort.removeprefix("-")
    if field not in fields:
        raise Invalid("query.sort", f"sort: unknown field {field[:40]!r}")

    def key(shown: T) -> tuple[bool, Any]:
        value = shown.get(field)
        if value is None:
            return False, 0
        return True, len(value) if isinstance(value, list | dict) else value

    down = sort.startswith("-")
    return sorted(objects[::-1] if down else objects, key=key, reverse=down)
