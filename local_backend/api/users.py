"""Users of a server for others: administrators add and remove them, everybody may change the own password."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.audited import about
from local_backend.api.backend import Backend, TheBackend, TheUser, administrator
from local_backend.api.bodies import JsonRoute
from local_backend.api.errors import ApiError, answers
from local_backend.api.objects import iso
from local_backend.store import users
from local_backend.store.users import LastAdmin, NoSuchUser, UserError, UserExists, UserRow

router = APIRouter(tags=["users"], route_class=JsonRoute)

Written = Annotated[Any, Body()]
_ONE = wire.USERS + "/{name}"


@router.get(wire.USERS)
def list_users(backend: TheBackend, user: TheUser) -> list[dict[str, str]]:
    """The users, by name. For administrators."""
    administrator(user, "sees users")
    return [shown(row) for row in backend.database.read(users.everybody)]


@router.post(wire.USERS, status_code=204, responses=answers(409))
def add(request: Request, backend: TheBackend, user: TheUser, body: Written = None) -> Response:
    """Add the user `name` with `password` and `role` (user or admin). For administrators."""
    administrator(user, "adds users")
    name, password, role = (_text(body, key) for key in (wire.NAME, wire.PASSWORD, wire.ROLE))
    about(request.scope, name)
    if role not in users.ROLES:
        raise ApiError(400, f"{wire.ROLE}: {role[:40]!r} is none of {', '.join(users.ROLES)}")
    if name == backend.settings.user and role != users.ADMIN:
        raise ApiError(400, f"{wire.ROLE}: {name} is whom the server runs as, and an {users.ADMIN}")
    _change(backend, lambda c, kept: users.add(c, users.checked_name(name), kept, role), password)
    return Response(status_code=204)


@router.put(_ONE + f"/{wire.PASSWORD}", status_code=204)
async def set_password(
    *, request: Request, backend: TheBackend, user: TheUser, name: str, body: Written = None
) -> Response:
    """Change the password of a user to `password`; all tokens of that user are worthless then. Who is no administrator
    changes only the own one, and gives it as `oldPassword`."""
    if not user.admin:
        if name != user.name:
            administrator(user, "changes the passwords of others")
        address = request.client.host if request.client else ""
        if await backend.passwords.owner(name, _text(body, wire.OLD_PASSWORD), address) is None:
            raise ApiError(403, f"{wire.OLD_PASSWORD} is wrong")
    password = _text(body, wire.PASSWORD)
    await run_in_threadpool(_change, backend, lambda c, kept: users.set_password(c, name, kept), password)
    return Response(status_code=204)


@router.delete(_ONE, status_code=204)
def remove(backend: TheBackend, user: TheUser, name: str) -> Response:
    """Remove a user, whose tokens are worthless then; execs and results stay. The last administrator is
    refused. For administrators."""
    administrator(user, "removes users")
    try:
        backend.database.write(lambda c: users.remove(c, name, backend.settings.user))
    except (NoSuchUser, LastAdmin) as problem:
        raise ApiError(404 if isinstance(problem, NoSuchUser) else 409, str(problem)) from None
    backend.supervisor.wake()  # who was an administrator used the connections of all
    return Response(status_code=204)


def shown(row: UserRow) -> dict[str, str]:
    """A user without the password."""
    return {wire.NAME: row.name, wire.ROLE: row.role, wire.CREATED: iso(row.created)}


def _change(backend: Backend, work: Callable[[Connection, str], None], password: str) -> None:
    """Do `work` with a connection and the hash of a password."""
    from local_backend.password_hash import hashed

    try:
        kept = hashed(users.checked_password(password))
        backend.database.write(lambda connection: work(connection, kept))
    except (NoSuchUser, UserExists) as problem:
        raise ApiError(404 if isinstance(problem, NoSuchUser) else 409, str(problem)) from None
    except UserError as problem:
        raise ApiError(400, str(problem)) from None


def _text(body: Any, key: str) -> str:
    value = body.get(key) if isinstance(body, dict) else None
    if not isinstance(value, str):
        raise ApiError(400, f'The body is no JSON object with a text "{key}"')
    return value
