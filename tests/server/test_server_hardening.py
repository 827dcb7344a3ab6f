"""Every answer has the headers that protect browsers, also errors and calls that reach no route."""

from __future__ import annotations

import itertools
import socket
import ssl
from collections.abc import Callable
from http.client import HTTPSConnection, parse_headers
from io import BytesIO
from pathlib import Path

import pytest
import trustme
from live_server import TOKEN, Live, route_table
from support import PATIENCE

from dlicmd.contract import wire
from local_backend.api.guard import CLIENT_FILE
from local_backend.services import throttle

WANTED = {
    "x-content-type-options": "nosniff", "x-frame-options": "DENY", "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin", "cross-origin-opener-policy": "same-origin",
}
HSTS = "strict-transport-security"


def check(headers: dict[str, str], what: object) -> None:
    assert WANTED.items() <= headers.items(), what
    policy = headers["content-security-policy"]
    assert {"default-src 'none'", "frame-ancestors 'none'", "sandbox"} <= set(policy.split("; ")), what


@pytest.mark.parametrize("token", [None, TOKEN])
def test_every_route_sends_the_headers(live: Live, monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    monkeypatch.setattr(throttle, "DELAY", 0.0)
    live.submitted()
    asked = 0
    for (path, methods), method in itertools.product(route_table(live).items(), ("GET", "POST", "DELETE", "OPTIONS")):
        if path == CLIENT_FILE and asked:
            continue  # takes long to make
        filled = path.replace("{exec_id}", "local-1").replace("{app_id}", "local-1").replace("{number}", "1")
        answer = live.call(method, filled.replace("{log}", "stdout"), token=token, base="")
        check(answer.headers, (method, path, methods))
        assert HSTS not in answer.headers
        asked += 1
    assert asked > 100


@pytest.mark.parametrize("raw", [
    b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    b"GET /none HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    b"nonsense\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: gzip\r\n\r\n",
])
def test_refused_requests_send_the_headers(live: Live, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", live.port), PATIENCE) as sock:
        sock.sendall(raw)
        said = b""
        while b"\r\n\r\n" not in said:
            said += sock.recv(65536)
    first, _, rest = said.partition(b"\r\n")
    assert int(first.split()[1]) >= 400
    check({name.lower(): value for name, value in parse_headers(BytesIO(rest)).items()}, raw[:40])


def test_a_failure_of_the_server_sends_the_headers(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(type(live.services.machine), "status", broken)
    answer = live.call("GET", "/status")
    assert answer.error == (500, "server.failed")
    check(answer.headers, "500")


def test_a_server_with_tls_demands_tls(start: Callable[..., Live], tmp_path: Path) -> None:
    authority = trustme.CA()
    file = tmp_path / "server.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(file))
    live = start(embedded=False, tls_cert=file, tls_key=file)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    connection = HTTPSConnection("localhost", live.port, context=context)
    connection.request("GET", wire.HEALTH)
    headers = {name.lower(): value for name, value in connection.getresponse().getheaders()}
    connection.close()
    check(headers, "https")
    assert headers[HSTS].startswith("max-age=")


def test_no_page_loads_anything_from_another_host(live: Live) -> None:
    for path in ("/docs", "/redoc"):
        assert live.call("GET", path, base="").error == (404, "http.no_such_path")
