"""Users of a server with several users."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.bodies import JsonRoute
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.errors import answers
from local_backend.api.guard import address_of
from local_backend.api.objects import user_object
from local_backend.api.queries import text_of
from local_backend.errors import Denied, Unauthorized

router = APIRouter(tags=["users"], route_class=JsonRoute)

Written = Annotated[Any, Body()]
_ONE = wire.USERS + "/{name}"


@router.get(wire.USERS)
def list_users(services: TheServices, caller: TheCaller) -> list[dict[str, str]]:
    """List the users, sorted by name. Only for administrators."""
    return [user_object(row) for row in services.users.list(caller)]


@router.post(wire.USERS, status_code=204, responses=answers(409))
def add(services: TheServices, caller: TheCaller, body: Written = None) -> Response:
    """Add the user `name` with `password` and `role` (user or admin). Only for administrators."""
    given = body if isinstance(body, dict) else {}
    services.users.add(caller, *(given.get(key) for key in (wire.NAME, wire.PASSWORD, wire.ROLE)))
    return Response(status_code=204)


@router.put(_ONE + f"/{wire.PASSWORD}", status_code=204)
async def set_password(
    *, request: Request, services: TheServices, caller: TheCaller, name: str, body: Written = None
) -> Response:
    """Change the password of a user to `password`, and revoke all tokens of this user. Users who are not
    administrators may change only their own password, and must send the present one as `oldPassword`."""
    if not caller.admin and name == caller.name:
        try:
            await services.logons.by_password(name, text_of(body, wire.OLD_PASSWORD), address_of(request.scope))
        except Unauthorized:
            raise Denied("auth.wrong_password", f"{wire.OLD_PASSWORD} is wrong") from None
    password = body.get(wire.PASSWORD) if isinstance(body, dict) else None
    await run_in_threadpool(services.users.set_password, caller, name, password)
    return Response(status_code=204)


@router.delete(_ONE, status_code=204)
def remove(services: TheServices, caller: TheCaller, name: str) -> Response:
    """Remove a user and revoke all tokens of this user. The user's execs and results stay. The last administrator
    cannot be removed. Only for administrators."""
    services.users.remove(caller, name)
    return Response(status_code=204)
