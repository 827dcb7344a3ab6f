"""Bytes on a connection that ordinary clients do not send."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from live_server import TOKEN, Live, multipart, quoted, route_table, settings_for
from support import PATIENCE, examples

from dlicmd.contract import wire
from local_backend.serving.connections import LARGEST_HEAD

KNOWN = f"Host: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
LONG = "x" * 3000


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    running = Live(settings_for(tmp_path_factory.mktemp("hostile") / "home"))
    yield running
    running.close()


def exchanged(live: Live, *pieces: bytes) -> bytes:
    """Send bytes, and return everything until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", live.port), timeout=PATIENCE) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found = b""
        try:
            for piece in pieces:
                raw.sendall(piece)
            while more := raw.recv(65536):
                found += more
        except ConnectionError:
            pass  # The server has closed the connection before it has read all.
        return found


def statuses(answers: bytes) -> list[bytes]:
    """Return the status of each answer."""
    return re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)


@pytest.mark.parametrize("lengths", [
    "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
    "content-length: 0\r\nTRANSFER-ENCODING: Chunked\r\n",
])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_body_with_two_lengths_is_refused_and_nothing_after_it_is_read(
    live: Live, lengths: str, version: str
) -> None:
    inner = f"GET {wire.EXECS} HTTP/1.1\r\n{KNOWN}\r\n".encode()
    body = b"0\r\n\r\n" + inner
    answer = exchanged(live, f"POST {wire.EXECS} HTTP/{version}\r\n{KNOWN}{lengths}\r\n".encode() + body)
    assert statuses(answer) == [b"400"]


@pytest.mark.parametrize("lengths", [
    "Content-Length: 3\r\nContent-Length: 4\r\n", "Content-Length: +3\r\n", "Content-Length: 3, 4\r\n",
    "Transfer-Encoding: chunked, identity\r\n", "Transfer-Encoding: xchunked\r\n", "Transfer-Encoding : chunked\r\n",
])
def test_a_body_with_an_unclear_length_is_refused(live: Live, lengths: str) -> None:
    answer = exchanged(live, f"POST {wire.EXECS} HTTP/1.1\r\n{KNOWN}{lengths}\r\nabcabc".encode())
    assert statuses(answer) in ([b"400"], [b"501"])


@pytest.mark.parametrize("pieces", [1, 3, 50])
def test_the_limit_of_the_head_is_exact(live: Live, pieces: int) -> None:
    def asked(size: int) -> bytes:
        begin = f"GET {wire.EXECS} HTTP/1.1\r\n{KNOWN}Connection: close\r\nX-More: "
        head = (begin + "m" * (size - len(begin) - 4) + "\r\n\r\n").encode()
        assert len(head) == size
        step = -(-size // pieces)
        return exchanged(live, *(head[at:at + step] for at in range(0, size, step)))

    assert asked(LARGEST_HEAD).startswith(b"HTTP/1.1 200 ")
    for more in (1, 1000, LARGEST_HEAD // 2):
        assert asked(LARGEST_HEAD + more).startswith(b"HTTP/1.1 431 "), more


def test_long_names_in_addresses_are_no_failure(live: Live) -> None:
    for path, methods in route_table(live).items():
        if "{" not in path:
            continue
        named = "/".join(LONG if part.startswith("{") else part for part in path.split("/"))
        for method in methods - {"HEAD"}:
            answer = live.call(method, named, b"{}" if method in ("POST", "PUT") else b"", base="",
                               headers={"Content-Type": "application/json"})
            found = answer.status == 200 and not answer.json()
            assert found or (answer.status in {*range(400, 500), 501} and answer.error[1]), (method, path, answer.text)


@pytest.mark.parametrize("target", [
    f"/files/content?path={LONG}", f"/files/content?path=model/{LONG}", f"/files/content?path={'a/' * 1500}b",
    f"/log?logType={LONG}", f"/lines?worker={LONG}", f"/curves?metric={LONG}&since={LONG}", f"/follow?cursor={LONG}",
    "/files/content?path=%00", "/files/content?path=model/%ff%fe", "/files/content?path=..%2f..%2f..%2fbackend.db",
])
def test_long_and_strange_values_are_no_failure(live: Live, target: str) -> None:
    exec_id = live.submitted()
    answer = live.call("GET", f"/execs/{exec_id}{target}")
    assert answer.status == 200 or (400 <= answer.status < 500 and answer.error[1]), answer.text
    live.forget(exec_id)


@pytest.mark.parametrize("name", [
    LONG, f"{LONG}.modelDir.tar", "a\0b.py", "..", ".", "/", "\x1b[31m.py", "\udcff" * 300,
])
def test_long_and_strange_names_of_parts_are_refused_with_a_code(live: Live, name: str) -> None:
    body, kind = multipart([("file", "NAME", b"print(1)\n")])
    body = body.replace(b"NAME", name.encode("utf-8", "surrogateescape"))
    args = quoted("--exec-start PyTorch --model-main main.py")
    answer = live.call("POST", f"/execs?args={args}", body, {"Content-Type": kind})
    assert 400 <= answer.status < 500 and answer.error[1], answer.text
    long = multipart([(LONG, None, b"1"), (LONG, LONG, b"2")])
    answer = live.call("POST", f"/execs?args={args}", long[0], {"Content-Type": long[1]})
    assert 400 <= answer.status < 500 and answer.error[1], answer.text
    assert live.nothing_left()


def test_long_names_in_the_command_line_are_refused_with_a_code(live: Live) -> None:
    for args in (f"--model-main {LONG}", f"--model-dir {LONG} --model-main main.py", f"--conda-env-name {LONG}",
                 f"--model-main {'a/' * 1500}b.py", f"--model-main main.py --data-source {LONG}"):
        answer = live.submit(f"--exec-start PyTorch {args}", {"main.py": b""})
        assert 400 <= answer.status < 500 and answer.error[1], (args[:40], answer.text)
    assert live.nothing_left()


@pytest.mark.integration
def test_many_requests_on_kept_connections_leave_nothing(live: Live) -> None:
    paths = (wire.EXECS, f"{wire.BASE}/execs/none", "/healthz", f"{wire.BASE}/conf", "/none")
    process = psutil.Process()

    def ask(count: int) -> None:
        with socket.create_connection(("127.0.0.1", live.port), timeout=PATIENCE) as raw, raw.makefile("rb") as answers:
            for number in range(count):
                raw.sendall(f"GET {paths[number % len(paths)]} HTTP/1.1\r\n{KNOWN}\r\n".encode())
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    head += answers.readline()
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                assert len(answers.read(size)) == size

    ask(500)
    files, memory = process.num_fds(), process.memory_info().rss
    for _ in range(4):
        ask(examples(10_000) // 4 + 250)
    assert process.num_fds() <= files
    assert process.memory_info().rss - memory < 16 << 20
    assert not live.services.load.users.streams and len(os.listdir(Path(live.settings.paths.incoming))) == 0
