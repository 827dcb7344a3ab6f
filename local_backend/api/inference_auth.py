"""Tokens for clients of inference: of a user, and for requests to models alone."""

from __future__ import annotations

import base64
import binascii

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from dlicmd.contract import dlim
from local_backend.api.as_json import JsonAnswer
from local_backend.api.basic import basic_credentials, is_malformed
from local_backend.api.depends import TheServices
from local_backend.api.description import ANYONE, about
from local_backend.api.errors import BodyRefused
from local_backend.api.guard import address_of, presented
from local_backend.api.models.inference import DlimLogon, DlimServiceToken, DlimTokens
from local_backend.api.route import Route
from local_backend.errors import Invalid, Unauthorized
from local_backend.services.logons import Logon
from local_backend.services.services import Services

router = APIRouter(tags=["auth"], route_class=Route)

_PRIVATE = {"Cache-Control": "no-store"}
_WRONG = ("Send user and password with HTTP Basic, or as JSON: method `password`, and userpasswd, which is "
          "USER:PASSWORD in Base64")


@router.post(dlim.TOKEN)
@about(ANYONE, errors={400: "auth.basic body.json body.value"}, body=DlimLogon)
async def token(request: Request, services: TheServices) -> JsonAnswer[DlimTokens]:
    """Exchange user and password (HTTP Basic, or JSON) for a token of the user, and for a token that only sends
    requests to models."""
    made = await _logon(request, services)
    service = await run_in_threadpool(services.logons.for_requests, made.caller)
    return JsonAnswer({
        "user_token": made.token, "access_token": made.token, "service_token": service}, headers=_PRIVATE)


@router.post(dlim.SERVICE_TOKEN)
@about(ANYONE, errors={400: "auth.basic body.json body.value"}, body=DlimLogon)
async def service_token(request: Request, services: TheServices) -> JsonAnswer[DlimServiceToken]:
    """Exchange user and password, or a token, for a token that only sends requests to models."""
    if await request.body():
        await request.json()  # also of a call with a token: a body with a fault is refused
    for given in presented(request.headers):
        found = await run_in_threadpool(services.logons.of_token, given)
        if found is not None:
            made = await run_in_threadpool(services.logons.for_requests, found, given)
            return JsonAnswer({"service_token": made}, headers=_PRIVATE)
    caller = (await _logon(request, services)).caller
    made = await run_in_threadpool(services.logons.for_requests, caller)
    return JsonAnswer({"service_token": made}, headers=_PRIVATE)


async def _logon(request: Request, services: Services) -> Logon:
    """Return a logon by user and password. Raises Invalid (`auth.basic`), BodyRefused, Unauthorized, Busy."""
    given = request.headers.get("authorization", "")
    if is_malformed(given):
        raise Invalid("auth.basic", f"Invalid Authorization header. {_WRONG}")
    pair = basic_credentials(given) or await _from_body(request)
    if pair is None:
        raise Unauthorized("auth.required", _WRONG)
    return await services.logons.logon(*pair, address_of(request.scope))


async def _from_body(request: Request) -> tuple[str, str] | None:
    """Return user and password of a JSON body; None without a body."""
    if not await request.body():
        return None
    body = await request.json()
    text = body.get("userpasswd") if isinstance(body, dict) else None
    try:
        if not isinstance(text, str):
            raise ValueError
        user, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
        if not colon:
            raise ValueError
    except (binascii.Error, ValueError):
        raise BodyRefused(Invalid("body.value", _WRONG)) from None
    return user, password


