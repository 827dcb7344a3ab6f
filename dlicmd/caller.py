"""The base of all calls: the transport to the server, its token, and the check for unknown ids."""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import quote

from dlicmd.address import open_transport
from dlicmd.closing import Closing
from dlicmd.contract import states, wire
from dlicmd.errors import NoSuchApplication, NoSuchExec, NoSuchSearch, QueryRefused
from dlicmd.rest.answers import BAD_REQUEST, an_object, checked, explanation
from dlicmd.rest.body import Multipart
from dlicmd.rest.retry import OK, Repeating, retries_wanted, timeout_wanted
from dlicmd.rest.transport import READ_TIMEOUT, Answer, Request, Transport

JSON, TEXT = "application/json", "text/plain"
NOT_FOUND = 404
#: HTTP codes of answers about an object that the server does not know.
UNKNOWN = (BAD_REQUEST, NOT_FOUND)
#: HTTP code of the answer after a deletion.
GONE = 204
STOP = "stop"
#: Action or method of a call about an exec → what the call does, for messages.
_DOING = {
    "GET": "show {}", STOP: "stop {}", "DELETE": "delete {}", "log": "return the log of {}",
    "result": "return the result of {}", "deploy": "deploy {}", "follow": "follow {}", "why": "explain the state of {}",
    "metrics": "return the metrics of {}", "code": "return the code of {}", "verify": "verify {}",
}

Self = TypeVar("Self", bound="Caller")


class Caller(Closing):
    """Sends requests to one server, or to the local backend when `host` is None."""

    def __init__(
        self, host: str | None = None, port: int | None = None, *, token: str | None = None,
        ca_cert: str | None = None, insecure: bool = False, http: bool = False, retries: int | None = None,
        timeout: float | None = None, transport: Transport | None = None,
    ) -> None:
        self._token = token
        #: How often a call is repeated after an error that may pass.
        self.retries = retries_wanted() if retries is None else retries
        #: Seconds that a server may stay silent in any call; None for the default of each call.
        self._timeout = timeout_wanted() if timeout is None else timeout
        self._way = transport or open_transport(host, port, ca_cert=ca_cert, insecure=insecure, http=http)
        self._transport = Repeating(self._way, self.retries)
        self._extensions: frozenset[str] | None = None

    def close(self) -> None:
        """Close the connection."""
        self._way.close()

    def impatient(self: Self) -> Self:
        """Return a client over the same connection that repeats no call, for callers with their own way to repeat
        calls."""
        return type(self)(token=self._token, transport=self._way, retries=0, timeout=self._timeout)

    def _search_call(self, method: str, name: str, doing: str, action: str = "") -> Answer:
        """Send a call about one search. Servers answer 400 or 404 for an unknown name, and 400 for other reasons, too.
        Raises NoSuchSearch when the name is unknown."""
        path = wire.search_path(checked_id(name, NoSuchSearch))
        target = wire.search_path(name, action)
        answer = self._send(method, target, {"Content-Length": "0"} if method == "PUT" else None)
        if answer.status in UNKNOWN:
            answer.hold()
            if method == "GET" or self._send("GET", path).status in UNKNOWN:
                raise NoSuchSearch(name, answer.status)
        return checked(answer, "to " + doing.format(name))

    def _listed(self, path: str, query: str | None) -> Answer:
        """Return the answer with a list. The user's query is only escaped for the URL. Raises QueryRefused when the
        server refuses the query."""
        if not query:
            return self._call("GET", path)
        answer = self._send("GET", f"{path}?" + quote(query.lstrip("?"), safe="=&:%,+;/?@!$'()*[]"))
        if answer.status == BAD_REQUEST:
            raise QueryRefused(f"the server refused the query: {explanation(answer)}", answer.status, answer.code)
        return checked(answer, f"GET {path}")

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
        return self._transport.send(self._request(method, target, headers, body, timeout)._replace(streamed=streamed))

    def _request(
        self, method: str, target: str, headers: dict[str, str] | None, body: bytes | Multipart | None, timeout: float,
    ) -> Request:
        sent = {"Accept": JSON, **(headers or {})}
        if self._token is not None:
            sent["Authorization"] = f"Bearer {self._token}"
        return Request(method, target, sent, body, self._timeout or timeout)

    def _exec_call(
        self, method: str, exec_id: str, action: str = "", query: str = "", *, accept: str = JSON,
        headers: dict[str, str] | None = None, body: bytes | None = None, timeout: float = READ_TIMEOUT,
        streamed: bool = False, held: float = 0.0,
    ) -> Answer:
        """Send a call about one exec. Servers answer 400 for an unknown id and for a call that they cannot execute.
        Raises NoSuchExec when the id is unknown. `held`: seconds for which the server may hold back its answer."""
        if not isinstance(exec_id, str) or not exec_id.strip(". ") or not exec_id.isprintable():
            # "." and ".." would name another path.
            raise NoSuchExec(str(exec_id))
        target = wire.exec_path(exec_id, action) + (f"?{query}" if query else "")
        request = self._request(method, target, {"Accept": accept, **(headers or {})}, body, timeout)
        answer = self._transport.send(
            request._replace(timeout=request.timeout + held, streamed=streamed, harmless=action == STOP))
        if answer.status in UNKNOWN:
            answer.hold()
            plain = not action and method == "GET"
            found = answer if plain else self._send("GET", wire.exec_path(exec_id))
            unknown = found.status in UNKNOWN
            if answer.repeated and (method == "DELETE" if unknown else action == STOP and _is_killed(found)):
                # An earlier attempt has succeeded, and its answer was lost.
                answer.status = GONE
                return answer
            if unknown:
                raise NoSuchExec(exec_id, answer.status)
        return checked(answer, "to " + _DOING[action or method].format(exec_id))


def _is_killed(found: Answer) -> bool:
    return found.status == OK and an_object(found).get(wire.STATE) == states.KILLED


def checked_id(name: str, unknown: type[NoSuchApplication | NoSuchSearch] = NoSuchApplication) -> str:
    """Return the id or name. Raises `unknown` when it is empty, is not printable, or would name another path ("." and
    "..")."""
    if not isinstance(name, str) or not name.strip(". ") or not name.isprintable():
        raise unknown(str(name))
    return name
