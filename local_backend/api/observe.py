"""Observes every request until the last byte of its answer: assigns an id, counts it, times it and logs it.

The id is the caller's X-Request-ID if that is well-formed, else a random one. The answer and every log line about the
request contain the id. Queries are never logged, because the query of a submission contains the whole command line.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from types import TracebackType

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Scope, Send

from dlicmd.contract import wire
from local_backend import logs
from local_backend.api.errors import CODE, REFUSED
from local_backend.measures import REQUEST_SECONDS, REQUESTS
from local_backend.protection import PROTECTION
from local_backend.store.execs import is_exec_id
from local_backend.tracing import Span

_log = logging.getLogger(__name__)
_SANE = re.compile(r"[A-Za-z0-9._:-]{1,64}")
#: Maximum length of a path in the log, in characters.
_LONGEST = 300
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: Route of a request that matched no route.
_NOWHERE = "(none)"


class Observation:
    """One request, as a context manager."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._began = time.monotonic()
        self._path = str(scope["path"])
        headers = Headers(scope=scope)
        given = headers.get(wire.REQUEST_ID, "")
        self._id = given if _SANE.fullmatch(given) else secrets.token_hex(8)
        self._span = Span(self._method, headers)
        #: 0 until an answer begins. A request without an answer counts as 500 after an exception, else as 499: the
        #: client disconnected.
        self._status = 0

    def __enter__(self) -> Observation:
        # These fields stay after the request: the web server logs a failed call later.
        named = next(filter(is_exec_id, self._path.split("/")), None)
        logs.begin(request=self._id, **({"exec": named} if named else {}))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = self._status or (500 if isinstance(problem, Exception) else 499)
        REQUESTS.labels(self._method, self._route, status).inc()
        seconds = time.monotonic() - self._began
        REQUEST_SECONDS.labels(self._route).observe(seconds)
        self._span.end(method=self._method, route=self._route, status=status, request_id=self._id)
        path = self._path[:_LONGEST]
        numbers = {"method": self._method, "path": path, "status": status, "seconds": round(seconds, 4)}
        if CODE in self._scope:
            logs.about(code=self._scope[CODE])
        _log.log(self._level(status), "%(method)s %(path)s %(status)d in %(seconds).4f s", numbers,
                 extra={"numbers": numbers})

    def begun(self) -> bool:
        """Return whether the answer has begun."""
        return self._status != 0

    def sending(self, send: Send) -> Send:
        """Return a `send` that notes the status of the answer and adds X-Request-ID and the headers of every answer."""

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._status = message["status"]
                message.setdefault("headers", [])
                MutableHeaders(scope=message)[wire.REQUEST_ID] = self._id
                present = {name for name, _ in message["headers"]}
                message["headers"] += [pair for pair in PROTECTION if pair[0] not in present]
            await send(message)

        return watched

    def _level(self, status: int) -> int:
        """Return the log level: ERROR for failures of the server, INFO for changes and refusals, DEBUG for reads,
        which are many."""
        if status >= 500 and status not in (501, 503) and not self._scope.get(REFUSED):
            return logging.ERROR
        worth = self._scope["method"] not in _READING or status in (401, 403, 429)
        return logging.INFO if worth else logging.DEBUG

    @property
    def _method(self) -> str:
        method: str = self._scope["method"]
        return method if method in _METHODS else "OTHER"

    @property
    def _route(self) -> str:
        """The path as the route declares it, without the values of its parameters."""
        return getattr(self._scope.get("route"), "path", _NOWHERE)
