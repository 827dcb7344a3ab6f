"""One gate before every method of every path, streams and documentation included.

 1. Host: the name by which the server was asked for must be one of its own. A web page that rebinds its DNS name to
    the loopback address still sends its own name.
 2. Origin and Sec-Fetch-Site: no call that a page of another origin makes a browser send.
 3. Token: `Authorization: Bearer`, `X-Auth-Token`, or HTTP Basic with the token as password; or user and password, with
   HTTP Basic on every call, as clients of the first product generation send them; or, in a call with neither
   header, the cookie that their logon gives them. A browser sends its cookies whoever made the page: 1 and 2 come
   first, and SameSite keeps this one at home. Only logon, the client's file and the two looks at the server's health
   go without, and /metrics where a setting says so. What the call may see and do is then up to each route: users
   have their own execs only.
 4. Body: only so large (bodies.py).
"""

from __future__ import annotations

import ipaddress
import logging
import re

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from dlicmd.contract import wire
from local_backend import logs
from local_backend.api.basic import basic_credentials
from local_backend.api.bodies import bounded
from local_backend.api.depends import CALLER, TOKEN
from local_backend.api.errors import database_failed, refusal
from local_backend.api.observe import Observation
from local_backend.errors import BackendError, Denied, StorageFailed, Unauthorized
from local_backend.services.access import Caller
from local_backend.services.services import Services

_log = logging.getLogger(__name__)

#: Logon of the first product generation; same answer.
CONDUCTOR_LOGON = "/platform/rest/conductor/v1/auth/logon"
#: The client, for whoever has none yet.
CLIENT_FILE = "/ui/tools/dlicmd.py"
LOGON_PATHS = frozenset({wire.LOGON, CONDUCTOR_LOGON})
OPEN_PATHS = LOGON_PATHS | {CLIENT_FILE, wire.HEALTH, wire.READY}
#: The cookie of CONDUCTOR_LOGON.
SESSION = "dlicmd_session"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})

_SLASHES = re.compile("/{2,}")
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

    def __init__(self, app: ASGIApp, services: Services, hosts: frozenset[str], addresses: bool) -> None:
        self.app = app
        self.services = services
        self._hosts = LOOPBACK | hosts
        self._addresses = addresses
        self._open = OPEN_PATHS | ({wire.METRICS} if services.base.settings.open_metrics else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return
        with Observation(scope) as seen:
            scope["path"] = _plain(scope["path"])
            await self._admit(scope, receive, seen.sending(send))

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            self._refuse_foreign(headers, scope["scheme"])
            found = None if scope["path"] in self._open else await self._let_in(scope, headers)
            scope[CALLER] = found
            if found is not None:
                logs.about(user=found.name)
            receive = bounded(scope, receive)
        except BackendError as problem:
            await refusal(scope, problem)(scope, receive, send)
        except SQLAlchemyError as problem:
            await database_failed(scope, problem)(scope, receive, send)
        except OSError as problem:
            _log.error("cannot check tokens: %s", problem)
            sentence = f"The server cannot check tokens ({problem.strerror}: {problem.filename})"
            await refusal(scope, StorageFailed("auth.no_keys", sentence))(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _refuse_foreign(self, headers: Headers, scheme: str) -> None:
        """Raise Denied when the call names another host, or a page of another origin made it."""
        named = headers.getlist("host")
        name = host_name(named[0]) if len(named) == 1 else None
        if name is None or not (name in self._hosts or (self._addresses and _is_address(name))):
            sentence = "This server does not answer to the host name of the call (DLI_ALLOWED_HOSTS adds names)"
            raise Denied("http.host", sentence)
        if any(origin.lower() != f"{scheme}://{named[0].lower()}" for origin in headers.getlist("origin")):
            raise Denied("http.origin", "Calls from pages of another origin are refused")
        if any(site not in {"same-origin", "none"} for site in headers.getlist("sec-fetch-site")):
            raise Denied("http.origin", "Calls from pages of another site are refused")

    async def _let_in(self, scope: Scope, headers: Headers) -> Caller:
        """Return the user whose valid token or password the call has, and set TOKEN of the scope.

        Raises Unauthorized (`auth.required`, `auth.wrong_password`), Busy (`auth.too_many_tries`).
        """
        logons, address = self.services.logons, address_of(scope)
        shown = "authorization" in headers or "x-auth-token" in headers
        for token in presented(headers) if shown else session(headers):
            # A comparison needs no thread; the database may.
            own = Caller(self.services.base.settings.user, True) if logons.is_own(token) else None
            found = own or await run_in_threadpool(logons.of_token, token)
            if found is not None:
                scope[TOKEN] = token
                return Caller(found.name, found.admin, address)
        scope[TOKEN] = None
        given = headers.getlist("authorization")
        pair = basic_credentials(given[0]) if len(given) == 1 else None
        if pair is None:
            raise Unauthorized(
                "auth.required", "A valid token is required: log on first, or send the token of the running backend"
            )
        return await logons.by_password(*pair, address)


def address_of(scope: Scope) -> str:
    """The address that a call comes from, "" when it is not known."""
    client = scope.get("client")
    return client[0] if client else ""


def presented(headers: Headers) -> list[str]:
    """The tokens that a call carries in its headers, in any of the ways."""
    found = headers.getlist("x-auth-token")
    for value in headers.getlist("authorization"):
        scheme, _, rest = value.partition(" ")
        if scheme.lower() == "bearer":
            found.append(rest.strip())
        elif (pair := basic_credentials(value)) is not None:
            found.append(pair[1])
    return _usable(found[:4])


def session(headers: Headers) -> list[str]:
    """The token in the cookie of a session, in a list; of several cookies none, for whoever else serves on this host
    may have added one."""
    pairs = [pair.partition("=") for line in headers.getlist("cookie") for pair in line.split(";")]
    found = [value.strip() for name, _, value in pairs if name.strip() == SESSION]
    return _usable(found) if len(found) == 1 else []


def _usable(found: list[str]) -> list[str]:
    return [token for token in found if 0 < len(token) <= 4096]


def _plain(path: str) -> str:
    """The path with single slashes and none at its end: clients join addresses and paths in every way."""
    return _SLASHES.sub("/", path).rstrip("/") or "/"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
