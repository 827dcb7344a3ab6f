"""The gateway process: its sockets, its timer, and its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
from typing import Any

from local_backend.inference.gateway import refusal as refusals
from local_backend.inference.gateway.access import AccessControl
from local_backend.inference.gateway.config import GatewayConfig, GatewayFailed, listen_tcp, listen_unix
from local_backend.inference.gateway.control_socket import ControlConnection, ControlSocket
from local_backend.inference.gateway.counters import GatewayCounters
from local_backend.inference.gateway.endpoints import Endpoints
from local_backend.inference.gateway.frontend import HttpFrontend
from local_backend.inference.gateway.kernel_socket import KernelSocket
from local_backend.inference.gateway.served_models import ServedModels

log = logging.getLogger(__name__)
#: Seconds that a client has for its TLS handshake.
_HANDSHAKE = 10.0


class GatewayProcess:
    """The parts of the gateway, connected."""

    def __init__(self, config: GatewayConfig, sockets: dict[str, socket.socket]) -> None:
        """`sockets`: listening sockets by name: `control`, `kernels`, `local`, `http`, and `grpc` if wanted."""
        self.config = config
        self.sockets = sockets
        self.loop = asyncio.get_running_loop()
        self.models = ServedModels(self._changed)
        self.kernels = KernelSocket(self.models)
        about = {"pid": os.getpid(), "port": _port(sockets["http"]),
                 "grpc_port": _port(sockets["grpc"]) if "grpc" in sockets else None}
        self.control = ControlSocket(self.models, self.kernels, about, self._operate)
        access = self.control.access = AccessControl(self.models, self.control.ask)
        counters = GatewayCounters()
        self.endpoints = Endpoints(self.models, access, counters, self.loop)
        self.frontend = HttpFrontend(self.endpoints, counters, config.origin_limits, config.access_log)
        self.servers: dict[str, asyncio.Server] = {}
        self.end = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    async def serve(self) -> None:
        """Accept connections on all sockets."""
        secure = self.config.secure()
        factories: dict[str, Any] = {
            "control": self.control.connection, "kernels": self.kernels.connection,
            "local": self.frontend.local_connection, "http": self.frontend.connection,
            "grpc": self.frontend.connection}
        for name, sock in self.sockets.items():
            if sock.family == socket.AF_UNIX:
                self.servers[name] = await self.loop.create_unix_server(factories[name], sock=sock)
            else:
                self.servers[name] = await self.loop.create_server(
                    factories[name], sock=sock, ssl=secure, backlog=4096,
                    ssl_handshake_timeout=_HANDSHAKE if secure else None)

    # Time ---------------------------------------------------------------------------------------------------------

    def _changed(self, waits: bool) -> None:
        self.control.changed(waits)
        self._arm()

    def _arm(self) -> None:
        """Set the timer to the next thing that is due."""
        due = self.models.next_tick()
        if due is None or (self._timer is not None and self._due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self.loop.call_later(max(0.0, due - self.loop.time()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.models.tick(self.loop.time())
        self._arm()

    # Replacement and end ------------------------------------------------------------------------------------------

    def _operate(self, connection: ControlConnection, message: dict[str, Any]) -> None:
        """Follow an operation of a gateway that replaces this one."""

    def stop_accepting(self) -> None:
        """Accept no further connections."""
        for server in self.servers.values():
            server.close()
        self.servers.clear()

    async def drain(self) -> None:
        """Answer the open requests, at most for the drain time; then refuse those that still wait."""
        self.frontend.is_ending = True
        self.endpoints.is_live = False
        self.stop_accepting()
        self.frontend.end_idle()
        until = self.loop.time() + self.config.origin_limits.drain_time
        while self.models.open and self.loop.time() < until:
            await asyncio.sleep(0.02)
        self.models.refuse_waiting(refusals.ending())
        self.frontend.end_idle()
        await asyncio.sleep(0.05)
        self.close()

    def close(self) -> None:
        """Close everything."""
        self.stop_accepting()
        self.kernels.close()
        self.control.close()
        self.frontend.close()


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


def open_sockets(config: GatewayConfig) -> dict[str, socket.socket]:
    """Return new listening sockets. Raises GatewayFailed."""
    found = {"http": listen_tcp(config.host, config.port)}
    if config.grpc_port is not None:
        found["grpc"] = listen_tcp(config.host, config.grpc_port)
    for name, path in (("kernels", config.kernels), ("local", config.local), ("control", config.control)):
        found[name] = listen_unix(path)
    return found


async def run(config: GatewayConfig) -> None:
    """Run the gateway until SIGTERM or SIGINT. Raises GatewayFailed."""
    _raise_limits()
    loop = asyncio.get_running_loop()
    try:
        process = GatewayProcess(config, open_sockets(config))
    except OSError as error:
        raise GatewayFailed(f"The gateway cannot open {error.filename}: {error.strerror}") from None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.end.set)
    await process.serve()
    # What the start has made stays; the collector need not look at it again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    await process.end.wait()
    await process.drain()
