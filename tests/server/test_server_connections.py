"""Many, slow and broken connections: valid requests are answered, and a connection without a request is closed."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
from live_server import TOKEN, Live
from support import PATIENCE

from local_backend.serving.connections import raise_file_limit

CONF = "/platform/rest/deeplearning/v1/conf"
HEAD = f"GET {CONF} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n".encode()


@contextlib.contextmanager
def connections(live: Live, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(("127.0.0.1", live.port), timeout=PATIENCE))
               for _ in range(count)]


def is_closed(sock: socket.socket) -> bool:
    """Wait until the server closes the connection; return True."""
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


@pytest.fixture
def impatient(live: Live) -> Live:
    """A server that waits 1 s for the head of a request, where the default is 1 minute."""
    live.server.config.timeout_keep_alive = 1
    return live


def test_a_connection_without_a_full_request_is_closed(impatient: Live) -> None:
    with connections(impatient, 4) as found:
        for sock, begin in zip(found, (b"", b"G", HEAD, HEAD + b"X-Long: " + b"y" * 1000), strict=True):
            sock.sendall(begin)
        assert all(is_closed(sock) for sock in found)


def test_a_head_that_arrives_byte_by_byte_is_cut_off(impatient: Live) -> None:
    with connections(impatient, 1) as [sock]:
        sock.sendall(HEAD + b"X: ")
        sock.settimeout(0.02)
        for _ in range(int(PATIENCE / 0.02)):
            try:
                sock.sendall(b"y")
                if sock.recv(100) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("the server did not close the connection")


def test_a_refused_body_that_arrives_slowly_is_not_awaited(impatient: Live) -> None:
    with connections(impatient, 1) as [sock]:
        head = HEAD.replace(b"GET", b"POST").replace(TOKEN.encode(), b"x") + b"Content-Length: 1000000\r\n\r\n"
        sock.sendall(head + b"x")
        assert sock.recv(100).startswith(b"HTTP/1.1 401")
        assert is_closed(sock)


def test_a_long_poll_may_take_longer_than_a_head(impatient: Live) -> None:
    """The connection still accepts further requests after the long poll."""
    exec_id = impatient.submitted()
    path = f"{CONF.removesuffix('/conf')}/execs/{exec_id}/follow"
    first = impatient.call("GET", f"/execs/{exec_id}/follow").json()["cursor"]
    slow = HEAD.replace(CONF.encode(), f"{path}?wait=2&cursor={first}".encode())
    with connections(impatient, 1) as [sock]:
        sock.sendall(slow + b"\r\n" + (HEAD + b"\r\n") * 2)
        received = b""
        while piece := sock.recv(1 << 16):
            received += piece
    assert received.count(b"HTTP/1.1 200") == received.count(b"HTTP/1.1") == 3


def test_1000_idle_and_200_slow_clients_do_not_block_other_clients(live: Live) -> None:
    raise_file_limit()
    with connections(live, 1000), connections(live, 200) as slow:
        for number, sock in enumerate(slow):
            sock.sendall((HEAD + b"X: ")[: 5 + number])
        for _ in range(3):
            for sock in slow[::10]:
                sock.sendall(b"y")
            assert live.call("GET", "/conf").status == 200
            assert live.submit("--exec-start PyTorch --user-cmd -- ls").status == 200


NO_REQUESTS = [
    b"\r\n\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", HEAD + b"X" * 100_000, b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n",
    HEAD + b"X: y\r\n" * 20_000 + b"\r\n", HEAD + b"Bad Name: x\r\n\r\n", HEAD + b"X: a\x00b\r\n\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", HEAD + b"Content-Length: -1\r\n\r\n",
    HEAD + b"Content-Length: 1e3\r\n\r\n", HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 1000 + b"\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"CONNECT evil.example:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    HEAD + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
]


def test_invalid_requests_are_closed_and_harm_nothing(impatient: Live, caplog: pytest.LogCaptureFixture) -> None:
    with connections(impatient, len(NO_REQUESTS)) as found:
        for sock, raw in zip(found, NO_REQUESTS, strict=True):
            with contextlib.suppress(ConnectionError):
                sock.sendall(raw)
        assert all(is_closed(sock) for sock in found)
    assert impatient.call("GET", "/conf").status == 200
    assert "Traceback" not in caplog.text
