"""Connections: each user has their own, and may use those that other users share. Calls accept secrets, and no answer
contains one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Body
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.bodies import JsonRoute
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.objects import connection_object
from local_backend.api.queries import text_of
from local_backend.errors import Invalid
from local_backend.store import users

router = APIRouter(tags=["connections"], route_class=JsonRoute)

Written = Annotated[Any, Body()]
_ONE = wire.CONNECTIONS + "/{name}"
_MOST_SHARED = 1000


@router.get(wire.CONNECTIONS)
def list_connections(services: TheServices, caller: TheCaller) -> list[dict[str, Any]]:
    """List the connections that the caller may use, without their secrets."""
    return [connection_object(row, caller, services.connections) for row in services.connections.list(caller)]


@router.post(wire.CONNECTIONS)
def add(services: TheServices, caller: TheCaller, body: Written = None) -> dict[str, Any]:
    """Add the connection `name` of a `type`. `values` maps the fields of that type to their values. Instead of a
    secret, an administrator may give {"env": NAME} or {"keyring": "SERVICE/USER"} of the server. `sharedWith` is a
    list of other users that may use the connection, or "everybody". `replace` replaces the caller's own connection of
    that name."""
    name, kind = (text_of(body, key) for key in (wire.NAME, wire.TYPE))
    values = body.get(wire.VALUES, {})
    if not isinstance(values, dict):
        raise Invalid("body.value", f'"{wire.VALUES}" is not a JSON object')
    shared, replace = _shared(body.get(wire.SHARED_WITH, [])), body.get(wire.REPLACE, False) is True
    row = services.connections.add(caller, name, kind, values, shared, replace)
    return connection_object(row, caller, services.connections)


@router.delete(_ONE, status_code=204)
def remove(services: TheServices, caller: TheCaller, name: str) -> Response:
    """Remove a connection, by its name or id. Only for its owner and administrators."""
    services.connections.remove(caller, name)
    return Response(status_code=204)


@router.post(_ONE + f"/{wire.TEST}")
def test(services: TheServices, caller: TheCaller, name: str) -> dict[str, Any]:
    """Test whether the server behind a connection accepts it: `ok`, and `message` if not. A test takes at most 30
    seconds."""
    problem = services.connections.test(caller, name)
    return {wire.OK: problem is None} | ({} if problem is None else {wire.MESSAGE: problem})


def _shared(value: Any) -> Sequence[str] | bool:
    if value == wire.EVERYBODY:
        return True
    if not isinstance(value, list) or len(value) > _MOST_SHARED or not all(users.is_name(one) for one in value):
        raise Invalid("body.value", f'"{wire.SHARED_WITH}" must be "{wire.EVERYBODY}" or a list of users')
    return value
