"""The Unix socket of the server: states come in, loads and questions about tokens go out.

The death of the server changes nothing: the last state stays.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from dlicmd import __version__
from local_backend.inference.control import GatewayLoad, GatewayState, state_of, to_line
from local_backend.inference.gateway.access import AccessControl
from local_backend.inference.gateway.kernel_socket import KernelSocket
from local_backend.inference.gateway.peers import PeerProcess
from local_backend.inference.gateway.served_models import ServedModels

log = logging.getLogger(__name__)
#: Seconds between two loads: of small changes, and when requests begin to wait.
_PAUSE, _URGENT_PAUSE = 0.25, 0.05
#: Most bytes of one message.
_LINE_LIMIT = 256 << 20


class ControlSocket:
    """The servers that are connected: usually one."""

    def __init__(self, models: ServedModels, kernels: KernelSocket, about: dict[str, Any],
                 take_over: Callable[[ControlConnection, dict[str, Any]], None]) -> None:
        """`about`: members of the line `ready`. `take_over`: handles operations of a gateway that replaces this
        one."""
        self.models = models
        self.kernels = kernels
        self.access: AccessControl | None = None
        #: Returns the histograms of latencies by model.
        self.latencies: Callable[[], Mapping[str, Sequence[int]]] = dict
        self.about = about
        self.take_over = take_over
        self.connections: set[ControlConnection] = set()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._sent = 0.0
        self._is_urgent = False

    def connection(self) -> ControlConnection:
        """Return a protocol for a new connection."""
        return ControlConnection(self)

    def ready_line(self) -> bytes:
        """Return the first line of each connection."""
        return json.dumps({"op": "ready", "version": __version__, **self.about}).encode() + b"\n"

    def ask(self, digest: str) -> bool:
        """Ask the servers about a token. Return False if none is there."""
        servers = [one for one in self.connections if one.is_server]
        for one in servers:
            one.send({"op": "token", "digest": digest})
        return bool(servers)

    def changed(self, waits: bool) -> None:
        """Send the load: soon, or at once if requests begin to wait."""
        if not self.connections or self._is_urgent or (self._timer is not None and not waits):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._is_urgent = waits
        due = self._sent + (_URGENT_PAUSE if waits else _PAUSE)
        self._timer = self._loop.call_later(max(0.0, due - self._loop.time()), self._send)

    def _send(self) -> None:
        self._timer = None
        self._is_urgent = False
        self._sent = self._loop.time()
        line = self.load_line()
        for one in self.connections:
            one.send_load(line)

    def load_line(self) -> bytes:
        """Return the load as a line."""
        load: GatewayLoad = self.models.load(time.time(), self._loop.time())
        known = self.latencies()
        return to_line(replace(load, latencies={name: known[name] for name in load.loads if name in known}))

    def take(self, connection: ControlConnection, message: dict[str, Any]) -> None:
        """Follow a message. An operation that this version does not know is passed over."""
        operation = message.get("op")
        if operation == "state":
            self.follow(state_of(message))
        elif operation == "no_token":
            if self.access is not None and isinstance(message.get("digest"), str):
                self.access.no_token(message["digest"])
        else:
            self.take_over(connection, message)

    def follow(self, state: GatewayState) -> None:
        """Follow a state."""
        if self.access is not None:
            self.access.apply(state)
        self.models.apply(state, self._loop.time())
        self.kernels.examine()

    def close(self) -> None:
        """Close all connections."""
        if self._timer is not None:
            self._timer.cancel()
        for one in list(self.connections):
            one.transport.close()


class ControlConnection(asyncio.Protocol):
    """One server, or a gateway that replaces this one."""

    transport: asyncio.Transport

    def __init__(self, owner: ControlSocket) -> None:
        self._owner = owner
        self._buffer = bytearray()
        #: False once the peer has said that it is a gateway.
        self.is_server = True
        #: Takes the bytes that follow, instead of lines.
        self.raw: Callable[[bytes], None] | None = None
        self.lost: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peer = PeerProcess(transport.get_extra_info("socket"))
        peer.close()
        if not peer.is_same_user:
            self.transport.abort()
            return
        self._owner.connections.add(self)
        self.transport.write(self._owner.ready_line())
        self.transport.write(self._owner.load_line())

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.connections.discard(self)
        if self.lost is not None:
            self.lost()

    def data_received(self, data: bytes) -> None:
        if self.raw is not None:
            self.raw(data)
            return
        self._buffer += data
        while (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[:end + 1]
            self._take(line)
            if self.raw is not None:
                rest, self._buffer = bytes(self._buffer), bytearray()
                self.raw(rest)
                return
        if len(self._buffer) > _LINE_LIMIT:
            self.transport.abort()

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            if isinstance(message, dict):
                self._owner.take(self, message)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            # A server of another version, or damage. The last state stays.
            log.error("The gateway ignores a message of the server: %s: %s", type(error).__name__, error)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message."""
        self.transport.write(json.dumps(message).encode() + b"\n")

    def send_load(self, line: bytes) -> None:
        """Send a load, unless the peer is behind with reading."""
        if self.is_server and self.transport.get_write_buffer_size() < len(line):
            self.transport.write(line)
