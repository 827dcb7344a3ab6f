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

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from dlicmd.contract import wire
from local_backend import logs
from local_backend.api import passwords
from local_backend.api.audited import Audit
from local_backend.api.backend import Backend
from local_backend.api.bodies import bounded
from local_backend.api.caller import CALLER, TOKEN, Caller, caller
from local_backend.api.errors import ApiError, database_failed, error_response
from local_backend.api.observe import Observation
from local_backend.store import tokens

_log = logging.getLogger(__name__)

#: Logon of the first product generation; same answer.
CONDUCTOR_LOGON = "/platform/rest/conductor/v1/auth/logon"
#: The client, for whoever has none yet.
CLIENT_FILE = "/ui/tools/dlicmd.py"
LOGON_PATHS = frozenset({wire.LOGON, CONDUCTOR_LOGON})
#: Where user and password are exchanged for a token.
_MAKES_TOKENS = LOGON_PATHS | {wire.VALIDATE}
OPEN_PATHS = LOGON_PATHS | {CLIENT_FILE, wire.HEALTH, wire.READY}
#: The cookie of CONDUCTOR_LOGON.
SESSION = "dlicmd_session"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
CHALLENGE = {"WWW-Authenticate": 'Basic realm="dlicmd", charset="UTF-8"'}

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

    def __init__(self, app: ASGIApp, backend: Backend, hosts: frozenset[str], addresses: bool) -> None:
        self.app = app
        self.backend = backend
        self._hosts = LOOPBACK | hosts
        self._addresses = addresses
        self._open = OPEN_PATHS | ({wire.METRICS} if backend.settings.open_metrics else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return
        with Observation(scope) as seen:
            scope["path"] = _plain(scope["path"])
            audit = Audit(self.backend.audit, scope, _MAKES_TOKENS, seen.sending(send))
            try:
                await self._admit(scope, receive, audit.send)
            finally:
                audit.finish()

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            self._refuse_foreign(headers, scope["scheme"])
            found = None if scope["path"] in self._open else await self._let_in(scope, headers)
            scope[CALLER] = found
            if found is not None:
                logs.about(user=found.name)
            receive = bounded(scope, receive)
        except ApiError as problem:
            await error_response(problem.status_code, problem.detail, problem.headers)(scope, receive, send)
        except SQLAlchemyError as problem:
            await database_failed(problem)(scope, receive, send)
        except OSError as problem:
            _log.error("cannot check tokens: %s", problem)
            sentence = f"The server cannot check tokens ({problem.strerror}: {problem.filename})"
            await error_response(507, sentence)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _refuse_foreign(self, headers: Headers, scheme: str) -> None:
        """Raise ApiError when the call does not come from where it should."""
        named = headers.getlist("host")
        name = host_name(named[0]) if len(named) == 1 else None
        if name is None or not (name in self._hosts or (self._addresses and _is_address(name))):
            sentence = "This server does not answer to the host name of the call (DLI_ALLOWED_HOSTS adds names)"
            raise ApiError(403, sentence)
        if any(origin.lower() != f"{scheme}://{named[0].lower()}" for origin in headers.getlist("origin")):
            raise ApiError(403, "Calls from pages of another origin are refused")
        if any(site not in {"same-origin", "none"} for site in headers.getlist("sec-fetch-site")):
            raise ApiError(403, "Calls from pages of another site are refused")

    async def _let_in(self, scope: Scope, headers: Headers) -> Caller:
        """Whose valid token, or password, the call carries; of a token, TOKEN of the scope says which. Raises ApiError
        when it carries none."""
        shown = "authorization" in headers or "x-auth-token" in headers
        for token in presented(headers) if shown else session(headers):
            scope[TOKEN] = token
            if passwords.same(token, self.backend.token):
                return Caller(self.backend.settings.user, True)
            found = await run_in_threadpool(self._of_token, token)
            if found is not None:
                return found
        scope[TOKEN] = None
        given = headers.getlist("authorization")
        pair = passwords.basic_credentials(given[0]) if len(given) == 1 else None
        found = await self.backend.passwords.owner(*pair, address_of(scope)) if pair is not None else None
        if found is None:
            lacks = "A valid token is required: log on first, or send the token of the running backend"
            raise ApiError(401, lacks if pair is None else "User or password is wrong", CHALLENGE)
        return found

    def _of_token(self, token: str) -> Caller | None:
        """Whose token this is: one of logon, signed by this server and not revoked."""
        backend = self.backend
        if token.count(".") != 2 or backend.keys.claims(token) is None:
            return None

        def look(connection: Connection) -> Caller | None:
            name = tokens.user_of(connection, token)
            return None if name is None else caller(connection, name, backend.settings)

        return backend.database.read(look)


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
        elif (pair := passwords.basic_credentials(value)) is not None:
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
