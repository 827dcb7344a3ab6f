"""The configuration file of the gateway process."""

from __future__ import annotations

import json
import os
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local_backend.inference.gateway.exchange import OriginLimits, limits_of

#: Connections that wait to be accepted.
BACKLOG = 4096
#: Names of the sockets that clients connect to.
PUBLIC = ("http", "grpc")


class GatewayFailed(Exception):
    """The gateway cannot start. The text is one line that says why."""


@dataclass(frozen=True)
class GatewayConfig:
    """What the server tells the gateway at its start. Paths are absolute; `port` 0 takes a free one."""

    #: Unix sockets: of the server's messages, of kernels, and of HTTP from the server.
    control: str
    kernels: str
    local: str
    host: str
    port: int
    #: A second port with the same protocols, for gRPC clients; None for none.
    grpc_port: int | None = None
    certificate: str | None = None
    key: str | None = None
    #: The log of the gateway; None for standard error.
    log: str | None = None
    access_log: str | None = None
    #: Whether the gateway ends with its standard input, which is open while its server lives.
    die_with_server: bool = False
    #: Descriptors of the sockets of clients that a killed gateway has left, by name.
    inherited: dict[str, int] = field(default_factory=dict)
    origin_limits: OriginLimits = field(default_factory=OriginLimits)

    def secure(self) -> ssl.SSLContext | None:
        """Return the TLS context of the ports; None without a certificate. Raises GatewayFailed."""
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2", "http/1.1"])
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise GatewayFailed(f"The certificate {self.certificate} or its key is unusable: {error}") from None
        return context


_TEXTS = {"control", "kernels", "local", "host"}
_OPTIONAL_TEXTS = {"certificate", "key", "log", "access_log"}


def read_config(path: Path) -> GatewayConfig:
    """Read the configuration. Members that this version does not know are passed over. Raises GatewayFailed."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise GatewayFailed(f"The configuration {path} is unreadable: {error}") from None
    if not isinstance(value, dict):
        raise GatewayFailed(f"The configuration {path} is not a JSON object")
    try:
        return GatewayConfig(**{name: _checked(name, value.get(name)) for name in (
            *sorted(_TEXTS), "port", "grpc_port", *sorted(_OPTIONAL_TEXTS))},
            die_with_server=value.get("die_with_server") is True, inherited=_descriptors(value.get("inherited") or {}),
            origin_limits=limits_of(value.get("origin_limits") or {}))
    except ValueError as error:
        raise GatewayFailed(f"The configuration {path} is wrong: {error}") from None


def _descriptors(value: Any) -> dict[str, int]:
    if not isinstance(value, dict) or not all(
            name in PUBLIC and isinstance(one, int) and _is_listening(one) for name, one in value.items()):
        raise ValueError(f"inherited must be descriptors of listening sockets by name, but it is {value!r}")
    return value


def _is_listening(number: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(number)) as one:
            return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False


def _checked(name: str, value: Any) -> Any:
    if name in ("port", "grpc_port"):
        if value is None and name == "grpc_port":
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 65536:
            raise ValueError(f"{name} must be a port from 0 to 65535, but it is {value!r}")
        return value
    if value is None and name in _OPTIONAL_TEXTS:
        return None
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a text, but it is {value!r}")
    return value


def listen_tcp(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises GatewayFailed."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError as error:
        raise GatewayFailed(f"The gateway cannot listen at {host} port {port}: {error.strerror or error}") from None
    return made


def listen_unix(path: str) -> socket.socket:
    """Return a listening Unix socket that only this user can connect to. Raises GatewayFailed."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    temporary = f"{path}.{os.getpid()}"
    try:
        # Under its name only when it listens, so that a client never finds a socket that refuses it.
        Path(temporary).unlink(missing_ok=True)
        made.bind(temporary)
        os.chmod(temporary, 0o600)
        made.listen(BACKLOG)
        made.setblocking(False)
        os.replace(temporary, path)
    except OSError as error:
        raise GatewayFailed(f"The gateway cannot listen at {path}: {error.strerror or error}") from None
    return made
