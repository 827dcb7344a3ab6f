"""Log on, log off, and validate tokens."""

from __future__ import annotations

from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.basic import basic_credentials, is_malformed
from local_backend.api.depends import TOKEN, TheCaller, TheServices
from local_backend.api.description import ANYONE, EVERY_USER, UNNAMED, about
from local_backend.api.guard import CONDUCTOR_LOGON, PLATFORM_LOGONS, SESSION, address_of, presented, session
from local_backend.api.models.accounts import (
    ConsoleLink,
    LoggedOff,
    LoggedOn,
    OidcIssuer,
    OidcLogon,
    PlatformLogon,
    PlatformToken,
)
from local_backend.api.route import Route
from local_backend.errors import Invalid, Unauthorized
from local_backend.services.links import VALID
from local_backend.services.services import Services

router = APIRouter(tags=["auth"], route_class=Route)

#: Errors of a logon.
_REFUSED = {400: "auth.basic"}
#: The page that a one-time link opens.
_ENTER = "/console/enter"
#: Headers of an answer with a token.
_PRIVATE = {"Cache-Control": "no-store"}


@router.get(wire.LOGON)
@about(ANYONE, errors=_REFUSED)
async def logon(request: Request, services: TheServices) -> JsonAnswer[LoggedOn]:
    """Exchange user and password (HTTP Basic) for a token. The user that the server runs as may also use the token of
    backend.json or DLI_PASSWORD as the password."""
    return _said(await _by_password(request, services))


@router.get(CONDUCTOR_LOGON)
@about(ANYONE, errors=_REFUSED, answer_headers={
    "Set-Cookie": f"{SESSION}=TOKEN; the session of a browser or client",
})
async def logon_for_a_session(request: Request, services: TheServices) -> JsonAnswer[LoggedOn]:
    """Exchange user and password for a token, for clients of the first product generation. The answer also sets the
    token as a cookie. Later calls may send the cookie instead of the token."""
    stated = await _by_password(request, services)
    answer = _said(stated)
    answer.set_cookie(SESSION, stated[wire.ACCESS_TOKEN], **_kept(request))
    return answer


@router.post(PLATFORM_LOGONS[0])
@router.post(PLATFORM_LOGONS[1])
@about(ANYONE, errors={400: "body.json body.value"})
async def authorize(request: Request, services: TheServices, body: PlatformLogon) -> JsonAnswer[PlatformToken]:
    """Exchange user and password for a token, for clients of IBM Cloud Pak for Data. The server has no API keys: an
    `api_key` in place of `password` must be the password."""
    password = body.api_key if body.password is None else body.password
    if password is None:
        raise Invalid("body.value", PlatformLogon.refusal("password"))
    made = await services.logons.logon(body.username, password, address_of(request.scope))
    found: PlatformToken = {"_messageCode_": "200", "message": "Success", "token": made.token}
    return JsonAnswer(found, headers=_PRIVATE)


@router.get(wire.OIDC)
@about(ANYONE, extension=UNNAMED, errors={404: "oidc.off"})
async def oidc_issuer(services: TheServices) -> JsonAnswer[OidcIssuer]:
    """Return the issuer whose tokens this server exchanges, and the client that asks the issuer for them."""
    found = services.oidc.settings
    return JsonAnswer({"issuer": str(found.issuer), "clientId": str(found.client_id), "scopes": found.scopes})


@router.post(wire.OIDC)
@about(ANYONE, extension=UNNAMED, errors={
    400: "body.json body.value", 401: "oidc.token", 403: "oidc.collision oidc.name oidc.unknown_user", 404: "oidc.off",
    503: "oidc.issuer",
})
async def oidc_logon(request: Request, services: TheServices, body: OidcLogon) -> JsonAnswer[LoggedOn]:
    """Exchange an ID token, or an access token in the form of a JWT, of the issuer for a token of this server."""
    made = await services.oidc.logon(body.token, body.nonce, address_of(request.scope))
    return _said({**made.claims, wire.ACCESS_TOKEN: made.token})


@router.post(wire.LINK)
@about(EVERY_USER, extension=UNNAMED, errors={403: "auth.scope", 429: "auth.too_many_links"})
def link(request: Request, services: TheServices, caller: TheCaller) -> JsonAnswer[ConsoleLink]:
    """Return a link that opens the console once, logged on as the caller."""
    url = f"{str(request.base_url).rstrip('/')}{_ENTER}?code={services.links.make(caller)}"
    return JsonAnswer({"url": url, "seconds": int(VALID)}, headers=_PRIVATE)


@router.get(wire.VALIDATE)
@about(EVERY_USER, errors=_REFUSED)
async def validate(request: Request, services: TheServices, caller: TheCaller) -> JsonAnswer[LoggedOn]:
    """Return the user of the token and the time until which it is valid. A call with user and password gets a new
    token."""
    token = request.scope[TOKEN]
    if token is None:
        return _said(await _by_password(request, services))
    claims = await run_in_threadpool(services.logons.claims, caller, token)
    return _said({**claims, wire.ACCESS_TOKEN: token})


@router.post(wire.LOGOFF)
@about(EVERY_USER)
def logoff(request: Request, services: TheServices, caller: TheCaller) -> JsonAnswer[LoggedOff]:
    """Revoke the tokens of this call, including the token in its cookie."""
    of_session = session(request.headers)
    services.logons.logoff(caller, [*presented(request.headers), *of_session])
    done: LoggedOff = {"username": caller.name, "messageCode": "success", "message": "logged off"}
    answer = JsonAnswer(done)
    if of_session:
        answer.delete_cookie(SESSION, **_kept(request))
    return answer


async def _by_password(request: Request, services: Services) -> dict[str, Any]:
    """Return the recorded answer to a logon: the claims of the user, and a new token. Raises Invalid (`auth.basic`),
    Unauthorized, Busy."""
    given = request.headers.get("authorization", "")
    if is_malformed(given):
        raise Invalid(
            "auth.basic", "Invalid Authorization header. HTTP Basic needs the word Basic and user:password in Base64"
        )
    credentials = basic_credentials(given)
    if credentials is None:
        raise Unauthorized("auth.required", "Send user and password with HTTP Basic")
    made = await services.logons.logon(*credentials, address_of(request.scope))
    return {**made.claims, wire.ACCESS_TOKEN: made.token}


def _said(stated: dict[str, Any]) -> JsonAnswer[LoggedOn]:
    found = cast("LoggedOn", {**stated, "messageCode": "success", "message": "success"})
    return JsonAnswer(found, headers=_PRIVATE)


def _kept(request: Request) -> dict[str, Any]:
    """Return the attributes of the cookie: hidden from scripts of pages, not sent with calls that other sites make,
    and sent only over TLS if this call came over TLS."""
    return {"path": "/", "httponly": True, "samesite": "strict", "secure": request.scope["scheme"] == "https"}
