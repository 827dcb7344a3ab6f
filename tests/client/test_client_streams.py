"""Answers that are read while the same client makes other calls, and answers that end too early."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dlicmd import Client, ConnectionLost, ServerError
from dlicmd.sdk import transport
from dlicmd.sdk.tls import RequestsTransport
from dlicmd.sdk.transport import CHUNK, PlainTransport, Transport

#: Lines of a long answer. They are longer than all buffers between server and client.
LINES = [f'{{"number": {number}, "text": "{"x" * 100}"}}' for number in range(100_000)]
LONG = "\n".join(LINES).encode()


class ChunkedServer(ThreadingHTTPServer):
    """Sends execs as JSON, and all other answers in chunks of `Transfer-Encoding: chunked`.

    The name of the exec selects the end of a chunked answer: `cut` ends within a chunk, `unfinished` after a chunk.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        #: Number of connections so far.
        self.connections = 0
        #: Set when a client closes a connection during an answer.
        self.left = threading.Event()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ChunkedServer

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        name = self.path.partition("/execs/")[2].partition("/")[0]
        if self.path.endswith("/execs/w-1"):
            self._send("Content-Length", "13", b'{"id": "w-1"}')
            return
        try:
            self._send("Transfer-Encoding", "chunked", b"")
            for at in range(0, len(LONG), 50_000):
                piece = LONG[at:at + 50_000]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write({"cut": b"100\r\nabc", "unfinished": b""}.get(name, b"0\r\n\r\n"))
        except OSError:
            self.server.left.set()
            self.close_connection = True
        self.close_connection |= name in ("cut", "unfinished")

    def _send(self, header: str, value: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header(header, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[ChunkedServer]:
    with ChunkedServer() as running:
        yield running
        running.shutdown()


@pytest.fixture(params=[PlainTransport, RequestsTransport])
def client(
    request: pytest.FixtureRequest, server: ChunkedServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Client]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    way: Transport = request.param(server.url)
    with Client(transport=way, retries=0) as made:
        yield made


@pytest.fixture
def plain(server: ChunkedServer) -> Iterator[Client]:
    with Client(transport=PlainTransport(server.url), retries=0) as made:
        yield made


@pytest.mark.parametrize("read", [
    lambda client: client.train_log("w-1"), lambda client: client.result("w-1"),
    lambda client: client.task_log("w-1", "driver", "stdout"),
], ids=["train_log", "result", "task_log"])
def test_other_calls_do_not_change_an_answer_that_is_read(client: Client, read: Callable) -> None:
    found = bytearray()
    for chunk in read(client).chunks():
        if len(found) < 4 * CHUNK:
            assert client.exec("w-1").id == "w-1"
        found += chunk
    assert found == LONG


def test_metrics_of_two_execs_are_read_at_the_same_time(client: Client) -> None:
    count = 0
    for (_, first), (_, second) in zip(client.metrics("w-1"), client.metrics("w-2"), strict=True):
        assert first["number"] == second["number"] == count
        if count % 20_000 == 0:
            assert client.exec("w-1").id == "w-1"
        count += 1
    assert count == len(LINES)


@pytest.mark.parametrize("name", ["cut", "unfinished"])
def test_an_answer_that_ends_too_early_is_an_error(client: Client, name: str) -> None:
    found = bytearray()
    answer = client.train_log(name)
    with pytest.raises(ConnectionLost):
        for chunk in answer.chunks():
            found += chunk
    assert found.removesuffix(b"abc") == LONG
    with pytest.raises(ConnectionLost):
        next(answer.chunks())
    with pytest.raises(ConnectionLost):
        answer.body()
    assert client.exec("w-1").id == "w-1"


def test_an_answer_that_is_too_long_is_refused_at_each_read(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_ANSWER", len(LONG) - 1)
    answer = client.train_log("w-1")
    for read in (answer.body, answer.body, lambda: next(answer.chunks())):
        with pytest.raises(ServerError):
            read()
    monkeypatch.setattr(transport, "MAX_ANSWER", len(LONG))
    assert client.train_log("w-1").body() == LONG


def test_an_answer_of_a_closed_client_is_an_error(plain: Client) -> None:
    chunks = plain.train_log("w-1").chunks()
    assert LONG.startswith(next(chunks))
    plain.close()
    for _ in range(2):
        with pytest.raises(ConnectionLost):
            next(chunks)
    assert plain.exec("w-1").id == "w-1"


def test_connections_are_used_again(plain: Client, server: ChunkedServer) -> None:
    chunks = plain.train_log("w-1").chunks()
    for _ in range(3):
        plain.exec("w-1")
    assert server.connections == 2
    assert b"".join(chunks) == LONG and next(chunks, b"end") == b"end"
    for _ in range(3):
        plain.exec("w-1")
    assert server.connections == 2


@pytest.mark.parametrize("read", [lambda chunks: None, next], ids=["unread", "begun"])
def test_the_connection_of_a_dropped_answer_is_closed(plain: Client, server: ChunkedServer, read: Callable) -> None:
    read(plain.train_log("w-1").chunks())
    assert server.left.wait(60)
    assert plain.exec("w-1").id == "w-1"
