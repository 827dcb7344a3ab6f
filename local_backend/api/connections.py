"""Connections: everybody has the own ones, and uses those that others share. Secrets come in and never go out."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.audited import about
from local_backend.api.backend import Backend, TheBackend, TheUser, administrator
from local_backend.api.bodies import JsonRoute
from local_backend.api.caller import Caller
from local_backend.api.errors import ApiError
from local_backend.api.objects import iso
from local_backend.data.errors import DataError
from local_backend.data.tester import tested
from local_backend.sources.connections import Connections, references
from local_backend.store import users
from local_backend.store.connections import ConnectionExists, ConnectionRow

router = APIRouter(tags=["connections"], route_class=JsonRoute)

Written = Annotated[Any, Body()]
_ONE = wire.CONNECTIONS + "/{name}"
_MOST_SHARED = 1000
#: Each is a process for up to half a minute.
_tests = threading.BoundedSemaphore(4)


@router.get(wire.CONNECTIONS)
def list_connections(backend: TheBackend, user: TheUser) -> list[dict[str, Any]]:
    """The connections that the caller may use, without their secrets."""
    found = backend.connections.visible(user.name, user.admin)
    return [shown(row, user, backend.connections) for row in found]


@router.post(wire.CONNECTIONS)
def add(request: Request, backend: TheBackend, user: TheUser, body: Written = None) -> dict[str, Any]:
    """Add the connection `name` of a `type` with `values`, by the names of the fields of that type. A secret may be
    {"env": NAME} or {"keyring": "SERVICE/USER"} instead, of the server: for administrators. `sharedWith` are other
    users that may use it, or "everybody". With `replace` it takes the place of the caller's own one of that name."""
    name, kind = (_text(body, key) for key in (wire.NAME, wire.TYPE))
    about(request.scope, name)
    values = body.get(wire.VALUES, {})
    if not isinstance(values, dict):
        raise ApiError(400, f'"{wire.VALUES}" is not a JSON object')
    if references(values):
        administrator(user, f"takes '{references(values)[0][:40]}' from the environment or keyring of the server")
    shared, replace = _shared(body.get(wire.SHARED_WITH, [])), body.get(wire.REPLACE, False) is True
    try:
        row = backend.connections.add(user.name, name, kind, values, shared, replace)
        backend.supervisor.wake()  # jobs whose data comes through the one that it takes the place of
        return shown(row, user, backend.connections)
    except DataError as problem:
        raise ApiError(400, str(problem)) from None
    except ConnectionExists as problem:
        raise ApiError(409, str(problem)) from None


@router.delete(_ONE, status_code=204)
def remove(backend: TheBackend, user: TheUser, name: str) -> Response:
    """Forget a connection, by its name or id. For its owner, and administrators."""
    row = _found(backend, user, name)
    if not (user.admin or row.owner == user.name):
        raise ApiError(403, f"Connection {row.name!r} belongs to {row.owner}")
    try:
        backend.connections.remove(row)
    except DataError as problem:
        raise ApiError(409, str(problem)) from None
    backend.supervisor.wake()
    return Response(status_code=204)


@router.post(_ONE + f"/{wire.TEST}")
def test(backend: TheBackend, user: TheUser, name: str) -> dict[str, Any]:
    """Whether the server behind a connection lets us in: `ok`, and `message` when not. It has half a minute."""
    row = _found(backend, user, name)
    if not _tests.acquire(blocking=False):
        raise ApiError(429, "Other connections are being tested; try again in a moment")
    try:
        problem = tested(backend.connections.opened(row), backend.data_roots(user))
    except DataError as caught:
        problem = str(caught)
    finally:
        _tests.release()
    return {wire.OK: problem is None} | ({} if problem is None else {wire.MESSAGE: problem})


def shown(row: ConnectionRow, user: Caller, connections: Connections) -> dict[str, Any]:
    """A connection without its secrets. Where they are taken from is for administrators and its owner."""
    return {
        wire.ID: row.id, wire.NAME: row.name, wire.TYPE: row.kind, wire.OWNER: row.owner,
        wire.SHARED_WITH: wire.EVERYBODY if row.shared_with is True else row.shared_with,
        wire.VALUES: {name: value for name, value in row.values.items() if not isinstance(value, Mapping)},
        wire.SECRETS: connections.secrets(row) if user.admin or row.owner == user.name else {},
        wire.FROM_FILE: connections.is_of_file(row), wire.CREATED: iso(row.created) if row.created else "",
    }


def _found(backend: Backend, user: Caller, name: str) -> ConnectionRow:
    try:
        return backend.connections.row(name, user.name, user.admin)
    except DataError as problem:
        raise ApiError(404, str(problem)) from None


def _text(body: Any, key: str) -> str:
    value = body.get(key) if isinstance(body, dict) else None
    if not isinstance(value, str):
        raise ApiError(400, f'The body is no JSON object with a text "{key}"')
    return value


def _shared(value: Any) -> Sequence[str] | bool:
    if value == wire.EVERYBODY:
        return True
    if not isinstance(value, list) or len(value) > _MOST_SHARED or not all(users.is_name(one) for one in value):
        raise ApiError(400, f'"{wire.SHARED_WITH}" is neither "{wire.EVERYBODY}" nor a list of users')
    return value
