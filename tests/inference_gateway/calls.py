"""Requests to a gateway over HTTP/1.1."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any

from gateway_host import GatewayHost

PATH = "/dlim/v1/inference/m"


@dataclass
class Got:
    """An answer. `headers` have names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The code of an error."""
        return self.headers.get("x-dli-error-code", "")

    @property
    def value(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def call(host: GatewayHost, body: Any = b"hello", *, path: str = PATH, method: str = "POST",
         token: str | None = "alice", headers: dict[str, str] | None = None) -> Got:
    """Send one request on a new connection. A body that is no bytes goes as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=60)
    try:
        return ask(connection, body, path=path, method=method, token=token, headers=headers)
    finally:
        connection.close()


def ask(connection: http.client.HTTPConnection, body: Any = b"hello", *, path: str = PATH, method: str = "POST",
        token: str | None = "alice", headers: dict[str, str] | None = None) -> Got:
    """Send one request on a connection."""
    given = {"Authorization": f"Bearer {token}"} if token is not None else {}
    data = body if isinstance(body, bytes | type(None)) else json.dumps(body).encode()
    connection.request(method, path, data, given | (headers or {}))
    found = connection.getresponse()
    return Got(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())


def raw(host: GatewayHost, *parts: bytes) -> bytes:
    """Send bytes, and return all that comes until the gateway closes."""
    with socket.create_connection(("127.0.0.1", host.port), timeout=60) as link:
        for part in parts:
            link.sendall(part)
        found = b""
        try:
            while data := link.recv(65536):
                found += data
        except ConnectionResetError:
            pass
        return found
