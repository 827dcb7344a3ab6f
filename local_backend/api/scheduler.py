"""The scheduler's view: applications, Kubernetes objects, instances."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from starlette.responses import Response

from dlicmd.contract import wire
from dlicmd.contract.states import TERMINAL
from local_backend.api.as_json import JsonAnswer
from local_backend.api.audited import about
from local_backend.api.backend import Backend, TheBackend, TheUser
from local_backend.api.bodies import JsonRoute
from local_backend.api.caller import Caller
from local_backend.api.description import query
from local_backend.api.errors import ApiError, answers
from local_backend.api.execs import request_stop, wanted_states, whole
from local_backend.api.executors import executors, running
from local_backend.api.objects import (
    APPLICATION_FIELDS,
    HAS_SLOTS,
    INSTANCE_ID,
    PACK,
    SPARK_FIELDS,
    application_object,
    pack_id,
    parallel_job,
    pods,
    saying,
    spark_application,
)
from local_backend.api.packs import parents
from local_backend.api.showing import progress_of, told
from local_backend.store import execs
from local_backend.store.execs import NAMESPACE, ExecRow

router = APIRouter(tags=["scheduler"], route_class=JsonRoute)

_MOST = 10_000
#: How the applications of the first product generation are chosen among.
CHOICE: dict[str, Any] = {"responses": answers(416), "openapi_extra": {"parameters": query(
    "applicationid", "applicationname", "driverid", "search", "state", "sort", "order", "start", "length")}}
_FILTERS = {"applicationid": "id", "driverid": "id", "applicationname": "app_name"}


@router.get(wire.ENGINE_APPLICATIONS)
def applications(
    *,
    backend: TheBackend,
    user: TheUser,
    start: str = "",
    length: str = "",
    sort: str = "",
    state: str | None = None,
) -> list[dict[str, Any]]:
    """Applications, and packs of them. `sort` is a field, `submit_time` when not given, with a leading `-` for
    descending; `state` is a list by commas."""
    wanted = wanted_states(state)
    rows = _rows(backend, user, wanted)
    packs = {pack_id(row) for row in rows} - {""}
    if packs and wanted is not None:
        # A pack is what all its jobs are together, those in other states included.
        rows = [row for row in _rows(backend, user, None) if row.state in wanted or pack_id(row) in packs]
    known = [_application(backend, row) for row in rows]
    found = [shown for shown in (*known, *parents(known)) if wanted is None or shown["state"] in wanted]
    found = _sorted(found, sort or "submit_time", APPLICATION_FIELDS)
    first = whole(start or "0", "start", 0)
    return found[first : first + whole(length or str(_MOST), "length", 0)]


@router.get(wire.ENGINE_APPLICATIONS + "/{app_id}")
def application(backend: TheBackend, user: TheUser, app_id: str) -> list[dict[str, Any]]:
    """One application or pack, as a list of one; of an unknown id, as an empty list."""
    found = [_application(backend, row) for row in _named(backend, user, app_id)]
    return [shown for shown in (*found, *parents(found)) if shown["id"] == app_id]


@router.get(wire.APPLICATIONS, **CHOICE)
def application_details(request: Request, backend: TheBackend, user: TheUser) -> list[dict[str, Any]]:
    """Applications with their driver (`driver`, `task0`) and executors (`executors`, `task12n`). `applicationid`,
    `applicationname`, `driverid`, `search`, `state`, `sort`, `order`, `start` and `length` choose among them."""
    return chosen(request.query_params, backend, user)


def chosen(query: Mapping[str, str], backend: Backend, user: Caller) -> list[dict[str, Any]]:
    """The applications that a query of CHOICE asks for. Raises ApiError."""
    wanted, asked = wanted_states(query.get("state")), query.get("applicationid")
    rows = _named(backend, user, asked) if asked else _rows(backend, user, wanted)
    rows = [row for row in rows if wanted is None or row.state in wanted]
    for name, column in _FILTERS.items():
        if query.get(name):
            rows = [row for row in rows if getattr(row, column) == query[name]]
    if query.get("search"):
        rows = [row for row in rows if query["search"] in f"{row.id} {row.app_name} {row.creator}"]
    now = time.time()
    found = [spark_application(_application(backend, row), row, now) for row in rows]
    if query.get("sort"):
        down = query.get("order", "").lower() == "desc"
        found = _sorted(found, ("-" if down else "") + query["sort"], APPLICATION_FIELDS | SPARK_FIELDS)
    first = whole(query.get("start") or "0", "start", 0)
    if first > len(found):
        raise ApiError(416, f"start: there are {len(found)} applications")
    return found[first : first + whole(query.get("length") or str(_MOST), "length", 0)]


@router.put(wire.APPLICATIONS + "/{app_id}/stop")
def stop_application(request: Request, backend: TheBackend, user: TheUser, app_id: str) -> Response:
    """Stop an application, or all jobs of a pack."""
    packed = [row for row in _named(backend, user, app_id) if pack_id(row) == app_id]
    active = [row for row in packed if not row.terminal]
    if packed and not active:
        raise ApiError(400, f"All jobs of {app_id} have ended already")
    for row in active or [backend.exec_row(app_id, user)]:
        request_stop(backend, row)
        about(request.scope, row.id)
    return JsonAnswer({"id": app_id, "message": "stop requested"})


@router.post(wire.STOP_MANY)
def stop_many(
    request: Request, backend: TheBackend, user: TheUser, body: Annotated[Any, Body()] = None
) -> list[dict[str, Any]]:
    """Stop the applications and packs with these `ids`, in one go; what became of each, in the same order."""
    ids = body.get(wire.IDS) if isinstance(body, dict) else None
    if not (isinstance(ids, list) and all(isinstance(name, str) for name in ids) and len(ids) <= wire.MOST_IDS):
        raise ApiError(400, f'The body is no JSON object with a list "{wire.IDS}" of at most {wire.MOST_IDS} texts')
    packs = {name: [row.id for row in _named(backend, user, name)] for name in set(ids) if name.startswith(PACK)}
    single = {name for name in ids if execs.is_exec_id(name)}
    meant = sorted(single.union(*packs.values()))
    states = backend.database.write(lambda c: execs.request_stops(c, meant, user.sees_of))
    backend.supervisor.wake()
    about(request.scope, *(name for name, state in states.items() if state not in TERMINAL))
    return [_stopped(name, [states[member] for member in packs.get(name, [name]) if member in states]) for name in ids]


@router.get(wire.KUBERNETES_OBJECTS)
def kubernetes_objects(backend: TheBackend, user: TheUser, type: str = "", name: str | None = None) -> dict[str, Any]:
    """ParallelJobs (`type=paralleljob`) and pods (`type=pod`): a list under `items`, or the one called `name`."""
    objects: list[dict[str, Any]] = []
    if type == "paralleljob":
        rows = _rows(backend, user, None) if name is None else _named(backend, user, name)
        objects = [_parallel_job(backend, row) for row in rows]
    elif type == "pod":
        node, rows = socket.gethostname(), _rows(backend, user, HAS_SLOTS)
        objects = [pod for row in rows for pod in pods(row, running(row, backend.paths(row)), node)]
    if name is None:
        return {"items": objects}
    for found in objects:
        if found["metadata"]["name"] == name:
            return found
    raise ApiError(400, f"There is no object of type {type[:40]!r} with the name {name[:80]!r}")


@router.get(wire.BASE + "/scheduler/instances")
def instances(request: Request, user: TheUser) -> list[dict[str, str]]:
    """The one instance that there is."""
    return [
        {
            "uuid": INSTANCE_ID,
            "name": NAMESPACE,
            "version": "",
            "masterUrl": str(request.base_url).rstrip("/"),
            "executionUser": user.name,
            "state": "STARTED",
            "historyServerUrl": "",
        }
    ]


def _stopped(name: str, states: list[str]) -> dict[str, Any]:
    """What became of an application, or of a pack, whose jobs were in these states."""
    if not states:
        return {wire.ID: name, wire.STOPPED_NOW: False, wire.MESSAGE: f"Exec {name[:80]!r} is not found"}
    active = [state for state in states if state not in TERMINAL]
    said = "stop requested" if active else f"{name} is already {states[0]}"
    return {wire.ID: name, wire.STOPPED_NOW: bool(active), wire.STATE: (active or states)[0], wire.MESSAGE: said}


def _application(backend: Backend, row: ExecRow) -> dict[str, Any]:
    paths = backend.paths(row)
    live = set(running(row, paths))
    there = {number: number in live for number in executors(row, paths)}
    said = saying(row, progress_of(paths))
    shown = ({wire.MESSAGE: said} if said else {}) | told(backend, row)
    return application_object(row, there, backend.consumer(row), backend.kind(row), shown)


def _parallel_job(backend: Backend, row: ExecRow) -> dict[str, Any]:
    return parallel_job(row, backend.consumer(row), backend.kind(row), backend.reason(row))


def _rows(backend: Backend, user: Caller, wanted: Collection[str] | None) -> list[ExecRow]:
    return backend.database.read(lambda c: execs.of_user(c, user.sees_of, wanted))


def _named(backend: Backend, user: Caller, app_id: str) -> list[ExecRow]:
    """The exec with this id, or the members of this pack. None of them has to be there."""
    if execs.is_exec_id(app_id):
        row = backend.database.read(lambda c: execs.get(c, app_id))
        return [row] if row is not None and user.sees(row) else []
    return [row for row in _rows(backend, user, None) if pack_id(row) == app_id] if app_id.startswith(PACK) else []


def _sorted(objects: list[dict[str, Any]], sort: str, fields: frozenset[str]) -> list[dict[str, Any]]:
    """By one of these fields, `-` before it for descending; of rows with the same value the older one counts as less,
    those without one as least, lists and objects by their length."""
    field = sort.removeprefix("-")
    if field not in fields:
        raise ApiError(400, f"sort: there is no field {field[:40]!r} to sort by")

    def key(shown: dict[str, Any]) -> tuple[bool, Any]:
        value = shown.get(field)
        if value is None:
            return False, 0
        return True, len(value) if isinstance(value, list | dict) else value

    down = sort.startswith("-")
    return sorted(objects[::-1] if down else objects, key=key, reverse=down)
