"""Logon and logoff."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from dlicmd.contract import wire
from local_backend.api.backend import Backend, TheBackend, TheUser
from local_backend.api.errors import ApiError
from local_backend.api.guard import CHALLENGE, CONDUCTOR_LOGON, basic_credentials, presented, same
from local_backend.store import tokens

router = APIRouter(tags=["auth"])

#: Seconds that a failed logon takes, and how many may wait like that at a time.
SLOW = 1.0
_MOST_WAITING = 20
_waiting = 0


@router.get(wire.LOGON)
@router.get(CONDUCTOR_LOGON)
async def logon(request: Request, backend: TheBackend) -> Response:
    """Exchange user and password (HTTP Basic) for a token. The password is the backend's token, or DLI_PASSWORD."""
    credentials = basic_credentials(request.headers.get("authorization", ""))
    if credentials is None:
        raise ApiError(401, "Send user and password with HTTP Basic", CHALLENGE)
    if not _right(backend, *credentials):
        await _slow_down()
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


def _right(backend: Backend, user: str, password: str) -> bool:
    known = [backend.token, *([backend.password] if backend.password else [])]
    matches = [same(password, secret) for secret in known]
    return same(user, backend.settings.user) and any(matches)


async def _slow_down() -> None:
    """Make guessing slow. Raises ApiError when too many wait already."""
    global _waiting
    if _waiting >= _MOST_WAITING:
        raise ApiError(429, "Too many failed logons at a time; try again in a moment")
    _waiting += 1
    try:
        await asyncio.sleep(SLOW)
    finally:
        _waiting -= 1


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
