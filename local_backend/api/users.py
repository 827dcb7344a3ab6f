"""Users of a server with several users."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import resting
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import ADMINISTRATORS, EVERY_USER, UNNAMED, about
from local_backend.api.guard import address_of
from local_backend.api.models.accounts import NewPassword, NewRole, NewSubject, NewUser, UserObject
from local_backend.api.objects import user_object
from local_backend.api.route import Route
from local_backend.errors import AccessDenied, Invalid, Unauthorized

router = APIRouter(tags=["users"], route_class=Route)

#: A body that the service checks, after the permission of the caller.
Written = Annotated[Any, Body()]
_ONE = wire.USERS + "/{name}"
UserName = Annotated[str, Path(description="name of the user")]


@router.get(wire.USERS)
@about(ADMINISTRATORS, extension=UNNAMED, errors={403: "auth.admin_only"})
def list_users(services: TheServices, caller: TheCaller) -> JsonAnswer[list[UserObject]]:
    """List the users, sorted by name. Only for administrators."""
    return JsonAnswer([user_object(row) for row in services.users.list(caller)])


@router.post(wire.USERS, status_code=204)
@about(ADMINISTRATORS, extension=UNNAMED, body=NewUser, errors={
    400: "body.json user.invalid user.role", 403: "auth.admin_only", 409: "user.exists",
})
def add(services: TheServices, caller: TheCaller, body: Written = None) -> Response:
    """Add the user `name` with `password` and `role` (user or admin). Only for administrators."""
    given = body if isinstance(body, dict) else {}
    services.users.add(caller, *(given.get(key) for key in (wire.NAME, wire.PASSWORD, wire.ROLE)))
    return Response(status_code=204)


@router.put(_ONE + f"/{wire.PASSWORD}", status_code=204)
@about(f"{EVERY_USER}, for their own password; administrators, for all", extension=UNNAMED, body=NewPassword, errors={
    400: "body.json body.value user.invalid", 403: "auth.admin_only auth.wrong_password", 404: "user.not_found",
})
async def set_password(
    *, request: Request, services: TheServices, caller: TheCaller, name: UserName, body: Written = None
) -> Response:
    """Change the password of a user to `password`, and revoke all tokens of this user. Users who are not
    administrators may change only their own password, and must send the present one as `oldPassword`."""
    given = body if isinstance(body, dict) else {}
    if not caller.admin and name == caller.name:
        old = given.get(wire.OLD_PASSWORD)
        if not isinstance(old, str):
            sentence = f'The body must be a JSON object with a string "{wire.OLD_PASSWORD}"'
            raise Invalid("body.value", sentence)
        try:
            async with resting():
                await services.logons.by_password(name, old, address_of(request.scope))
        except Unauthorized:
            raise AccessDenied("auth.wrong_password", f"{wire.OLD_PASSWORD} is wrong") from None
    await run_in_threadpool(services.users.set_password, caller, name, given.get(wire.PASSWORD))
    return Response(status_code=204)


@router.put(_ONE + f"/{wire.ROLE}", status_code=204)
@about(ADMINISTRATORS, extension=UNNAMED, body=NewRole, errors={
    400: "body.json user.invalid user.role", 403: "auth.admin_only", 404: "user.not_found", 409: "user.last_admin",
})
def set_role(services: TheServices, caller: TheCaller, name: UserName, body: Written = None) -> Response:
    """Change the `role` of a user (user or admin). The last administrator stays one. Only for administrators."""
    services.users.set_role(caller, name, body.get(wire.ROLE) if isinstance(body, dict) else None)
    return Response(status_code=204)


@router.put(_ONE + f"/{wire.SUBJECT}", status_code=204)
@about(ADMINISTRATORS, extension=UNNAMED, body=NewSubject, errors={
    400: "body.json oidc.off user.invalid", 403: "auth.admin_only", 404: "user.not_found", 409: "user.exists",
})
def link(services: TheServices, caller: TheCaller, name: UserName, body: Written = None) -> Response:
    """Let the account of the OIDC issuer with this `subject`, and no other account, log on as a user. Only for
    administrators."""
    services.users.link(caller, name, body.get(wire.SUBJECT) if isinstance(body, dict) else None)
    return Response(status_code=204)


@router.delete(_ONE, status_code=204)
@about(ADMINISTRATORS, extension=UNNAMED, errors={
    403: "auth.admin_only", 404: "user.not_found", 409: "user.last_admin",
})
def remove(services: TheServices, caller: TheCaller, name: UserName) -> Response:
    """Remove a user and revoke all tokens of this user. The user's execs and results stay. The last administrator
    cannot be removed. Only for administrators."""
    services.users.remove(caller, name)
    return Response(status_code=204)
