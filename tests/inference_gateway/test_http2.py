"""HTTP/2 with prior knowledge and over TLS: the same answers as over HTTP/1.1, on many streams."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import struct
import threading
from pathlib import Path

import pytest
import trustme
from calls import Got, ask
from gateway_host import GatewayHost, model
from http2_client import Http2Client
from support import eventually

from local_backend.inference.control import RequestLimits

pytestmark = pytest.mark.integration
METHOD = "/inference.GRPCInferenceService/"


def test_streams_are_answered_in_any_order(shared: GatewayHost) -> None:
    with Http2Client(shared.port) as client:
        numbers = [client.open(b"%d" % turn) for turn in range(50)]
        assert [bytes(client.get(number).body) for number in numbers] == [b"%d" % turn for turn in range(50)]


def test_large_bodies_go_in_and_out(shared: GatewayHost) -> None:
    body = bytes(range(256)) * 20_000
    with Http2Client(shared.port) as client:
        first = client.open(body)
        assert bytes(client.get(first).body) == body
        assert client.streams[first].headers["content-length"] == str(len(body))


def test_refusals_have_their_code(shared: GatewayHost) -> None:
    with Http2Client(shared.port) as client:
        got = client.get(client.open(b"x", token="bob"))
        assert (got.status, got.headers["x-dli-error-code"]) == (404, "inference.no_model")
        assert client.get(client.open(b"", "/healthz", method="GET")).status == 200
        assert client.get(client.open(b"", "/v2/health/live", method="HEAD")).body == b""


def test_a_refused_body_is_not_read(host: GatewayHost) -> None:
    host.serve(model(limits=RequestLimits(body_bytes=1000)))
    with Http2Client(host.port) as client:
        number = client.open(b"x" * 100_000)
        assert (client.get(number).status, client.get(client.open(b"", "/healthz", method="GET")).status) == (413, 200)


def test_parts_arrive_as_they_are_sent(shared: GatewayHost) -> None:
    with Http2Client(shared.port) as client:
        body = json.dumps({"do": "stream", "parts": ["a", "b"]}).encode()
        assert client.get(client.open(body)).body == b"ab"
        failed = client.get(client.open(json.dumps({"do": "stream", "parts": ["a"], "fails": True}).encode()))
        assert (failed.body, failed.reset) == (b"a", 2)
        events = client.get(client.open(body, accept="text/event-stream"))
        assert events.body == b"data: a\n\ndata: b\n\n"


def test_a_stream_that_is_reset_cancels_its_task(host: GatewayHost) -> None:
    host.serve(model())
    kernel = host.kernel()
    with Http2Client(host.port) as client:
        number = client.open(b'{"do": "silent"}')
        eventually(lambda: kernel.tasks, "the kernel has the task")
        client.h2.reset_stream(number)
        client.flush()
        assert eventually(lambda: kernel.cancelled, "the kernel is told") == [kernel.tasks[0].id]
        assert client.get(client.open(b"", "/healthz", method="GET")).status == 200


def test_a_client_that_resets_all_its_streams_is_disconnected(shared: GatewayHost) -> None:
    with Http2Client(shared.port) as client:
        for _ in range(1000):
            try:
                number = client.open(None)
                client.h2.reset_stream(number)
                client.flush()
            except OSError:
                break
        client.until(lambda: False)
        assert client.is_closed
    with Http2Client(shared.port) as client:
        assert client.get(client.open(b"x")).status == 200


@pytest.mark.parametrize("data", [b"\xff" * 30, b"\0\0\0\x04\0\0\0\0\0" * 2 + b"\0\0\x04\x08\0\0\0\0\0\0\0\0\0",
                                  b"\0\0\x05\x01\x05\0\0\0\x01\x80\x80\x80\x80\x80"])
def test_broken_frames_end_the_connection(shared: GatewayHost, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", shared.port), timeout=60) as link:
        link.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0" + data)
        try:
            while link.recv(65536):
                pass
        except ConnectionResetError:
            pass
    assert "Traceback" not in Path(shared.config["log"]).read_text()


def test_a_body_that_does_not_arrive_ends_the_connection(folder: Path) -> None:
    with GatewayHost(folder, origin_limits={"body_time": 0.5}) as host:
        host.serve(model())
        with Http2Client(host.port) as client:
            client.open(None)
            client.until(lambda: False)
            assert client.is_closed


# TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the certificate of an authority, and of the gateway."""
    folder = tmp_path_factory.mktemp("tls")
    made = trustme.CA()
    made.cert_pem.write_to_path(folder / "ca.pem")
    certificate = made.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    return folder


def test_tls_serves_both_versions_of_http(folder: Path, authority: Path) -> None:
    with GatewayHost(folder, certificate=str(authority / "cert.pem"), key=str(authority / "key.pem")) as host:
        host.serve(model())
        host.kernel()
        with Http2Client(host.port, authority / "ca.pem") as client:
            assert client.get(client.open(b"x" * 200_000)).body == b"x" * 200_000
        context = ssl.create_default_context(cafile=str(authority / "ca.pem"))
        connection = http.client.HTTPSConnection("localhost", host.port, context=context, timeout=60)
        assert ask(connection, b"y" * 200_000).body == b"y" * 200_000
        found: list[Got] = []
        thread = threading.Thread(target=lambda: found.append(ask(connection, {"do": "sleep", "seconds": 0.5})))
        thread.start()
        with socket.create_connection(("127.0.0.1", host.port), timeout=60) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert not plain.recv(100).startswith(b"HTTP/")
        thread.join()
        assert found[0].status == 200
        connection.close()


# gRPC as bytes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "body", "headers", "expected"), [
    ("ServerLive", b"\0\0\0\0\0", {}, "0"), ("Nothing", b"\0\0\0\0\0", {}, "12"), ("ServerLive", b"", {}, "3"),
    ("ModelInfer", b"\0\0\0\0\x09x", {}, "3"), ("ModelInfer", b"\0\0\0\0\x02\xff\xff", {}, "3"),
    ("ModelInfer", b"\0\0\0\0\0" * 2, {}, "3"), ("ModelInfer", b"\x01\0\0\0\x01x", {"grpc_encoding": "gzip"}, "3"),
    ("ModelInfer", b"\x01\0\0\0\x01x", {"grpc_encoding": "snappy"}, "12"), ("ModelInfer", b"\0\0\0\0\0", {}, "5"),
    ("ModelStreamInfer", b"\0\0\0\0\x09x", {}, "3"), ("ModelStreamInfer", b"\0\xff\xff\xff\xff", {}, "8"),
    ("ModelStreamInfer", b"", {}, "0"),
    ("ModelReady", b"\0\0\0\0\x03" + b"\x0a\x01m", {"grpc_timeout": "soon"}, "0"),
    ("ModelInfer", b"\0\0\0\0\x03" + b"\x0a\x01m", {"grpc_timeout": "soon"}, "3"),
])
def test_calls_of_grpc_end_with_a_status(shared: GatewayHost, method: str, body: bytes, headers: dict[str, str],
                                         expected: str) -> None:
    with Http2Client(shared.port) as client:
        got = client.get(client.open(body, METHOD + method, content_type="application/grpc", te="trailers", **headers))
        status = got.trailers or got.headers
        assert (got.status, status["grpc-status"], "Traceback" in status.get("grpc-message", "")) == (
            200, expected, False)


def test_messages_of_a_stream_may_arrive_in_pieces(shared: GatewayHost) -> None:
    message = b"\x0a\x01m\x1a\x017"
    data = struct.pack(">BI", 0, len(message)) + message
    with Http2Client(shared.port) as client:
        number = client.open(None, METHOD + "ModelStreamInfer", content_type="application/grpc", te="trailers")
        for position in range(len(data)):
            client.send(number, data[position:position + 1], end=position == len(data) - 1)
        got = client.get(number)
        assert (got.trailers["grpc-status"], b"7" in got.body) == ("0", True)
