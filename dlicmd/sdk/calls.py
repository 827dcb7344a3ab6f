"""The base of all calls: the transport to a server, the token, and the meaning of an answer."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

from dlicmd.contract import states, wire
from dlicmd.sdk import backend, hints
from dlicmd.sdk.backend import EmbeddedTransport
from dlicmd.sdk.errors import (
    Denied,
    DlicmdError,
    NoSuchApplication,
    NoSuchExec,
    NoSuchObject,
    NoSuchSearch,
    QueryRefused,
    ServerError,
    UsageProblem,
)
from dlicmd.sdk.gateways import Gateways
from dlicmd.sdk.retry import OK, Repeating, retries_wanted, timeout_wanted
from dlicmd.sdk.transport import READ_TIMEOUT, Answer, Multipart, PlainTransport, Request, Transport

#: Seconds that a server may take for a submission: the server unpacks the upload before it answers.
SUBMIT_TIMEOUT = 900.0
JSON, TEXT = "application/json", "text/plain"
#: Accept header of calls for objects. Servers send errors as text to a client that accepts text.
ACCEPTED = f"{JSON}, {TEXT};q=0.9"
BAD_REQUEST, NOT_FOUND = 400, 404
#: HTTP codes of answers about an object that the server does not know.
UNKNOWN = (BAD_REQUEST, NOT_FOUND)
#: HTTP codes with which servers refuse a wrong user name or password.
REFUSED = (400, 401, 403)
#: Scheme and host of the local backend.
OWN_PLACE = "http://127.0.0.1"
#: The most characters of a token.
MAX_TOKEN = 2**16
#: HTTP code of the answer after a deletion.
GONE = 204
STOP = "stop"

C = TypeVar("C", bound="Closing")
Self = TypeVar("Self", bound="Calls")
E = TypeVar("E", bound=ServerError)


class Closing(ABC):
    """A context manager that closes itself at the end of a `with`. Subclasses implement `close`."""

    def __enter__(self: C) -> C:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Release all resources."""


class Calls(Closing):
    """Send requests to one server, or to the local backend if `host` is None."""

    def __init__(
        self, host: str | None = None, port: int | None = None, *, token: str | None = None,
        ca_cert: str | None = None, insecure: bool = False, http: bool = False, retries: int | None = None,
        timeout: float | None = None, transport: Transport | None = None,
    ) -> None:
        """Prepare the connection.

        The first call opens the connection, and starts the local backend if it does not run.

        Args:
            host: Name or address of the server, also as `https://HOST` or `HOST:PORT`. None stands for the local
                backend.
            port: Port of the server. None stands for the port in `host`, or for the default port of the scheme.
            token: Bearer token that each call sends. None sends no token. The local backend ignores this token.
            ca_cert: File with the certificates of the authorities that verify the server (PEM). None stands for the
                authorities of the system.
            insecure: Whether to accept every certificate.
            http: Whether to use plain http instead of https.
            retries: Maximum number of repetitions of a call. 0 repeats no call. None stands for the value of
                `DLICMD_RETRIES`, or 3 without that variable.
            timeout: Seconds for which the server may be silent in each call. None stands for the value of
                `DLICMD_TIMEOUT`. Without that variable, the limit depends on the call: usually 60 s, more for
                submissions, previews and results.
            transport: Transport to use. None opens a transport for `host`; otherwise the five arguments about the
                server have no effect.

        Raises:
            UsageProblem: `host` is not the name or address of a host, or names plain http without `http`; or `ca_cert`
                cannot be read; or `DLICMD_RETRIES` or `DLICMD_TIMEOUT` has an invalid value.
        """
        self._token = token
        #: The server, for people.
        self._shown = (f"{host}" if port is None else f"{host}:{port}") if host else "the local backend"
        #: How often a call is repeated after an error that may pass.
        self.retries = retries_wanted() if retries is None else retries
        #: Seconds that a server may stay silent in any call; None for the default of each call.
        self._timeout = timeout_wanted() if timeout is None else timeout
        self._way = transport or open_transport(host, port, ca_cert=ca_cert, insecure=insecure, http=http)
        #: Whether the server is the local backend of this user.
        self.is_own = isinstance(self._way, EmbeddedTransport) or (
            isinstance(self._way, PlainTransport) and backend.is_own(self._way.where))
        self._transport = Repeating(self._way, self.retries)
        #: The way of requests to models; None if all of them go through the server.
        self.gateways: Gateways | None = None
        if transport is None:
            self.gateways = Gateways(
                server_url(host, port, http) if host else OWN_PLACE,
                lambda url: open_transport(url, None, ca_cert=ca_cert, insecure=insecure,
                                           http=url.startswith("http:")))
        self._extensions: frozenset[str] | None = None
        #: Returns another token in place of one that the server denies, or None.
        self.renewal: Callable[[str], str | None] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._shown}>"

    def close(self) -> None:
        """Close all connections.

        The end of a `with` block closes them, too. A later call opens a new connection.
        """
        self._way.close()
        if self.gateways is not None:
            self.gateways.close()

    def impatient(self: Self) -> Self:
        """Return a client that uses the same connection and repeats no call.

        The method is for programs that repeat calls themselves. To close one of the two clients closes the connection
        of both.
        """
        found = type(self)(token=self._token, transport=self._way, retries=0, timeout=self._timeout)
        found.renewal, found.gateways = self.renewal, self.gateways
        return found

    def _listed(self, path: str, query: str | None, headers: dict[str, str] | None = None) -> Answer:
        """Return the answer with a list. The user's query is only escaped for the URL. Raises QueryRefused when the
        server refuses the query."""
        if not query:
            return self._call("GET", path, headers)
        answer = self._send("GET", f"{path}?" + quote(query.lstrip("?"), safe="=&:%,+;/?@!$'()*[]"), headers)
        if answer.status == BAD_REQUEST:
            raise refused(QueryRefused, "the server refused the query", answer)
        return checked(answer, f"GET {path}")

    def conf(self) -> dict[str, Any]:
        """Return the configuration of the server.

        Returns:
            Values by name, as the server sent them. `DLICMD_EXTENSIONS` has the names of the extensions, with commas
                between them; servers without extensions leave the key out.
        """
        return an_object(self._call("GET", wire.CONF))

    def extensions(self) -> frozenset[str]:
        """Return the names of the extensions that the server offers.

        `docs/rest-extensions.md` lists the extensions. Each call of this method asks the server.

        Returns:
            Names such as `follow` and `why`. The set is empty for a server without extensions.
        """
        named = str(self.conf().get(wire.EXTENSIONS, ""))
        self._extensions = frozenset(name.strip() for name in named.split(",") if name.strip())
        return self._extensions

    def _call(
        self, method: str, target: str, headers: dict[str, str] | None = None,
        body: bytes | Multipart | None = None, timeout: float = READ_TIMEOUT, *, streamed: bool = False,
    ) -> Answer:
        answer = self._send(method, target, headers, body, timeout, streamed=streamed)
        return checked(answer, f"{method} {target.partition('?')[0]}")

    def _send(
        self, method: str, target: str, headers: dict[str, str] | None = None,
        body: bytes | Multipart | None = None, timeout: float = READ_TIMEOUT, *, streamed: bool = False,
    ) -> Answer:
        return self._sent(self._request(method, target, headers, body, timeout)._replace(streamed=streamed))

    def _sent(self, request: Request) -> Answer:
        """Return the answer to a request. A call without a body, whose token the server denies, is repeated with the
        token of `renewal`."""
        answer = self._transport.send(request)
        if answer.status != 401 or self.renewal is None or self._token is None or request.body is not None:
            return answer
        token = self.renewal(self._token)
        if token is None or token == self._token:
            return answer
        content(answer)  # a streamed answer holds the connection until it is read
        self._token = token
        return self._transport.send(request._replace(headers={**request.headers, "Authorization": f"Bearer {token}"}))

    def _request(
        self, method: str, target: str, headers: dict[str, str] | None, body: bytes | Multipart | None, timeout: float,
    ) -> Request:
        sent = {"Accept": ACCEPTED, **(headers or {})}
        if self._token is not None:
            sent["Authorization"] = f"Bearer {self._token}"
        return Request(method, target, sent, body, self._timeout or timeout)

    def _exec_call(
        self, method: str, exec_id: str, doing: str, action: str = "", query: str = "", *, accept: str = ACCEPTED,
        headers: dict[str, str] | None = None, body: bytes | None = None, timeout: float = READ_TIMEOUT,
        streamed: bool = False, held: float = 0.0,
    ) -> Answer:
        """Send a call about one exec. Servers answer 400 for an unknown id and for a call that they cannot execute.
        Raises NoSuchExec when the id is unknown. `doing` says what the call does, for messages, with `{}` for the id.
        `held`: seconds for which the server may hold back its answer."""
        if not isinstance(exec_id, str) or not exec_id.strip(". ") or not exec_id.isprintable():
            # "." and ".." would name another path.
            raise NoSuchExec(str(exec_id))
        target = wire.exec_path(exec_id, action) + (f"?{query}" if query else "")
        request = self._request(method, target, {"Accept": accept, **(headers or {})}, body, timeout)
        answer = self._sent(
            request._replace(timeout=request.timeout + held, streamed=streamed, harmless=action == STOP))
        if answer.status in UNKNOWN:
            plain = not action and method == "GET"
            found = answer if plain else self._send("GET", wire.exec_path(exec_id))
            unknown = found.status in UNKNOWN
            if answer.repeated and (method == "DELETE" if unknown else action == STOP and _is_killed(found)):
                # An earlier attempt has succeeded, and its answer was lost.
                answer.status = GONE
                return answer
            if unknown:
                raise NoSuchExec(exec_id, answer.status, content(answer))
        return checked(answer, "to " + doing.format(exec_id))


def _is_killed(found: Answer) -> bool:
    return found.status == OK and an_object(found).get(wire.STATE) == states.KILLED


def checked_id(name: str, unknown: type[NoSuchApplication | NoSuchSearch] = NoSuchApplication) -> str:
    """Return the id or name. Raises `unknown` when it is empty, is not printable, or would name another path ("." and
    "..")."""
    if not isinstance(name, str) or not name.strip(". ") or not name.isprintable():
        raise unknown(str(name))
    return name


def checked(answer: Answer, what: str) -> Answer:
    """Return the answer if it is a success. Raises ServerError with the server's own words about `what` was
    requested."""
    if 200 <= answer.status < 300:
        return answer
    if answer.status == 401 and hints.has_verb():
        raise Denied(f"the logon has expired or was revoked. Log on again: {hints.logon()}", answer.status,
                     answer.code, content(answer))
    if answer.status == 401:
        raise refused(Denied, "Authentication error. The request was denied", answer, f" Log on again: {hints.logon()}")
    if answer.status == 403:
        raise refused(Denied, "you are not allowed to do this, or the logon has expired", answer,
                      f" To log on again: {hints.logon()}")
    if 300 <= answer.status < 400:
        named = hints.either("--rest-host", "Client(HOST)")
        raise ServerError(f"the server redirects to {answer.headers.get('location', 'elsewhere')}; "
                          f"name that host with {named}", answer.status, answer.code, content(answer))
    named = f", request {answer.request_id}" if answer.status >= 500 and answer.request_id else ""
    code = "" if answer.status == BAD_REQUEST else f" (HTTP {answer.status}{named})"
    raise refused(ServerError, f"the server refused {what}{code}", answer)


def known(answer: Answer, what: str) -> Answer:
    """Return the answer about a named object. Raises NoSuchObject when the server does not know it."""
    if answer.status in UNKNOWN:
        raise refused(NoSuchObject, what, answer)
    return checked(answer, f"to show {what}")


def refused(kind: type[E], what: str, answer: Answer, cure: str = "") -> E:
    """Return the error for an answer: what the server refused, its own words about the reason, and the remedy."""
    with suppress(DlicmdError):  # `explanation` reports an unreadable text
        answer.hold()  # the text of a streamed answer is read twice here
    return kind(f"{what}: {explanation(answer)}{cure}", answer.status, answer.code, content(answer))


def content(answer: Answer) -> str:
    """Return the text of an error's body, "" if it cannot be read."""
    try:
        return answer.text()
    except DlicmdError:
        return ""


def explanation(answer: Answer) -> str:
    """Return the text of an error's body in one line. From a JSON body, the message is taken."""
    try:
        text = answer.text().strip()
    except DlicmdError as problem:
        return str(problem)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        errors = found.get("errors")
        first = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}
        error = found.get("error")
        said = [first.get("message"), error.get("message") if isinstance(error, dict) else error,
                *(found.get(key) for key in ("message", "errorMessage", "detail", "msg"))]
        text = next((value for value in said if isinstance(value, str) and value), text)
    line = re.sub(r"^Error [0-9]{3}: ", "", " ".join(text.split()))
    return (line if len(line) <= 1000 else line[:1000] + " ...") or f"HTTP {answer.status} without a reason."


def an_object(answer: Answer) -> dict[str, Any]:
    """Return the JSON object of an answer. Raises ServerError when the answer is not an object."""
    found = answer.json()
    if not isinstance(found, dict):
        raise ServerError("the server's answer is not a JSON object: is this a WMLA server?", answer.status)
    return found


def a_list(answer: Answer) -> list[dict[str, Any]]:
    """Return the JSON objects of an answer. Raises ServerError when the answer is not a list of objects."""
    found = answer.json()
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ServerError("the server's answer is not a list of JSON objects: is this a WMLA server?", answer.status)
    return found


def checked_token(token: str, where: str) -> str:
    """Return `token` if an HTTP header can carry it. Raises Denied otherwise; the message does not show the token."""
    if len(token) > MAX_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise Denied(f"{where} does not contain a usable token; log on again", 401)
    return token


def open_transport(
    host: str | None, port: int | None, *, ca_cert: str | None = None, insecure: bool = False, http: bool = False,
    may_trust: Callable[[str, str], bool] | None = None,
) -> Transport:
    """Return the transport for a server; the scheme is https unless `http` is set. Without a host, return the
    transport for the local backend. With `may_trust`, a certificate that cannot be verified is trusted at the first
    contact (see dlicmd.sdk.first_use)."""
    if host is None:
        return EmbeddedTransport()
    url = server_url(host, port, http)
    if http and _is_loopback(_host_name(host, http)):
        return PlainTransport(url)
    from dlicmd.sdk.tls import RequestsTransport  # needs requests

    if may_trust is not None and not (http or ca_cert or insecure):
        from dlicmd.sdk.first_use import FirstUseTransport  # for scripts of the original client

        return FirstUseTransport(url, may_trust)
    return RequestsTransport(url, ca_cert, insecure)


def server_url(host: str, port: int | None, http: bool) -> str:
    """Return scheme, host and port of a server as a URL. Raises UsageProblem for a wrong host name or address."""
    name = _host_name(host, http)
    where = name if port is None or port < 0 else f"{name}:{port}"
    return f"{'http' if http else 'https'}://{where}"


def _host_name(host: str, http: bool) -> str:
    """Return `host` without its scheme, and an IPv6 address in brackets. Raises UsageProblem when `host` is not a host
    name or address, or names plain http without `http`."""
    scheme, _, rest = host.rpartition("://")
    if scheme.lower() == "http" and not http:
        raise UsageProblem(f"{hints.either('--rest-host', 'host')} {host}: add {hints.http()} to use plain http")
    name = rest.rstrip("/")
    if ":" in name and re.fullmatch(r"[0-9A-Fa-f:.]+", name) and name.count(":") > 1:
        return f"[{name}]"
    if scheme.lower() not in ("", "http", "https") or not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:[0-9]+)?", name):
        named = hints.either("--rest-host", "host")
        raise UsageProblem(f"{named}: '{host}' is not the name or address of a host")
    return name


def _is_loopback(name: str) -> bool:
    return re.fullmatch(r"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]+)?", name) is not None
