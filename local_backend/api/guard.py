"""Checks every call to every path, including streams and the documentation.

1. Host: the Host header must contain a name of this server. A web page that rebinds its DNS name to the loopback
   address still sends its own name.
2. Origin and Sec-Fetch-Site: calls that a page of another origin makes a browser send are refused.
3. Token: `Authorization: Bearer`, `X-Auth-Token`, `X-User-Token`, or HTTP Basic with the token as password. Clients of
   the first product generation send user and password with HTTP Basic on every call, or the cookie of their logon. The
   cookie counts only in a call without these headers. A browser sends cookies for pages of any origin, so checks 1 and
   2 come first, and SameSite keeps the cookie out of calls from other sites. Logon, the client's file, /healthz and
   /readyz need no token; neither does /metrics if a setting says so. Each route then decides what the user may see and
   do: users have access to their own execs only.
4. Turn: few calls of one user are computed at the same time, and at a limited rate (services/load.py). If the
   user of a token is not known yet, the call takes a turn of its address, which is not the name of a user. Logons have
   turns of their own (services/turns.py).
5. Body: its size and its pace are limited (bodies.py).

A browser that opens a page from a link on another site gets a page that loads the wanted one again (pages.py).
"""

from __future__ import annotations

import ipaddress
import logging
import re
from dataclasses import replace

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from dlicmd.contract import dlim, wire
from local_backend import logs
from local_backend.api.basic import basic_credentials
from local_backend.api.bodies import bounded
from local_backend.api.bulk import answering, sending
from local_backend.api.depends import CALLER, TOKEN
from local_backend.api.errors import database_failed, refusal
from local_backend.api.observe import Observation
from local_backend.api.pages import PAGES, Pages, pages_of
from local_backend.errors import AccessDenied, BackendError, StorageFailed, Unauthorized
from local_backend.services.access import INFERENCE, Caller
from local_backend.services.load import CallTurn
from local_backend.services.services import Services
from local_backend.services.throttle import network_of

_log = logging.getLogger(__name__)

#: Logon of the first product generation, with the same answer.
CONDUCTOR_LOGON = "/platform/rest/conductor/v1/auth/logon"
#: Logons of IBM Cloud Pak for Data, in its present and in its earlier versions.
PLATFORM_LOGONS = ("/icp4d-api/v1/authorize", "/v1/authorize")
#: The client as a file, for users who have none yet.
CLIENT_FILE = "/ui/tools/dlicmd.py"
LOGON_PATHS = frozenset({
    wire.LOGON, wire.OIDC, CONDUCTOR_LOGON, *PLATFORM_LOGONS, dlim.TOKEN, dlim.SERVICE_TOKEN,
})
#: Begins the paths whose GET is also answered to HEAD. Pages are not among them: opening one may use up a link.
_READ_BY_HEAD = (wire.BASE, CLIENT_FILE, wire.HEALTH, wire.READY)
OPEN_PATHS = LOGON_PATHS | {CLIENT_FILE, wire.HEALTH, wire.READY}
#: Name of the cookie that CONDUCTOR_LOGON sets.
SESSION = "dlicmd_session"
#: Calls without a turn: they have other turns, or compute nothing.
_TURNLESS = LOGON_PATHS | {wire.HEALTH}
#: Maximum number of tokens whose users the guard remembers.
_MOST_KNOWN = 10_000
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})

_SLASHES = re.compile("/{2,}")
_TOKEN_HEADERS = ("authorization", "x-auth-token", "x-user-token")
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9]([a-z0-9._-]{0,252}[a-z0-9])?)(?::([0-9]{1,5}))?")


def host_name(header: str) -> str | None:
    """Return the name in a Host header in lower case, None if it is malformed. IPv6 addresses keep their brackets."""
    match = _HOST.fullmatch(header.lower())
    if match is None or (match[3] is not None and int(match[3]) > 65535):
        return None
    return match[1]


class Guard:
    """The application behind the checks. `hosts` are the names of the server. `addresses` admits any literal address,
    for a server that listens on all interfaces: a rebound DNS name is never a literal address."""

    def __init__(
        self, app: ASGIApp, services: Services, hosts: frozenset[str], addresses: bool, pages: Pages | None = None
    ) -> None:
        self.app = app
        self.services = services
        self._pages = pages
        self._hosts = LOOPBACK | hosts
        self._addresses = addresses
        self._open = OPEN_PATHS | ({wire.METRICS} if services.base.settings.open_metrics else set())
        #: Hash of a token → its user, whose turns its next calls take. Each call checks the token again.
        self._users: dict[int, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a call and pass it to the application (ASGI)."""
        if scope["type"] != "http":
            return
        if scope["method"] == "HEAD" and scope["path"].startswith(_READ_BY_HEAD):
            scope = {**scope, "method": "GET"}  # the web server keeps its own scope, and sends no body
        with Observation(scope) as seen:
            scope["path"] = _plain(scope["path"])
            scope[PAGES] = self._pages
            await self._admit(scope, receive, seen.sending(send), seen)

    async def _admit(self, scope: Scope, receive: Receive, send: Send, seen: Observation) -> None:
        headers, turn = Headers(scope=scope), self.services.load.call()
        send = sending(turn, send, self.services.load, lambda: _user_of(scope))
        with answering(turn):
            try:
                self._refuse_host(headers)
                pages = pages_of(scope)
                if pages is not None and _arrives(scope, headers):
                    await pages.arrival(scope)(scope, receive, send)
                    return
                self._refuse_foreign(headers, scope["scheme"])
                found = await self._caller(scope, headers, turn)
                scope[CALLER] = found
                if found is not None:
                    logs.about(user=found.name)
                receive = bounded(scope, receive, seen.begun, found)
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

    async def _caller(self, scope: Scope, headers: Headers, turn: CallTurn) -> Caller | None:
        """Return the user of a call, None for a call without a token, and begin its turn. Raises the errors of
        `_let_in`, and Busy (`load.busy`)."""
        pages = pages_of(scope)
        if scope["path"] not in self._open and not (pages is not None and pages.is_open(scope["path"])):
            return await self._let_in(scope, headers, turn)
        if scope["path"] not in _TURNLESS:
            await turn.begin(_address_group(scope), paced=False)
        return None

    def _refuse_host(self, headers: Headers) -> None:
        """Raise Denied when the call names another host."""
        named = headers.getlist("host")
        name = host_name(named[0]) if len(named) == 1 else None
        if name is None or not (name in self._hosts or (self._addresses and _is_address(name))):
            sentence = "This server does not accept the host name of the call; add it to DLI_ALLOWED_HOSTS"
            raise AccessDenied("http.host", sentence)

    def _refuse_foreign(self, headers: Headers, scheme: str) -> None:
        """Raise Denied when a page of another origin made the call."""
        named = headers.getlist("host")
        if any(origin.lower() != f"{scheme}://{named[0].lower()}" for origin in headers.getlist("origin")):
            raise AccessDenied("http.origin", "Calls from pages of another origin are refused")
        if any(site not in {"same-origin", "none"} for site in headers.getlist("sec-fetch-site")):
            raise AccessDenied("http.origin", "Calls from pages of another site are refused")

    async def _let_in(self, scope: Scope, headers: Headers, turn: CallTurn) -> Caller:
        """Return the user whose valid token or password the call has, and set TOKEN of the scope. Begin a turn.

        Raises Unauthorized (`auth.required`, `auth.wrong_password`), Busy (`auth.too_many_tries`, `load.busy`).
        """
        logons, address = self.services.logons, address_of(scope)
        shown = any(name in headers for name in _TOKEN_HEADERS)
        for token in presented(headers) if shown else session(headers):
            # The comparison with the server's own token is fast. The database may block, so it needs a thread.
            own = Caller(self.services.base.settings.user, True) if logons.is_own(token) else None
            name = own.name if own else self._users.get(hash(token))
            # Requests to models have limits of their own in the profile.
            is_request = scope["path"].startswith(f"{dlim.INFERENCE}/")
            await turn.begin(name or _address_group(scope), paced=name is not None and not is_request)
            found = own or await run_in_threadpool(logons.of_token, token)
            if found is not None:
                self._know(token, found)
                scope[TOKEN] = token
                if found.scope == INFERENCE and not is_request:
                    sentence = f"The token permits only requests to models: POST {dlim.INFERENCE}/MODEL"
                    raise AccessDenied("auth.scope", sentence)
                return replace(found, address=address)
            self._users.pop(hash(token), None)  # calls with a revoked token must not take turns of its former user
        turn.end()
        scope[TOKEN] = None
        given = headers.getlist("authorization")
        pair = basic_credentials(given[0]) if len(given) == 1 else None
        if pair is None:
            raise Unauthorized(
                "auth.required", "A valid token is required: log on first, or send the token of the running backend"
            )
        found = await logons.by_password(*pair, address)
        await turn.begin(found.name)
        return found

    def _know(self, token: str, caller: Caller) -> None:
        if len(self._users) >= _MOST_KNOWN:
            self._users.clear()
        self._users[hash(token)] = caller.name


def _arrives(scope: Scope, headers: Headers) -> bool:
    """Return whether a browser opens a page from a link on another site, or of a file."""
    return (scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document" and "origin" not in headers
            and headers.get("sec-fetch-site") in ("cross-site", "same-site"))


def _user_of(scope: Scope) -> str:
    """Return the user whose turns a call takes; its address for a call without a user."""
    caller: Caller | None = scope.get(CALLER)
    return caller.name if caller else _address_group(scope)


def _address_group(scope: Scope) -> str:
    return f"@{network_of(address_of(scope))}"


def address_of(scope: Scope) -> str:
    """Return the address that a call comes from, "" if it is unknown."""
    client = scope.get("client")
    return client[0] if client else ""


def presented(headers: Headers) -> list[str]:
    """Return the tokens in the headers of a call, in any of the accepted forms. Only the first 4 count."""
    found = headers.getlist("x-auth-token") + headers.getlist("x-user-token")
    for value in headers.getlist("authorization"):
        scheme, _, rest = value.partition(" ")
        if scheme.lower() == "bearer":
            found.append(rest.strip())
        elif (pair := basic_credentials(value)) is not None:
            found.append(pair[1])
    return _usable(found[:4])


def session(headers: Headers) -> list[str]:
    """Return the token of the session cookie, in a list. Return an empty list for several session cookies: another
    service on this host may have set one."""
    pairs = [pair.partition("=") for line in headers.getlist("cookie") for pair in line.split(";")]
    found = [value.strip() for name, _, value in pairs if name.strip() == SESSION]
    return _usable(found) if len(found) == 1 else []


def _usable(found: list[str]) -> list[str]:
    return [token for token in found if 0 < len(token) <= 4096]


def _plain(path: str) -> str:
    """Return the path with single slashes and none at its end: clients join addresses and paths in different ways."""
    return _SLASHES.sub("/", path).rstrip("/") or "/"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
