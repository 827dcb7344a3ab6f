"""The device grant of RFC 8628: the user confirms a logon at an OIDC issuer in a browser on any machine.

The issuer is contacted only over verified TLS; over plain http only on the loopback.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import requests

from dlicmd.contract import wire
from dlicmd.sdk.backend import LOOPBACK
from dlicmd.sdk.errors import Denied, ServerError, Unreachable
from dlicmd.sdk.messages import inert
from dlicmd.sdk.transport import CONNECT_TIMEOUT

_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
#: Maximum bytes of an answer.
_LARGEST = 2**20
#: Seconds between two questions, and their maximum; seconds that the user has by default.
_INTERVAL, _SLOWEST, _EXPIRES = 5, 60, 600


def device_token(found: Mapping[str, Any], show: Callable[[str], None]) -> str:
    """Return an ID token that the issuer sends after the user has confirmed the logon.

    Args:
        found: Issuer, client and scopes, as `Client.oidc_issuer` returns them.
        show: Function that shows the user the address to open and the code to enter.

    Raises:
        Denied: The issuer or the user refused.
        ServerError: The issuer cannot be used.
        Unreachable: The issuer does not answer.
    """
    issuer = _url(found.get(wire.ISSUER), "")
    client_id = str(found.get(wire.CLIENT_ID))
    described = _asked(issuer.rstrip("/") + "/.well-known/openid-configuration", None)[1]
    if described.get("issuer") != issuer:
        raise ServerError(f"{inert(issuer)} describes another issuer", 200)
    if "device_authorization_endpoint" not in described:
        raise ServerError(f"{inert(issuer)} does not offer the device grant; use --oidc-token-file or a password", 200)
    status, begun = _asked(_url(described["device_authorization_endpoint"], issuer),
                           {"client_id": client_id, "scope": str(found.get(wire.SCOPES) or "openid")})
    if status != 200 or not isinstance(begun.get("device_code"), str):
        raise Denied(f"{inert(issuer)} refused to begin a logon: {_reason(begun)}", status)
    page, code = str(begun.get("verification_uri")), str(begun.get("user_code"))
    show(f"open {inert(page)} in a browser, and enter the code {inert(code)}")
    if isinstance(begun.get("verification_uri_complete"), str):
        show(f"or open {inert(begun['verification_uri_complete'])}")
    return _awaited(_url(described.get("token_endpoint"), issuer), client_id, begun)


def _awaited(endpoint: str, client_id: str, begun: Mapping[str, Any]) -> str:
    """Ask for the tokens until the user has decided. Raises Denied, ServerError."""
    pause = min(max(_number(begun.get("interval"), _INTERVAL), 1), _SLOWEST)
    end = time.monotonic() + _number(begun.get("expires_in"), _EXPIRES)
    while time.monotonic() < end:
        time.sleep(pause)
        status, answer = _asked(endpoint, {"grant_type": _GRANT, "client_id": client_id,
                                           "device_code": str(begun["device_code"])})
        token, error = answer.get("id_token"), answer.get("error")
        if status == 200:
            if not isinstance(token, str):
                raise ServerError("the issuer sent no ID token; its scopes must contain openid", status)
            return token
        if error == "slow_down":
            pause = min(pause + _INTERVAL, _SLOWEST)
        elif error != "authorization_pending":
            raise Denied(f"the issuer refused the logon: {_reason(answer)}", status)
    raise Denied("the time for the logon has ended; log on again", 401)


def _asked(url: str, form: dict[str, str] | None) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON object of the issuer's answer to a POST of a form, or to a GET. Raises
    ServerError, Unreachable."""
    try:
        with requests.request("GET" if form is None else "POST", url, data=form, timeout=CONNECT_TIMEOUT,
                              allow_redirects=False, stream=True, headers={"Accept": "application/json"}) as answer:
            content = answer.raw.read(_LARGEST, decode_content=True)
    except (requests.RequestException, OSError) as problem:
        raise Unreachable(f"no answer from the OIDC issuer at {inert(url)}: {inert(str(problem))[:300]}") from None
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or (form is None and answer.status_code != 200):
        raise ServerError(f"{inert(url)} is not an OIDC issuer (HTTP {answer.status_code})", answer.status_code)
    return answer.status_code, found


def _url(given: object, issuer: str) -> str:
    """Return a URL of the issuer. Raises ServerError for one that is not protected."""
    url = given if isinstance(given, str) else ""
    parts = urlsplit(url)
    may_be_plain = parts.hostname in LOOPBACK and not issuer.startswith("https:")
    if not parts.hostname or parts.scheme not in ({"https", "http"} if may_be_plain else {"https"}):
        raise ServerError(f"the server names an OIDC issuer without https: {inert(url)[:200]}", 200)
    return url


def _number(given: object, default: int) -> int:
    return given if isinstance(given, int) and not isinstance(given, bool) else default


def _reason(answer: Mapping[str, Any]) -> str:
    said = [str(answer[key]) for key in ("error", "error_description") if answer.get(key)]
    return inert(": ".join(said))[:300] or "no reason given"
