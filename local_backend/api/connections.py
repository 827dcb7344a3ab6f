"""Connections: each user has their own, and may use those that other users share. Calls accept secrets, and no answer
contains one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import EVERY_USER, OWNER, about
from local_backend.api.models.accounts import ConnectionChange, ConnectionObject, KindObject, NewConnection, TestResult
from local_backend.api.models.common import present
from local_backend.api.objects import connection_object
from local_backend.api.route import Route
from local_backend.services.load import TEST

router = APIRouter(tags=["connections"], route_class=Route)

#: A name may contain the name of the owner and a slash.
_ONE = wire.CONNECTIONS + "/{name:path}"
Reference = Annotated[str, Path(description="name, OWNER/NAME or ID of the connection")]


@router.get(wire.CONNECTIONS)
@about(EVERY_USER, extension=wire.EXT_CONNECTIONS)
def list_connections(services: TheServices, caller: TheCaller) -> JsonAnswer[list[ConnectionObject]]:
    """List the connections that the caller may use, without their secrets."""
    rows = services.connections.list(caller)
    return JsonAnswer([connection_object(row, caller, services.connections) for row in rows])


@router.post(wire.CONNECTIONS)
@about(EVERY_USER, extension=wire.EXT_CONNECTIONS, errors={
    400: "body.json body.value connection.invalid data.kind_unusable", 403: "auth.admin_only", 409: "connection.exists",
})
def add(services: TheServices, caller: TheCaller, body: NewConnection) -> JsonAnswer[ConnectionObject]:
    """Add the connection `name` of a `type`. `values` maps the fields of that type to their values. Instead of a
    secret, an administrator may give {"env": NAME} or {"keyring": "SERVICE/USER"} of the server. `sharedWith` is a
    list of other users that may use the connection, or "everybody". `replace` replaces the caller's own connection of
    that name."""
    shared = True if body.sharedWith == wire.EVERYBODY else body.sharedWith
    row = services.connections.add(caller, body.name, body.type, body.values, shared, body.replace)
    return JsonAnswer(connection_object(row, caller, services.connections))


@router.get(wire.CONNECTION_KINDS)
@about(EVERY_USER, extension=wire.EXT_CONNECTIONS)
def kinds(services: TheServices, _: TheCaller) -> JsonAnswer[list[KindObject]]:
    """List the kinds of connections with their fields."""
    return JsonAnswer([
        {"name": kind.name, "title": kind.title, "fields": [
            {"name": one.name, "help": one.help, "required": one.required, "secret": one.secret} for one in kind.fields
        ]} for kind in services.connections.kinds()
    ])


@router.put(_ONE)
@about(OWNER, extension=wire.EXT_CONNECTIONS, errors={
    400: "body.json body.value connection.invalid data.kind_unusable",
    403: "auth.admin_only connection.of_another_user", 404: "connection.not_found",
})
def change(
    services: TheServices, caller: TheCaller, name: Reference, body: ConnectionChange
) -> JsonAnswer[ConnectionObject]:
    """Give a connection new `values`, and share it with the users `sharedWith`. Secrets that are absent stay as they
    are, if all other values do. Only for its owner and administrators."""
    shared = True if body.sharedWith == wire.EVERYBODY else body.sharedWith
    row = services.connections.change(caller, name, body.values, shared)
    return JsonAnswer(connection_object(row, caller, services.connections))


@router.delete(_ONE, status_code=204)
@about(OWNER, extension=wire.EXT_CONNECTIONS, errors={
    403: "connection.of_another_user", 404: "connection.not_found", 409: "connection.of_file",
})
def remove(services: TheServices, caller: TheCaller, name: Reference) -> Response:
    """Remove a connection, by its name, OWNER/NAME or id. Only for its owner and administrators."""
    services.connections.remove(caller, name)
    return Response(status_code=204)


@router.post(_ONE + f"/{wire.TEST}")
@about(EVERY_USER, extension=wire.EXT_CONNECTIONS, errors={404: "connection.not_found"})
@bulk(TEST, stream=False)
def test(services: TheServices, caller: TheCaller, name: Reference) -> JsonAnswer[TestResult]:
    """Test whether the server behind a connection accepts it: `ok`, and `message` if not. A test takes at most 30
    seconds."""
    problem = services.connections.test(caller, name)
    found: TestResult = {"ok": problem is None, "message": problem}
    return JsonAnswer(present(found))
