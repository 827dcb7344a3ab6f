"""Logon and logoff."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from dlicmd.contract import wire
from local_backend.api import passwords
from local_backend.api.backend import TheBackend, TheUser
from local_backend.api.errors import ApiError
from local_backend.api.guard import CHALLENGE, CONDUCTOR_LOGON, presented
from local_backend.store import tokens

router = APIRouter(tags=["auth"])


@router.get(wire.LOGON)
@router.get(CONDUCTOR_LOGON)
async def logon(request: Request, backend: TheBackend) -> Response:
    """Exchange user and password (HTTP Basic) for a token. The password is the backend's token, or DLI_PASSWORD."""
    credentials = passwords.basic_credentials(request.headers.get("authorization", ""))
    if credentials is None:
        raise ApiError(401, "Send user and password with HTTP Basic", CHALLENGE)
    try:
        right = await passwords.are_right(backend, *credentials)
    except passwords.TooManyGuesses:
        raise ApiError(429, "Too many wrong passwords at a time; try again in a moment") from None
    if not right:
        raise ApiError(401, "User or password is wrong", CHALLENGE)
    user, seconds = backend.settings.user, backend.settings.token_seconds
    token, ends = await run_in_threadpool(backend.database.write, lambda c: tokens.issue(c, user, seconds))
    return JSONResponse(_answer(user, token, ends), headers={"Cache-Control": "no-store"})


@router.post(wire.LOGOFF)
def logoff(request: Request, backend: TheBackend, user: TheUser) -> Response:
    """Make the token of this call worthless."""
    for token in presented(request.headers):
        backend.database.write(partial(tokens.revoke, token=token))
    return JSONResponse({"username": user, "messageCode": "success", "message": "logged off"})


def _answer(user: str, token: str, ends: float) -> dict[str, Any]:
    return {
        "username": user,
        "role": "User",
        "permissions": ["access_catalog", "can_submit"],
        "groups": [],
        "sub": user,
        "iss": "dlicmd",
        "aud": "dlicmd",
        "uid": user,
        "authenticator": "default",
        wire.ACCESS_TOKEN: token,
        "exp": int(ends),
        "messageCode": "success",
        "message": "success",
    }
