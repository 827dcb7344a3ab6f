"""Logon and logoff, and whose a token is."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.backend import Backend, TheBackend, TheUser
from local_backend.api.caller import CALLER, TOKEN, Caller
from local_backend.api.errors import ApiError
from local_backend.api.guard import CHALLENGE, CONDUCTOR_LOGON, SESSION, address_of, presented, session
from local_backend.api.passwords import basic_credentials, is_malformed
from local_backend.store import tokens

router = APIRouter(tags=["auth"])

_COOKIE = {"description": f"{SESSION}=TOKEN; a session of a browser or client", "schema": {"type": "string"}}


@router.get(wire.LOGON)
async def logon(request: Request, backend: TheBackend) -> Response:
    """Exchange user and password (HTTP Basic) for a token. Of the user that the server runs as the passwords are the
    token of backend.json and DLI_PASSWORD, too."""
    return _said(await _by_password(request, backend))


@router.get(CONDUCTOR_LOGON, responses={200: {"headers": {"Set-Cookie": _COOKIE}}})
async def logon_for_a_session(request: Request, backend: TheBackend) -> Response:
    """The same as clients of the first product generation do it: the token is a cookie, too, which later calls may
    bring in its place."""
    stated = await _by_password(request, backend)
    answer = _said(stated)
    answer.set_cookie(SESSION, stated[wire.ACCESS_TOKEN], **_kept(request))
    return answer


@router.get(wire.VALIDATE)
async def validate(request: Request, backend: TheBackend, user: TheUser) -> Response:
    """Whose the token of this call is, and until when it is valid; with user and password a new one is made."""
    token = request.scope[TOKEN]
    if token is None:
        return _said(await _by_password(request, backend))
    claims = None if token == backend.token else await run_in_threadpool(backend.keys.claims, token)
    ends = {key: claims[key] for key in ("iat", "exp")} if claims is not None else {}
    return _said({**_stated(user), **ends, wire.ACCESS_TOKEN: token})


@router.post(wire.LOGOFF)
def logoff(request: Request, backend: TheBackend, user: TheUser) -> Response:
    """Make the tokens of this call, its cookie's included, worthless."""
    of_session = session(request.headers)
    for token in [*presented(request.headers), *of_session]:
        backend.database.write(partial(tokens.revoke, token=token))
    answer = JsonAnswer({"username": user.name, "messageCode": "success", "message": "logged off"})
    if of_session:
        answer.delete_cookie(SESSION, **_kept(request))
    return answer


async def _by_password(request: Request, backend: Backend) -> dict[str, Any]:
    """What is said of the user whose name and password the call brings, with a new token. Raises ApiError."""
    given = request.headers.get("authorization", "")
    if is_malformed(given):
        raise ApiError(400, "HTTP Basic is the word Basic and, in Base64, user:password; this call has something else")
    credentials = basic_credentials(given)
    if credentials is None:
        raise ApiError(401, "Send user and password with HTTP Basic", CHALLENGE)
    found = await backend.passwords.owner(*credentials, address_of(request.scope))
    if found is None:
        raise ApiError(401, "User or password is wrong", CHALLENGE)
    request.scope[CALLER] = found
    return await run_in_threadpool(_logged_on, backend, found, credentials[1])


def _logged_on(backend: Backend, user: Caller, password: str) -> dict[str, Any]:
    """The recorded answer with a new token, which states the same of its user. Raises ApiError when the password has
    been changed, or the user removed, in the meantime: the token would outlive that."""
    now = time.time()
    ends = now + backend.settings.token_seconds
    stated = {**_stated(user), "iat": int(now), "exp": math.ceil(ends)}
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
    return {**stated, wire.ACCESS_TOKEN: token}


def _stated(user: Caller) -> dict[str, Any]:
    """The claims about a user, with the issuer and the audience that readers of the recorded ones may look for."""
    return {
        "username": user.name,
        "role": "Admin" if user.admin else "User",
        "permissions": ["access_catalog", "can_submit", *(["administrator"] if user.admin else [])],
        "groups": [],
        "sub": user.name,
        "iss": "KNOXSSO",
        "aud": "DSX",
        "uid": user.name,
        "authenticator": "default",
    }


def _said(stated: dict[str, Any]) -> JsonAnswer:
    found = {**stated, "messageCode": "success", "message": "success"}
    return JsonAnswer(found, headers={"Cache-Control": "no-store"})


def _kept(request: Request) -> dict[str, Any]:
    """How a client is to keep the cookie: from scripts of pages, from calls that other sites make, from the clear."""
    return {"path": "/", "httponly": True, "samesite": "strict", "secure": request.scope["scheme"] == "https"}
