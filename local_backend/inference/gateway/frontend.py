"""All HTTP connections of the gateway: limits, deadlines, the access log, and their end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import datetime, timezone
from email.utils import formatdate
from pathlib import Path
from typing import Protocol

from local_backend.inference.gateway import refusal as refusals
from local_backend.inference.gateway.counters import GatewayCounters
from local_backend.inference.gateway.endpoints import Endpoints
from local_backend.inference.gateway.exchange import HttpExchange, OriginLimits
from local_backend.inference.gateway.http1 import Http1Connection
from local_backend.inference.gateway.http2 import Http2Connection
from local_backend.inference.gateway.refusal import Refused
from local_backend.inference.gateway.router import RequestRouter
from local_backend.tracing import Span, is_on

log = logging.getLogger(__name__)
#: Seconds between two looks at the deadlines of connections.
_LOOK = 1.0
#: Bytes of the access log that are written together, at the latest after a look.
_LOG_BYTES = 1 << 16
#: Size of an answer after which the unread bytes of all clients are counted, without waiting for the next look.
_LARGE = 1 << 20


class ClientConnection(Protocol):
    """One connection of a client, of any version of HTTP."""

    deadline: float

    @property
    def unread(self) -> int:
        """Bytes of answers that the client has not taken yet."""

    def cut_off(self) -> None:
        """End at once, whatever is unread."""

    def late(self) -> None:
        """End, because the deadline has passed."""

    def end(self) -> None:
        """Close if idle; otherwise close after the open answers."""


class HttpFrontend:
    """Implements `HttpApplication` for all connections."""

    def __init__(self, endpoints: Endpoints, counters: GatewayCounters, limits: OriginLimits,
                 access_log: str | None) -> None:
        """Raises OSError if the access log cannot be opened."""
        self.endpoints = endpoints
        self._router = RequestRouter(endpoints)
        self.limits = limits
        self.counters = counters
        self.is_ending = False
        self.date = b""
        self.held = 0
        self.connections: dict[ClientConnection, None] = {}
        endpoints.held = lambda: self.held
        self._log = Path(access_log).open("a", encoding="utf-8") if access_log else None  # noqa: SIM115
        self._lines: list[str] = []
        self._size = 0
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_traced = is_on()
        self._look()

    def connection(self) -> Http1Connection:
        """Return a protocol for a new connection from a client."""
        return Http1Connection(self, self._http2)

    def local_connection(self) -> Http1Connection:
        """Return a protocol for a new connection from the server."""
        return Http1Connection(self, self._http2, True)

    def _http2(self, is_local: bool) -> asyncio.Protocol:
        return Http2Connection(self, is_local)

    def _look(self) -> None:
        """Close connections whose deadline has passed. Renew the date."""
        self.date = f"date: {formatdate(usegmt=True)}\r\n".encode()
        now = self._loop.time()
        for one in [one for one in self.connections if one.deadline < now]:
            one.late()
        self._bound_unread()
        self._write_log()
        self._timer = self._loop.call_later(_LOOK, self._look)

    # HttpApplication ----------------------------------------------------------------------------------------------

    def opened(self, connection: ClientConnection) -> bool:
        self.counters.accepted += 1
        self.connections[connection] = None
        self.counters.connections = len(self.connections)
        return len(self.connections) <= self.limits.connections

    def closed(self, connection: ClientConnection) -> None:
        self.connections.pop(connection, None)
        self.counters.connections = len(self.connections)

    def admit(self, exchange: HttpExchange) -> None:
        self._router.admit(exchange)

    @property
    def state(self) -> object:
        return self.endpoints.models.state

    def admits(self, exchange: HttpExchange, state: object) -> bool:
        user = exchange.user
        return self.endpoints.models.state is state and user is not None and user.expires > time.time()

    def ask(self, exchange: HttpExchange, done: Callable[[Refused | None], None]) -> None:
        task = self._loop.create_task(self._ask(exchange, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, exchange: HttpExchange, done: Callable[[Refused | None], None]) -> None:
        try:
            await self.endpoints.resolve(exchange)
        except Refused as why:
            done(why)
        else:
            done(None)

    def handle(self, exchange: HttpExchange) -> None:
        handler = exchange.handler
        try:
            if handler is not None:
                handler(exchange)
        except Exception:
            # A defect of the gateway must not leave a client without an answer.
            log.exception("The gateway failed at %s %s", exchange.method, exchange.path[:200])
            if exchange.streaming:
                exchange.abort()
            else:
                self.refuse(exchange, refusals.internal())

    def hold(self, size: int) -> None:
        self.held += size
        if self.held > self.limits.memory:
            self.held -= size
            raise refusals.no_memory()

    def release(self, size: int) -> None:
        self.held -= size

    def answered(self, size: int) -> None:
        if size >= min(_LARGE, self.limits.memory // 16):
            self._bound_unread()

    def _bound_unread(self) -> None:
        """Cut off the clients with the most unread bytes while all together exceed the memory of answers."""
        unread = {one: size for one in self.connections if (size := one.unread)}
        total = sum(unread.values())
        for one in sorted(unread, key=lambda each: unread[each], reverse=True):
            if total <= self.limits.memory:
                return
            total -= unread[one]
            log.warning("The gateway cuts off a client that has not read %d bytes, because the answers of all clients "
                        "exceed %d bytes", unread[one], self.limits.memory)
            one.cut_off()

    def refuse(self, exchange: HttpExchange, why: Refused) -> None:
        self._router.refuse(exchange, why)

    def ended(self, exchange: HttpExchange) -> None:
        seconds = self._loop.time() - exchange.began
        served = exchange.served
        self.counters.request(served.model.name if served is not None else "", exchange.status, seconds)
        if self._log is not None:
            self._note(exchange, seconds)
        if self._is_traced:
            name = served.model.name if served is not None else ""
            Span(exchange.method, exchange.headers, seconds).end(
                method=exchange.method, route=exchange.path if name else "", status=exchange.status, model=name)

    # Access log ---------------------------------------------------------------------------------------------------

    def _note(self, exchange: HttpExchange, seconds: float) -> None:
        when = datetime.fromtimestamp(time.time(), timezone.utc).isoformat(timespec="milliseconds")
        user = exchange.user.name if exchange.user is not None else "-"
        line = (f'{when} {user} "{exchange.method} {exchange.path[:500]}" {exchange.status} {len(exchange.body)} '
                f"{exchange.sent} {seconds * 1000:.3f}")
        self._lines.append(line.encode("ascii", "backslashreplace").decode() + "\n")
        self._size += len(line)
        if self._size > _LOG_BYTES:
            self._write_log()

    def _write_log(self) -> None:
        if self._log is None or not self._lines:
            return
        lines, self._lines, self._size = self._lines, [], 0
        try:
            self._log.write("".join(lines))
            self._log.flush()
        except OSError as error:
            log.error("The gateway cannot write its access log: %s", error)

    # End ----------------------------------------------------------------------------------------------------------

    def retire(self) -> None:
        """Ask clients of HTTP/2 to use another connection. Each connection of HTTP/1.1 ends with its next answer."""
        for one in list(self.connections):
            if isinstance(one, Http2Connection):
                one.retire()

    def end_streams(self) -> None:
        """Take no further streams on connections of HTTP/2."""
        for one in list(self.connections):
            if isinstance(one, Http2Connection):
                one.end()

    def end_idle(self) -> None:
        """Close idle connections now."""
        for one in list(self.connections):
            one.end()

    def close(self) -> None:
        """Write the rest of the access log."""
        self._timer.cancel()
        self._write_log()
        if self._log is not None:
            self._log.close()
