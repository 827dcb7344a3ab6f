"""Hostile and broken clients: a sentence and a code, or a closed connection; other clients notice nothing."""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread

import psutil
import pytest
from calls import PATH, call, raw
from gateway_host import GatewayHost, model
from h2.connection import H2Connection
from http2_client import Http2Client
from support import eventually, examples

from local_backend.inference.kernel import frames

pytestmark = pytest.mark.integration
HEAD = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice\r\n"


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayHost]:
    """A gateway with short time limits and a small memory."""
    limits = {"header_time": 1.0, "idle_time": 1.5, "body_time": 1.0, "memory": 200_000, "unread_bytes": 100_000,
              "header_bytes": 8000}
    with GatewayHost(tmp_path_factory.mktemp("g"), origin_limits=limits) as made:
        made.serve(model())
        made.kernel()
        yield made


def status(answer: bytes) -> int:
    """Return the status of an answer; 0 for none."""
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0


@pytest.mark.parametrize(("data", "expected"), [
    (b"\0" * 50, 400), (b"GET\r\n\r\n", 400), (b"GET / HTTP/9.9\r\nHost: x\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n\r\n", 400), (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", 400),
    (HEAD.encode() + b"Content-Length: -1\r\n\r\n", 400), (HEAD.encode() + b"Content-Length: 1x\r\n\r\n", 400),
    (HEAD.encode() + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    (HEAD.encode() + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (HEAD.encode() + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
    (HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    (HEAD.encode() + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
    (HEAD.encode() + b"Content-Length: 999999999999\r\n\r\n", 413),
    (HEAD.encode() + b"Content-Length: 2\r\nExpect: magic\r\n\r\nab", 417),
    (HEAD.encode() + b"Authorization: Bearer root\r\n\r\n", 400),
    (f"POST {PATH}%00 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice\r\nConnection: close\r\n\r\n".encode(), 404),
    (f"POST {PATH}/../m HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice\r\nConnection: close\r\n\r\n".encode(), 404),
    (b"PATCH /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
    (b"GET /etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
])
def test_a_request_that_is_wrong_gets_a_status(shared: GatewayHost, data: bytes, expected: int) -> None:
    got = raw(shared, data)
    assert (status(got), b"Traceback" in got) == (expected, False)
    assert b'"code": "inference.' in got
    assert call(shared).status == 200


def test_a_request_behind_a_wrong_one_is_not_answered(shared: GatewayHost) -> None:
    """The end of a request with two lengths is unknown, so the gateway reads no further."""
    smuggled = HEAD.encode() + b"Content-Length: 0\r\n\r\n"
    got = raw(shared, HEAD.encode() + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled)
    assert (status(got), got.count(b"HTTP/1.1 ")) == (400, 1)


@pytest.mark.parametrize("data", [
    b"GET /" + b"a" * 9000, b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 300 + b"\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 9000,
])
def test_headers_that_are_too_large_are_refused(quick: GatewayHost, data: bytes) -> None:
    assert status(raw(quick, data)) == 431


@pytest.mark.parametrize("data", [b"", b"POST", HEAD.encode(), HEAD.encode() + b"Content-Length: 5\r\n\r\nab"])
def test_a_client_that_stops_sending_is_disconnected(quick: GatewayHost, data: bytes) -> None:
    assert status(raw(quick, data)) in ((0,) if not data else (408,))


def test_a_client_that_sends_a_byte_now_and_then_is_disconnected(quick: GatewayHost) -> None:
    with socket.create_connection(("127.0.0.1", quick.port), timeout=60) as link:
        link.settimeout(0.1)
        found = b""

        def step() -> bool:
            nonlocal found
            try:
                link.sendall(b"x")
                found += link.recv(1000)
                return bool(found)
            except TimeoutError:
                return False
            except OSError:
                return True

        link.sendall(HEAD.encode())
        eventually(step, "the gateway ends the connection")


def test_a_connection_without_requests_is_closed(quick: GatewayHost) -> None:
    with socket.create_connection(("127.0.0.1", quick.port), timeout=60) as link:
        link.sendall(HEAD.encode() + b"Content-Length: 2\r\n\r\nab")
        stream = link.makefile("rb")
        assert stream.read().endswith(b"ab")


def test_bodies_together_have_a_bound(folder: Path) -> None:
    with GatewayHost(folder, origin_limits={"memory": 200_000}) as host:
        host.serve(model())
        host.kernel()
        with socket.create_connection(("127.0.0.1", host.port), timeout=60) as link:
            link.sendall(HEAD.encode() + b"Content-Length: 190000\r\n\r\n" + b"x" * 150_000)
            eventually(lambda: b"dlim_gateway_body_bytes 1" in call(host, None, method="GET", path="/metrics").body,
                       "the gateway holds the body")
            got = call(host, b"x" * 100_000)
            assert (got.status, got.code) == (503, "inference.memory")
        eventually(lambda: call(host, b"x" * 100_000).status == 200, "the body is gone")


def test_a_client_that_does_not_read_a_stream_is_cut_off(quick: GatewayHost) -> None:
    body = b'{"do": "stream", "parts": [' + b",".join([b'"' + b"x" * 900 + b'"'] * 100) + b"]}"
    with socket.create_connection(("127.0.0.1", quick.port), timeout=60) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1000)
        for _ in range(100):
            try:
                link.sendall(HEAD.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            except OSError:
                break
        eventually(lambda: b"\ndlim_gateway_connections 1\n" in call(quick, None, method="GET", path="/metrics").body,
                   "the connection is gone")
    assert call(quick).status == 200


def test_clients_that_do_not_read_whole_answers_are_cut_off_above_the_memory_of_answers(folder: Path) -> None:
    """The system holds at most a few MiB of each answer, the gateway the rest."""
    body = b"x" * (12 << 20)
    with GatewayHost(folder, origin_limits={"memory": 16 << 20}) as host, ExitStack() as links:
        host.serve(model())
        host.kernel()
        for _ in range(4):
            link = links.enter_context(socket.socket())
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1000)
            link.connect(("127.0.0.1", host.port))
            link.sendall(HEAD.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert link.recv(1) == b"H"
        eventually(lambda: "has not read" in Path(host.config["log"]).read_text(), "a client is cut off")
        assert call(host).status == 200


def test_many_idle_connections_disturb_nobody(folder: Path) -> None:
    with GatewayHost(folder, origin_limits={"connections": 2010}) as host:
        host.serve(model())
        host.kernel()
        idle = [socket.create_connection(("127.0.0.1", host.port)) for _ in range(2000)]
        try:
            assert call(host).status == 200
            page = call(host, None, method="GET", path="/metrics").body.decode()
            assert "dlim_gateway_connections 2001\n" in page
            idle += [socket.create_connection(("127.0.0.1", host.port)) for _ in range(10)]
            assert status(raw(host, b"")) == 503
        finally:
            for one in idle:
                one.close()
        eventually(lambda: call(host).status == 200, "there is room again")


def test_random_bytes_disturb_nobody(shared: GatewayHost) -> None:
    chance = random.Random(1)
    good = HEAD.encode() + b"Content-Length: 2\r\n\r\nab"
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for _ in range(examples(300)):
        data = bytearray(chance.choice([good, preface + chance.randbytes(60), good * 3, chance.randbytes(100)]))
        for _ in range(chance.randrange(4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with socket.create_connection(("127.0.0.1", shared.port), timeout=60) as link:
            link.sendall(bytes(data[:chance.randrange(1, len(data) + 1)]))
            link.shutdown(socket.SHUT_WR)
            try:
                while link.recv(65536):
                    pass
            except ConnectionResetError:
                pass
    assert call(shared).status == 200
    assert "Traceback" not in Path(shared.config["log"]).read_text()


def hello(kernel: int = 7) -> bytes:
    """Return the first frame of a kernel of revision 1."""
    return frames.json_frame(frames.HELLO, {"version": 1, "key": "key-1", "kernel": kernel})


def test_silent_connections_keep_no_kernel_out(host: GatewayHost) -> None:
    host.serve(model())
    with ExitStack() as links:
        for _ in range(1200):
            link = links.enter_context(socket.socket(socket.AF_UNIX))
            link.connect(host.config["kernels"])
        host.kernel()
        assert call(host).status == 200


def test_the_connections_of_a_revision_have_a_bound(host: GatewayHost) -> None:
    host.serve(model())
    with ExitStack() as links:
        def connect() -> bytes:
            link = links.enter_context(socket.socket(socket.AF_UNIX))
            link.connect(host.config["kernels"])
            link.sendall(hello())
            return link.recv(4)

        assert [bool(connect()) for _ in range(1002)] == [True] * 1000 + [False] * 2
    host.kernel()
    assert call(host).status == 200


@pytest.mark.parametrize("number", [-1, 1 << 40, 10 ** 300])
def test_a_kernel_with_a_number_that_no_kernel_has_is_refused(host: GatewayHost, number: int) -> None:
    host.serve(model())
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(host.config["kernels"])
        link.sendall(hello(number))
        assert link.recv(1) == b""


def test_random_frames_of_a_kernel_disturb_nobody(host: GatewayHost) -> None:
    host.serve(model())
    chance = random.Random(2)
    for _ in range(examples(200)):
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(host.config["kernels"])
            link.sendall(hello() + b"".join(
                frames.frame(chance.randrange(25), chance.randbytes(chance.randrange(30))) for _ in range(3)))
            link.shutdown(socket.SHUT_WR)
            try:
                while link.recv(65536):
                    pass
            except ConnectionResetError:
                pass
    host.kernel()
    assert call(host).status == 200
    assert "Traceback" not in Path(host.config["log"]).read_text()


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"


@pytest.mark.parametrize("frame", [
    b"\0\0\x08\x06\0\0\0\0\0" + b"12345678", b"\0\0\0\x04\0\0\0\0\0", b"\0\0\x05\x02\0\x7f\xff\xff\xff\0\0\0\0\x10",
    b"\0\0\x04\x08\0\0\0\0\0\0\0\0\x01", b"\0\0\0\xee\0\0\0\0\x01",
], ids=["ping", "settings", "priority", "window", "unknown"])
def test_a_client_with_many_frames_that_are_no_requests_is_disconnected(shared: GatewayHost, frame: bytes) -> None:
    with socket.create_connection(("127.0.0.1", shared.port), timeout=60) as link:
        try:
            link.sendall(PREFACE + frame * 20_000)
            while link.recv(65536):
                pass
        except (ConnectionResetError, BrokenPipeError):
            pass
    assert call(shared, b"x").status == 200


def test_a_client_may_send_some_frames_that_are_no_requests(shared: GatewayHost) -> None:
    with Http2Client(shared.port) as client:
        for _ in range(1000):
            client.h2.ping(b"12345678")
        client.flush()
        assert client.get(client.open(b"x")).status == 200


def held(host: GatewayHost) -> int:
    """Return the bytes of bodies that the gateway holds."""
    page = call(host, b"", path="/metrics", method="GET").body.decode()
    return int(re.findall(r"^dlim_gateway_body_bytes (\d+)", page, re.MULTILINE)[0])


def test_a_body_in_tiny_chunks_needs_little_more_memory_than_its_bytes(folder: Path) -> None:
    count = 2_000_000
    with GatewayHost(folder, origin_limits={"pieces": 1e9}) as host:
        host.serve(model())
        process = psutil.Process(host.pid)
        before = process.memory_info().rss
        with socket.create_connection(("127.0.0.1", host.port), timeout=60) as link:
            link.sendall(tiny_chunks(count, b"xy"))
            eventually(lambda: held(host) >= 2 * count, "the chunks have arrived")
            assert process.memory_info().rss - before < 50 * 2 ** 20


@contextmanager
def sending(data: bytes, port: int) -> Iterator[None]:
    """Send these bytes in a thread, as far as the gateway takes them, until the block ends."""
    with socket.create_connection(("127.0.0.1", port)) as link:
        def send() -> None:
            with suppress(OSError):
                link.sendall(data)

        thread = Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            link.shutdown(socket.SHUT_RDWR)
            thread.join()


def tiny_chunks(count: int, piece: bytes = b"x") -> bytes:
    """Return a request of HTTP/1.1 whose body arrives in `count` pieces."""
    return f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + b"%x\r\n%b\r\n" % (len(piece), piece) * count


def tiny_frames(count: int, piece: bytes = b"x") -> bytes:
    """Return a request of HTTP/2 whose body arrives in `count` pieces."""
    client = H2Connection()
    client.initiate_connection()
    client.send_headers(1, [(":method", "POST"), (":path", PATH), (":scheme", "http"), (":authority", "x"),
                            ("authorization", "Bearer alice")])
    return client.data_to_send() + (len(piece).to_bytes(3, "big") + b"\0\0\0\0\0\x01" + piece) * count


@pytest.mark.parametrize("request_of", [tiny_chunks, tiny_frames])
def test_a_body_in_tiny_pieces_is_read_slowly_and_others_get_their_turn(
        host: GatewayHost, request_of: Callable[[int], bytes]) -> None:
    host.serve(model())
    host.kernel()
    count = 200_000
    with sending(request_of(count), host.port):
        eventually(lambda: held(host) > 0, "pieces have arrived")
        # A turn of the gateway reads at most 256 KiB of chunks or 16 KiB of frames, and answers requests of others.
        for _ in range(200):
            assert call(host).status == 200
        assert 0 < held(host) < count


@pytest.mark.parametrize("request_of", [tiny_chunks, tiny_frames])
def test_a_body_in_pieces_that_are_not_small_is_read_at_once(
        folder: Path, request_of: Callable[[int, bytes], bytes]) -> None:
    with GatewayHost(folder, origin_limits={"pieces": 1e-6}) as host:
        host.serve(model())
        with sending(request_of(10_000, b"x" * 64), host.port):
            eventually(lambda: held(host) == 640_000, "the pieces have arrived")
