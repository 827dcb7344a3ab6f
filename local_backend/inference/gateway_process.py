"""The gateway process as the server sees it: start it, find it again, and talk to it.

The gateway survives the server. Its control socket in the home names it, so the next server finds it there.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local_backend.files import read_json, write_json
from local_backend.inference.control import GatewayState, to_line
from local_backend.runtime import unix_socket
from local_backend.runtime.paths import HomePaths

_log = logging.getLogger(__name__)
#: Seconds that a message to the gateway may take, and that a connected gateway may take until it says `ready`.
_SENDING, _GREETING = 5.0, 10.0
#: Starts in a row without a connection after which a gateway takes other ports.
_FAILED = 2
#: Largest message of a gateway in bytes.
_LARGEST = 64 << 20
#: The socket of the kernels is in a folder of its own: kernels in a sandbox see this folder and not the other sockets.
_CONTROL, _KERNELS, _LOCAL = "control.sock", "kernels/kernels.sock", "http.sock"
#: Most descriptors of one message.
_DESCRIPTORS = 16
_PORT, _GRPC_PORT = "port", "grpc_port"


class GatewayLost(Exception):
    """The gateway has ended, or does not speak the protocol."""


@dataclass(frozen=True)
class GatewayPlace:
    """Where a gateway is to listen. `certificate` and `key` are files in PEM form; None for no TLS."""

    host: str
    port: int = 0
    grpc_port: int | None = None
    certificate: str | None = None
    key: str | None = None
    #: Whether the gateway ends when its server is killed.
    die_with_server: bool = False


@dataclass(frozen=True)
class GatewayReady:
    """The first message of a gateway: what runs, and where it listens."""

    pid: int
    port: int
    grpc_port: int | None
    version: str


@dataclass
class GatewayLink:
    """A connection to the control socket of a running gateway."""

    connection: socket.socket
    pid: int | None
    opened: float = field(default_factory=time.monotonic)
    ready: GatewayReady | None = None
    #: Descriptors that have arrived and that no message has named yet.
    descriptors: list[int] = field(default_factory=list)
    _buffer: bytearray = field(default_factory=bytearray)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a message arrives."""
        return self.connection.fileno()

    def send(self, message: GatewayState | dict[str, Any]) -> None:
        """Send a message. Raises GatewayLost."""
        line = to_line(message) if isinstance(message, GatewayState) else json.dumps(message).encode() + b"\n"
        try:
            self.connection.settimeout(_SENDING)
            self.connection.sendall(line)
            self.connection.setblocking(False)
        except OSError as problem:
            raise GatewayLost(f"the gateway accepts no messages: {problem}") from None

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived; the first one is in `ready`. Raises GatewayLost."""
        while True:
            try:
                piece, found, _, _ = socket.recv_fds(
                    self.connection, 1 << 20, _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
                self.descriptors += found
            except (BlockingIOError, InterruptedError):
                break
            except OSError as problem:
                raise GatewayLost(f"the connection to the gateway is lost: {problem}") from None
            if not piece:
                raise GatewayLost("the gateway has closed its connection")
            self._buffer += piece
            if len(self._buffer) > _LARGEST:
                raise GatewayLost("the gateway sent a message that is too large")
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        messages = [one for one in map(_object, lines) if one is not None]
        for message in messages:
            if message.get("op") == "ready":
                self.ready = _ready(message)
        if self.ready is None and time.monotonic() > self.opened + _GREETING:
            raise GatewayLost("the gateway does not answer")
        return [one for one in messages if one.get("op") != "ready"]

    def take_sockets(self, message: dict[str, Any]) -> dict[str, socket.socket]:
        """Return the sockets that a message names. Raises GatewayLost."""
        numbers, self.descriptors = self.descriptors, []
        found = [socket.socket(fileno=one) for one in numbers]
        names = message.get("names")
        if not isinstance(names, list) or len(names) != len(found):
            for one in found:
                one.close()
            raise GatewayLost("the gateway sent other sockets than it named")
        return dict(zip(names, found, strict=True))

    def close(self) -> None:
        """Close the connection. The gateway goes on."""
        self.connection.close()
        for one in self.descriptors:
            os.close(one)
        self.descriptors.clear()


class GatewayHandle:
    """Starts the gateway of a home, and connects to it."""

    def __init__(self, home: HomePaths, place: GatewayPlace) -> None:
        self._home, self._place = home, place
        self._child: subprocess.Popen[bytes] | None = None
        #: A pipe that no process writes to: the system closes it when this process ends.
        self._life: tuple[int, int] | None = os.pipe() if place.die_with_server else None
        #: Starts in a row that led to no connection.
        self._failures = 0
        #: The listening sockets of the last gateway, by name. While this process has them, clients that connect after
        #: the death of a gateway wait for the next one, and the system does not reset their connections.
        self.sockets: dict[str, socket.socket] = {}

    @property
    def kernels(self) -> Path:
        """Socket that kernels connect to."""
        return self._home.gateway_sockets / _KERNELS

    @property
    def local(self) -> Path:
        """Socket on which the gateway takes requests from the server."""
        return self._home.gateway_sockets / _LOCAL

    def connect(self) -> GatewayLink | None:
        """Return a connection to the gateway of this home; None if none runs."""
        self._reap()
        try:
            fd, peer = unix_socket.connect(self._home.gateway_sockets / _CONTROL)
        except OSError:
            return None
        if peer is not None and peer.uid != os.geteuid():
            os.close(fd)
            return None
        self._failures = 0
        connection = socket.socket(fileno=fd)
        connection.setblocking(False)
        return GatewayLink(connection, None if peer is None else peer.pid)

    @property
    def starting(self) -> bool:
        """Whether a gateway was started that has not ended."""
        self._reap()
        return self._child is not None

    def start(self) -> None:
        """Start a gateway. It takes the sockets or the ports that the last one had, unless it failed with them.
        Raises OSError."""
        if self._failures >= _FAILED:
            self.release()
        for folder in (self._home.gateway, self._home.gateway_sockets, self.kernels.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise PermissionError(f"{folder} is not a folder of this user")
        write_json(self._home.gateway_config, self._config(), durable=False)
        with open(self._home.gateway_log, "ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "local_backend.inference.gateway", str(self._home.gateway_config)],
                stdin=subprocess.DEVNULL if self._life is None else self._life[0], stdout=log, stderr=log,
                cwd=self._home.gateway, start_new_session=True,
                pass_fds=[one.fileno() for one in self.sockets.values()],
            )
        self._failures += 1
        _log.info("started the gateway, process %d", self._child.pid)

    def hold(self, sockets: dict[str, socket.socket]) -> None:
        """Keep the listening sockets of the running gateway for the next start."""
        self.release()
        self.sockets = sockets

    def release(self) -> None:
        """Close the kept sockets: no gateway is to follow."""
        for one in self.sockets.values():
            one.close()
        self.sockets = {}

    def keep_ports(self, ready: GatewayReady) -> None:
        """Remember the ports of the gateway for its next start."""
        with suppress(OSError):
            write_json(self._home.gateway_ports, {_PORT: ready.port, _GRPC_PORT: ready.grpc_port}, durable=False)

    def end(self, link: GatewayLink, number: int = signal.SIGTERM) -> None:
        """End the gateway; with SIGKILL, one that does not answer."""
        pid = link.ready.pid if link.ready is not None else link.pid
        if pid is not None and link.pid in (None, pid) and pid != os.getpid():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        link.close()

    def _reap(self) -> None:
        if self._child is not None and self._child.poll() is not None:
            if self._child.returncode:
                _log.warning("the gateway ended with status %d; see %s", self._child.returncode,
                             self._home.gateway_log)
            self._child = None

    def _config(self) -> dict[str, Any]:
        place, sockets = self._place, self._home.gateway_sockets
        before = read_json(self._home.gateway_ports) if self._failures < _FAILED else None
        before = before if isinstance(before, dict) else {}
        return {
            "control": str(sockets / _CONTROL), "kernels": str(self.kernels), "local": str(self.local),
            "host": place.host, _PORT: place.port or before.get(_PORT) or 0,
            _GRPC_PORT: None if place.grpc_port is None else place.grpc_port or before.get(_GRPC_PORT) or 0,
            "certificate": place.certificate, "key": place.key, "log": str(self._home.gateway_log),
            "access_log": None, "die_with_server": place.die_with_server, "origin_limits": {},
            "inherited": {name: one.fileno() for name, one in self.sockets.items()},
        }


def _object(line: bytes) -> dict[str, Any] | None:
    if not line.strip():
        return None
    try:
        found = json.loads(line)
    except ValueError:
        raise GatewayLost("the gateway sent a message that is not JSON") from None
    return found if isinstance(found, dict) else None


def _ready(message: dict[str, Any]) -> GatewayReady:
    try:
        grpc_port = message["grpc_port"]
        return GatewayReady(int(message["pid"]), int(message["port"]), None if grpc_port is None else int(grpc_port),
                            str(message["version"]))
    except (KeyError, TypeError, ValueError):
        raise GatewayLost("the gateway sent a first message without its ports") from None
