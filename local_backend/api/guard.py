"""One gate before every method of every path, streams and documentation included.

 1. Host: the name by which the server was asked for must be one of its own. A web page that rebinds its DNS name to
    the loopback address still sends its own name.
 2. Origin and Sec-Fetch-Site: no call that a page of another origin makes a browser send.
 3. Token: `Authorization: Bearer`, `X-Auth-Token`, or HTTP Basic with the token as password; or user and password, with
    HTTP Basic on every call, as clients of the first product generation send them. Only logon, the client's file
    and the two looks at the server's health go without, and /metrics where a setting says so.
"""

from __future__ import annotations

import ipaddress
import re
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from dlicmd.contract import wire
from local_backend import logs
from local_backend.api import passwords
from local_backend.api.backend import Backend
from local_backend.api.errors import error_response
from local_backend.api.observe import Observation
from local_backend.store import tokens

#: Logon of the first product generation; same answer.
CONDUCTOR_LOGON = "/platform/rest/conductor/v1/auth/logon"
#: The client, for whoever has none yet.
CLIENT_FILE = "/ui/tools/dlicmd.py"
OPEN_PATHS = frozenset({wire.LOGON, CONDUCTOR_LOGON, CLIENT_FILE, wire.HEALTH, wire.READY})
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
CHALLENGE = {"WWW-Authenticate": 'Basic realm="dlicmd", charset="UTF-8"'}

_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9]([a-z0-9._-]{0,252}[a-z0-9])?)(?::([0-9]{1,5}))?")


def host_name(header: str) -> str | None:
    """The name in a Host header, lower case, IPv6 addresses with their brackets; None when it is malformed."""
    match = _HOST.fullmatch(header.lower())
    if match is None or (match[3] is not None and int(match[3]) > 65535):
        return None
    return match[1]


class Guard:
    """The application behind the gate. `hosts` are the names of the server; `addresses` admits any literal address,
    for a server that listens on all interfaces (a rebound name is never a literal address)."""

    def __init__(self, app: ASGIApp, backend: Backend, hosts: frozenset[str], addresses: bool) -> None:
        self.app = app
        self.backend = backend
        self._hosts = LOOPBACK | hosts
        self._addresses = addresses
        self._open = OPEN_PATHS | ({wire.METRICS} if backend.settings.open_metrics else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http":
            with Observation(scope) as seen:
                await self._admit(scope, receive, seen.sending(send))

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the call on, or refuse it."""
        headers = Headers(scope=scope)
        scope["path"] = scope["path"].rstrip("/") or "/"
        refusal = self._foreign(headers, scope["scheme"])
        if refusal is not None:
            await error_response(403, refusal)(scope, receive, send)
            return
        user = None if scope["path"] in self._open else await self._user(headers)
        if user is None and scope["path"] not in self._open:
            sentence = "A valid token is required: log on first, or send the token of the running backend"
            await error_response(401, sentence, CHALLENGE)(scope, receive, send)
            return
        scope["dlicmd.user"] = user
        if user is not None:
            logs.about(user=user)
        await self.app(scope, receive, send)

    def _foreign(self, headers: Headers, scheme: str) -> str | None:
        """Why the call does not come from where it should, None when it does."""
        named = headers.getlist("host")
        name = host_name(named[0]) if len(named) == 1 else None
        if name is None or not (name in self._hosts or (self._addresses and _is_address(name))):
            return "This server does not answer to the host name of the call (DLI_ALLOWED_HOSTS adds names)"
        if any(origin.lower() != f"{scheme}://{named[0].lower()}" for origin in headers.getlist("origin")):
            return "Calls from pages of another origin are refused"
        if any(site not in {"same-origin", "none"} for site in headers.getlist("sec-fetch-site")):
            return "Calls from pages of another site are refused"
        return None

    async def _user(self, headers: Headers) -> str | None:
        """Whose valid token the call carries."""
        for token in presented(headers):
            if passwords.same(token, self.backend.token):
                return self.backend.settings.user
            user = await run_in_threadpool(self.backend.database.read, partial(tokens.user_of, token=token))
            if user is not None:
                return user
        return await self._by_password(headers.getlist("authorization"))

    async def _by_password(self, given: list[str]) -> str | None:
        """The user whose password the call carries, where there is one besides the token."""
        pair = passwords.basic_credentials(given[0]) if len(given) == 1 else None
        if pair is None or self.backend.password is None:
            return None
        try:
            return self.backend.settings.user if await passwords.are_right(self.backend, *pair) else None
        except passwords.TooManyGuesses:
            return None


def presented(headers: Headers) -> list[str]:
    """The tokens that a call carries, in any of the ways."""
    found = headers.getlist("x-auth-token")
    for value in headers.getlist("authorization"):
        scheme, _, rest = value.partition(" ")
        if scheme.lower() == "bearer":
            found.append(rest.strip())
        elif (pair := passwords.basic_credentials(value)) is not None:
            found.append(pair[1])
    return [token for token in found[:4] if 0 < len(token) <= 4096]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
