"""The transport for the address of a server."""

from __future__ import annotations

import re

from dlicmd.errors import UsageProblem
from dlicmd.rest.transport import PlainTransport, Transport


def open_transport(
    host: str | None, port: int | None, *, ca_cert: str | None = None, insecure: bool = False, http: bool = False
) -> Transport:
    """Return the transport for a server; the scheme is https unless `http` is set. Without a host, return the
    transport for the local backend."""
    if host is None:
        from dlicmd.backend import EmbeddedTransport

        return EmbeddedTransport()
    name = _host_name(host, http)
    where = name if port is None or port < 0 else f"{name}:{port}"
    if http and _is_loopback(name):
        return PlainTransport(f"http://{where}")
    from dlicmd.rest.tls import RequestsTransport

    return RequestsTransport(f"{'http' if http else 'https'}://{where}", ca_cert, insecure)


def _host_name(host: str, http: bool) -> str:
    """Return `host` without its scheme, and an IPv6 address in brackets. Raises UsageProblem when `host` is no host
    name or address, or names plain http without `http`."""
    scheme, _, rest = host.rpartition("://")
    if scheme.lower() == "http" and not http:
        raise UsageProblem(f"--rest-host {host}: add --http to use plain http")
    name = rest.rstrip("/")
    if ":" in name and re.fullmatch(r"[0-9A-Fa-f:.]+", name) and name.count(":") > 1:
        return f"[{name}]"
    if scheme.lower() not in ("", "http", "https") or not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:[0-9]+)?", name):
        raise UsageProblem(f"--rest-host: '{host}' is not the name or address of a host")
    return name


def _is_loopback(name: str) -> bool:
    return re.fullmatch(r"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]+)?", name) is not None
