"""The gateway process: its sockets, its timer, and its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
from contextlib import suppress
from typing import Any

from local_backend.inference.control import GatewayState
from local_backend.inference.gateway import handover
from local_backend.inference.gateway import refusal as refusals
from local_backend.inference.gateway.access import AccessControl
from local_backend.inference.gateway.certificate import ServedCertificate
from local_backend.inference.gateway.config import PUBLIC, GatewayConfig, GatewayFailed, listen_tcp, listen_unix
from local_backend.inference.gateway.control_socket import ControlConnection, ControlSocket
from local_backend.inference.gateway.counters import GatewayCounters
from local_backend.inference.gateway.endpoints import Endpoints
from local_backend.inference.gateway.frontend import HttpFrontend
from local_backend.inference.gateway.kernel_socket import KernelSocket
from local_backend.inference.gateway.served_models import ServedModels

log = logging.getLogger(__name__)
#: Seconds that a client has for its TLS handshake.
_HANDSHAKE = 10.0
#: Seconds between two looks whether the end has come, and before another try to send.
_LOOK, _RETRY = 0.05, 0.01
#: Seconds after a replacement until streams of HTTP/2 are refused, and until idle kernels are disconnected.
_GRACE, _KERNEL_GRACE = 2.0, 5.0
#: Seconds between two looks whether the certificate was renewed.
_RENEWAL = 1.0
#: Seconds until a gateway accepts requests without the state of a server.
_STATE_TIME = 5.0
_STANDARD_INPUT = 0


class GatewayProcess:
    """The parts of the gateway, connected."""

    def __init__(self, config: GatewayConfig, sockets: dict[str, socket.socket]) -> None:
        """`sockets`: listening sockets by name: `control`, `kernels`, `local`, `http`, and `grpc` if wanted."""
        self.config = config
        self.sockets = sockets
        self.loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self.models = ServedModels(self._changed, self._wake)
        self.kernels = KernelSocket(self.models)
        about = {"pid": os.getpid(), "port": _port(sockets["http"]),
                 "grpc_port": _port(sockets["grpc"]) if "grpc" in sockets else None}
        self.control = ControlSocket(self.models, self.kernels, about, self._operate)
        access = self.control.access = AccessControl(self.models, self.control.ask)
        counters = GatewayCounters()
        self.control.latencies = counters.histograms
        self.endpoints = Endpoints(self.models, access, counters, self.loop)
        self.frontend = HttpFrontend(self.endpoints, counters, config.origin_limits, config.access_log)
        self.servers: dict[str, asyncio.Server] = {}
        self.certificate = ServedCertificate(config)
        self.end = asyncio.Event()
        self.is_replaced = self.is_orphan = False
        #: Files of the Unix sockets, which the end removes unless another gateway has replaced them.
        self._files = {path: _inode(path) for path in (config.control, config.kernels, config.local)}

    def follow(self, state: GatewayState) -> None:
        """Follow the state that the gateway before this one had."""
        self.control.follow(state)

    async def learn(self) -> None:
        """Let the server connect, and wait for its state. Without a server, stop waiting after a while."""
        self.servers["control"] = await self.loop.create_unix_server(
            self.control.connection, sock=self.sockets["control"])
        until = self.loop.time() + _STATE_TIME
        while self.models.state is None and self.loop.time() < until:
            await asyncio.sleep(_LOOK)

    async def serve(self) -> None:
        """Accept connections on all sockets."""
        secure = self.certificate.context
        self._renew()
        if self.config.die_with_server:
            os.set_blocking(_STANDARD_INPUT, False)
            self.loop.add_reader(_STANDARD_INPUT, self._hear_server)
        factories: dict[str, Any] = {
            "control": self.control.connection, "kernels": self.kernels.connection,
            "local": self.frontend.local_connection, "http": self.frontend.connection,
            "grpc": self.frontend.connection}
        for name, sock in self.sockets.items():
            if name in self.servers:
                continue
            if sock.family == socket.AF_UNIX:
                self.servers[name] = await self.loop.create_unix_server(factories[name], sock=sock)
            else:
                self.servers[name] = await self.loop.create_server(
                    factories[name], sock=sock, ssl=secure, backlog=4096,
                    ssl_handshake_timeout=_HANDSHAKE if secure else None)

    def _renew(self) -> None:
        self.certificate.renew()
        self.loop.call_later(_RENEWAL, self._renew)

    def _hear_server(self) -> None:
        """End if the server has ended, which has killed the kernels, too."""
        try:
            lives = bool(os.read(_STANDARD_INPUT, 1))
        except BlockingIOError:
            return
        except OSError:
            lives = False
        if not lives:
            self.loop.remove_reader(_STANDARD_INPUT)
            self.is_orphan = True
            self.end.set()

    # Time ---------------------------------------------------------------------------------------------------------

    def _changed(self, waits: bool) -> None:
        self.control.changed(waits)

    def _wake(self, when: float) -> None:
        """Set the timer, unless it is set to this time or before."""
        if self._timer is not None:
            if self._due <= when:
                return
            self._timer.cancel()
        self._due = when
        self._timer = self.loop.call_later(max(0.0, when - self.loop.time()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.models.tick(self.loop.time())
        due = self.models.next_tick()
        if due is not None:
            self._wake(due)

    # Replacement and end ------------------------------------------------------------------------------------------

    def _operate(self, connection: ControlConnection, message: dict[str, Any]) -> None:
        """Follow an operation of a gateway that replaces this one, or of a server that asks for sockets."""
        operation = message.get("op")
        if operation in (handover.TAKE_OVER, handover.SHARE) and self.servers:
            replaces = operation == handover.TAKE_OVER
            connection.is_server = not replaces
            # Bytes that still wait for the peer must precede the sockets.
            if connection.transport.get_write_buffer_size():
                self.loop.call_later(_RETRY, self._operate, connection, message)
                return
            try:
                handover.send_sockets(connection, {
                    name: one for name, one in self.sockets.items() if replaces or name in PUBLIC})
            except OSError as error:
                log.error("The gateway cannot send its sockets: %s", error)
                connection.transport.abort()
                return
            if replaces:
                handover.send_state(connection, self.models.state)
        elif operation == handover.TAKEN and self.servers:
            log.info("Another gateway replaces this one")
            self._replaced(connection)

    def _replaced(self, connection: ControlConnection) -> None:
        """Let the new gateway have everything that no kernel of this one has begun."""
        self.frontend.is_ending = True
        self.stop_accepting()
        for one in list(self.control.connections):
            if one is not connection:
                one.transport.close()
        self.models.successor = handover.SuccessorRequests(connection, self.models)
        now = self.loop.time()
        for queue in self.models.queues():
            self.models.move(queue.take_all(), now)
        self.kernels.bye()
        self.frontend.retire()
        self.is_replaced = True
        self.end.set()

    def stop_accepting(self) -> None:
        """Accept no further connections."""
        for server in self.servers.values():
            server.close()
        self.servers.clear()
        for one in self.sockets.values():
            one.close()

    async def finish(self) -> None:
        """End: after a replacement when nothing is left to do, otherwise after the open requests."""
        await (self._fade() if self.is_replaced else self._drain())
        self.close()

    async def _fade(self) -> None:
        """Wait until all connections of clients and kernels have ended by themselves."""
        began = self.loop.time()
        while (self.models.open or self.frontend.connections or self.kernels.connections) and not self.is_orphan:
            await asyncio.sleep(_LOOK)
            waited = self.loop.time() - began
            if waited > _GRACE:
                self.frontend.end_streams()
            if waited > _KERNEL_GRACE:
                self.kernels.close_idle()
            if waited > self.config.origin_limits.idle_time and not self.models.open:
                self.frontend.end_idle()
                return

    async def _drain(self) -> None:
        """Answer the open requests, at most for the drain time; then refuse those that still wait."""
        self.frontend.is_ending = True
        self.endpoints.is_live = False
        self.stop_accepting()
        self.frontend.end_idle()
        until = self.loop.time() + self.config.origin_limits.drain_time
        while self.models.open and self.loop.time() < until and not self.is_orphan:
            await asyncio.sleep(_LOOK)
        self.models.refuse_open(refusals.ending())
        self.frontend.end_idle()
        await asyncio.sleep(_LOOK)

    def close(self) -> None:
        """Close everything. The files of the sockets go, too, unless another gateway uses them or has replaced them."""
        self.stop_accepting()
        if not self.is_replaced:
            for path, number in self._files.items():
                if number is not None and _inode(path) == number:
                    with suppress(OSError):
                        os.unlink(path)
        self.kernels.close()
        self.control.close()
        self.frontend.close()


def _inode(path: str) -> int | None:
    """Return the number by which the system knows a file; None if there is no such file."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def _port(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def _raise_limits() -> None:
    """Allow as many open files as the system permits: each connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else 1 << 20
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (ValueError, OSError):
        pass


def open_sockets(config: GatewayConfig, inherited: dict[str, socket.socket]) -> dict[str, socket.socket]:
    """Return the listening sockets: inherited ones if the configuration still wants them. Raises GatewayFailed."""
    found: dict[str, socket.socket] = {}
    for name, port in (("http", config.port), ("grpc", config.grpc_port)):
        old: socket.socket | None = inherited.pop(name, None)
        if port is not None and old is not None and port in (0, _port(old)):
            found[name] = old
        elif port is not None:
            found[name] = listen_tcp(config.host, port)
    for name, path in (("kernels", config.kernels), ("local", config.local), ("control", config.control)):
        found[name] = inherited.pop(name) if name in inherited else listen_unix(path)
    for unused in inherited.values():
        unused.close()
    return found


async def run(config: GatewayConfig) -> None:
    """Run the gateway until SIGTERM or SIGINT. Raises GatewayFailed."""
    _raise_limits()
    loop = asyncio.get_running_loop()
    kept = {name: socket.socket(fileno=one) for name, one in config.inherited.items()}
    predecessor = handover.find_predecessor(config)
    sockets = open_sockets(config, predecessor.sockets if predecessor is not None else kept)
    try:
        process = GatewayProcess(config, sockets)
    except OSError as error:
        raise GatewayFailed(f"The gateway cannot open {error.filename}: {error.strerror}") from None
    if predecessor is not None and predecessor.state is not None:
        process.follow(predecessor.state)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.end.set)
    # Without the state, this gateway would refuse all requests after a kill of the previous gateway.
    # Until it accepts connections, they wait in the queues of the listening sockets.
    if process.models.state is None:
        await process.learn()
    await process.serve()
    if predecessor is not None:
        await predecessor.take(process.models)
    # What the start has made stays; the collector need not look at it again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    await process.end.wait()
    await process.finish()
