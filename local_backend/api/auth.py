"""Logon and logoff."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from dlicmd.contract import wire
from local_backend.api.backend import Backend, TheBackend, TheUser
from local_backend.api.caller import CALLER, Caller
from local_backend.api.errors import ApiError
from local_backend.api.guard import CHALLENGE, CONDUCTOR_LOGON, address_of, presented
from local_backend.api.passwords import basic_credentials
from local_backend.store import tokens

router = APIRouter(tags=["auth"])


@router.get(wire.LOGON)
@router.get(CONDUCTOR_LOGON)
async def logon(request: Request, backend: TheBackend) -> Response:
    """Exchange user and password (HTTP Basic) for a token. Of the user that the server runs as the passwords are the
    token of backend.json and DLI_PASSWORD, too."""
    credentials = basic_credentials(request.headers.get("authorization", ""))
    if credentials is None:
        raise ApiError(401, "Send user and password with HTTP Basic", CHALLENGE)
    found = await backend.passwords.owner(*credentials, address_of(request.scope))
    if found is None:
        raise ApiError(401, "User or password is wrong", CHALLENGE)
    request.scope[CALLER] = found
    answer = await run_in_threadpool(_logged_on, backend, found, credentials[1])
    return JSONResponse(answer, headers={"Cache-Control": "no-store"})


@router.post(wire.LOGOFF)
def logoff(request: Request, backend: TheBackend, user: TheUser) -> Response:
    """Make the token of this call worthless."""
    for token in presented(request.headers):
        backend.database.write(partial(tokens.revoke, token=token))
    return JSONResponse({"username": user.name, "messageCode": "success", "message": "logged off"})


def _logged_on(backend: Backend, user: Caller, password: str) -> dict[str, Any]:
    """The recorded answer with a new token, which states the same of its user. Raises ApiError when the password has
    been changed, or the user removed, in the meantime: the token would outlive that."""
    now = time.time()
    ends = now + backend.settings.token_seconds
    stated = {
        "username": user.name,
        "role": "Admin" if user.admin else "User",
        "permissions": ["access_catalog", "can_submit", *(["administrator"] if user.admin else [])],
        "groups": [],
        "sub": user.name,
        "iss": "dlicmd",
        "aud": "dlicmd",
        "uid": user.name,
        "authenticator": "default",
        "iat": int(now),
        "exp": math.ceil(ends),
    }
    try:
        token = backend.keys.sign(stated)
    except OSError as problem:
        raise ApiError(507, f"The server cannot sign tokens ({problem.strerror}: {problem.filename})") from None

    def keep(connection: Connection) -> bool:
        right = backend.passwords.still_right(connection, user.name, password)
        if right:
            tokens.keep(connection, token, user.name, ends)
        return right

    if not backend.database.write(keep):
        raise ApiError(401, "User or password is wrong", CHALLENGE)
    return {**stated, wire.ACCESS_TOKEN: token, "messageCode": "success", "message": "success"}
