"""Sees every request from its first byte to the last of its answer: counts it and times it."""

from __future__ import annotations

import time
from types import TracebackType

from starlette.types import Message, Scope, Send

from local_backend.measures import REQUEST_SECONDS, REQUESTS

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: In the place of the path of a request that led to no route.
_NOWHERE = "(none)"


class Observation:
    """One request, from `with` to its end."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._began = time.monotonic()
        #: 0 until an answer has begun; 499 in the counts when none ever does: the client has gone.
        self._status = 0

    def __enter__(self) -> Observation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = self._status or (500 if isinstance(problem, Exception) else 499)
        REQUESTS.labels(self._method, self._route, status).inc()
        REQUEST_SECONDS.labels(self._route).observe(time.monotonic() - self._began)

    def sending(self, send: Send) -> Send:
        """`send` of the application, watched."""

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._status = message["status"]
            await send(message)

        return watched

    @property
    def _method(self) -> str:
        method: str = self._scope["method"]
        return method if method in _METHODS else "OTHER"

    @property
    def _route(self) -> str:
        """The path as the route has it, without what fills its parameters."""
        return getattr(self._scope.get("route"), "path", _NOWHERE)
