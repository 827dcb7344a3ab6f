"""Requests that exceed a limit or their own length are refused with a sentence, and use little memory."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live_server import TOKEN, Live, multipart, quoted, settings_for
from support import PATIENCE

from dlicmd.contract import wire
from local_backend.api.bodies import LARGEST, LARGEST_OF_USER, LARGEST_WITHOUT_TOKEN
from local_backend.api.guard import OPEN_PATHS
from local_backend.errors import TooLarge
from local_backend.serving.connections import LARGEST_HEAD
from local_backend.submit.receive import receive

ARGS = quoted("--exec-start PyTorch --model-main main.py")
KNOWN = f"Host: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
FORM = "multipart/form-data; boundary=XbX"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    running = Live(settings_for(tmp_path_factory.mktemp("oversized") / "home"))
    yield running
    running.close()


def taking_bodies(live: Live) -> list[tuple[str, str]]:
    """Return method and path of every call that takes a body, except those that take files."""
    paths = live.call("GET", "/openapi.json", base="").json()["paths"]
    found = [(method.upper(), re.sub(r"\{.*?\}", "n", path.replace("{exec_id}", "local-1")))
             for path, operations in paths.items() for method, operation in operations.items()
             if "requestBody" in operation
             and "multipart/form-data" not in operation["requestBody"]["content"]]
    assert len(found) >= 4
    return found


def exchange(port: int, method: str, path: str, *pieces: bytes, token: str = TOKEN, **headers: str) -> bytes:
    """Send a head and these pieces, and return all bytes until the connection ends."""
    sent = {"Host": "127.0.0.1", "Authorization": f"Bearer {token}", "Connection": "close"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in sent.items()) + "\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sock:
        try:
            for piece in (head.encode("latin-1"), *pieces):
                sock.sendall(piece)
        except ConnectionError:
            pass  # The server has closed the connection.
        return received(sock)


def received(sock: socket.socket) -> bytes:
    """Return all bytes until the other side closes the connection."""
    found = b""
    try:
        while chunk := sock.recv(1 << 16):
            found += chunk
    except ConnectionError:
        pass
    return found


def refused(answer: bytes, code: int) -> bool:
    """Return whether the bytes are one response with this status and a sentence, as text or as clients of models read
    it."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if body.startswith(b"{") and b"msg" in body:
        told = json.loads(body)
        body = b"Error %d: %s\n" % (code, told["msg"].encode()) if told["msg"] == told["error"]["message"] else b""
    return head.startswith(b"HTTP/1.1 %d" % code) and body.startswith(b"Error %d: " % code) and body.endswith(b".\n") \
        and body.count(b"\n") == 1


def chunked(size: int) -> Iterator[bytes]:
    """Yield a chunked body of `size` bytes without its end."""
    piece = b"%x\r\n" % (1 << 15) + b"[" * (1 << 15) + b"\r\n"
    for _ in range(size // (1 << 15)):
        yield piece


def test_small_bodies_have_a_limit(live: Live) -> None:
    for method, path in taking_bodies(live):
        kind, most = {"Content_Type": "application/json"}, LARGEST_WITHOUT_TOKEN if path in OPEN_PATHS else LARGEST
        said = exchange(live.port, method, path, Content_Length=str(most + 1), **kind)
        assert refused(said, 413) and b"%d bytes" % most in said, (method, path, said)
        # Exactly one byte over the limit: if the server closes with unread bytes, its response may be lost.
        endless = exchange(live.port, method, path, *chunked(most), b"1\r\n[", Transfer_Encoding="chunked", **kind)
        assert refused(endless, 413), (method, path, endless)
        for coding in ("gzip", "br", "Deflate, identity"):
            packed = exchange(live.port, method, path, b"\x1f\x8b", Content_Length="2", Content_Encoding=coding, **kind)
            assert refused(packed, 415), (method, path, packed)


def test_a_user_sends_smaller_bodies_than_an_administrator(start: Callable[..., Live]) -> None:
    team = start(embedded=False)
    bob, ada = team.add_user("bob"), team.add_user("ada", "admin")
    for size in (LARGEST_OF_USER, LARGEST_OF_USER + 1):
        body = b'{"ids": ["local-1"]'.ljust(size - 1) + b"}"
        sent = ("POST", "/scheduler/applications/stop", body, {"Content-Type": "application/json"})
        found = [team.call(*sent, token=token).status for token in (bob, ada)]
        assert found == [200 if size == LARGEST_OF_USER else 413, 200]
    data = quoted('{"args": "' + " " * LARGEST_OF_USER + '--exec-start PyTorch --user-cmd -- ls"}')
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert team.call("POST", "/execs/check", f"data={data}".encode(), form, token=bob).status == 204


@pytest.mark.parametrize(("name", "kind", "body"), [
    ("a data part", FORM, multipart([("data", None, b" " * (5 << 20))])[0]),
    ("a text part", FORM, multipart([("other", None, b" " * (5 << 20))])[0]),
    ("a form", "application/x-www-form-urlencoded", b"data=" + b"+" * (5 << 20)),
    ("JSON", "application/json", b" " * (5 << 20)),
], ids=lambda value: value if isinstance(value, str) and len(value) < 12 else "")
def test_texts_of_a_submission_have_a_limit(live: Live, name: str, kind: str, body: bytes) -> None:
    answer = live.call("POST", f"/execs?args={ARGS}", body, {"Content-Type": kind})
    assert answer.error == (413, "submission.too_large") and f"{4 << 20}" in answer.text, (name, answer)
    assert live.nothing_left()


@pytest.mark.parametrize("body", [
    multipart([("n" * (1 << 20), None, b"x")])[0], multipart([("file", "n" * (1 << 20), b"x")])[0],
    multipart([("file", f"{n}", b"") for n in range(65)])[0], b"--XbX\r\n" + b"X-Y: z\r\n" * 100_000 + b"\r\n",
    b"--XbX\r\n" + b"n" * (1 << 20), b"x" * (1 << 20), b"\r\n" * (1 << 19), b"--XbX" * (1 << 18),
], ids=["field name", "file name", "parts", "headers", "header name", "preamble", "blank lines", "boundaries"])
def test_forms_beyond_a_limit_are_refused(live: Live, body: bytes) -> None:
    answer = live.call("POST", f"/execs?args={ARGS}", body, {"Content-Type": FORM})
    assert answer.status == 400 and answer.error[1].startswith("submission."), answer
    assert len(answer.text) < 400, answer
    assert live.nothing_left()


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_a_compressed_submission_is_refused(live: Live, coding: str) -> None:
    answer = live.call("POST", f"/execs?args={ARGS}", b"\x1f\x8b", {"Content-Type": FORM, "Content-Encoding": coding})
    assert answer.error == (415, "http.compressed") and coding in answer.text and live.nothing_left()


def test_heads_have_a_limit(live: Live) -> None:
    for begin in (b"GET /healthz?", b"GET /healthz HTTP/1.1\r\nX-Large: ", b"GET /healthz HTTP/1.1\r\n"):
        more = b"X: y\r\n" if begin.endswith(b"\n") else b"x"
        # Exactly one byte over the limit: if the server closes with unread bytes, its response may be lost.
        head = (begin + more * LARGEST_HEAD)[: LARGEST_HEAD + 1]
        with socket.create_connection(("127.0.0.1", live.port), timeout=PATIENCE) as sock:
            sock.sendall(head)
            assert refused(received(sock), 431)
    long = quoted(f"--exec-start PyTorch --user-cmd -- echo {'x' * (LARGEST_HEAD // 2)}")
    answer = live.call("POST", f"/execs?args={long}")
    assert answer.status == 200
    live.forget(answer.json()["id"])


def test_a_body_that_differs_from_its_length_is_refused(live: Live) -> None:
    path, kind = f"{wire.BASE}/resplans/resplan/local/x", {"Content_Type": "application/json"}
    before = live.call("GET", "/resplans/resplantree").text
    with socket.create_connection(("127.0.0.1", live.port), timeout=PATIENCE) as sock:
        half = f"{KNOWN}Content-Length: 100\r\nContent-Type: application/json\r\n\r\n{{}}"
        sock.sendall(f"PUT {path} HTTP/1.1\r\n{half}".encode())
    assert live.call("GET", "/resplans/resplantree").text == before, "an incomplete body changed the plans"
    # The bytes behind the body are read as the next request. They are not one, so the connection ends.
    with socket.create_connection(("127.0.0.1", live.port), timeout=PATIENCE) as sock:
        more = f"{KNOWN}Content-Length: 2\r\n\r\n{{}}no request at all\r\n\r\n"
        sock.sendall(f"GET {wire.CONF} HTTP/1.1\r\n{more}".encode())
        first, _, second = received(sock).partition(b"HTTP/1.1 400")
    assert first.startswith(b"HTTP/1.1 200") and refused(b"HTTP/1.1 400" + second, 400), (first, second)
    for length in ("-1", "1e3", "1, 2", "0x10", "\u00b2", "9" * 30):
        said = exchange(live.port, "PUT", path, b"{}", Content_Length=length, **kind)
        assert said[9:12] in (b"400", b"413"), (length, said)
    assert live.call("GET", "/resplans/resplantree").text == before


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A server in its own process: the content of its backend.json."""
    home = tmp_path_factory.mktemp("memory") / "home"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DLI")}
    ours = {**kept, "DLICMD_HOME": str(home), "DLI_SLOTS": "1", "DLI_NURSERY_IDLE": "0"}
    command = [sys.executable, "-m", "local_backend.cli", "serve"]
    with subprocess.Popen(command, env=ours, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None and b"serving" in server.stdout.readline()
        yield json.loads(Path(home, "backend.json").read_text())
        server.terminate()
        server.wait(PATIENCE)


def most_memory(pid: int) -> int:
    """Return the highest memory use of a process so far, in KiB."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1])


def test_memory_stays_bounded(process: dict[str, Any]) -> None:
    """Ten times the limit is sent several times. If the server kept these bytes, its memory would grow visibly."""
    port = int(process["url"].rpartition(":")[2])

    def send(method: str, path: str, size: int, **headers: str) -> bytes:
        pieces = (*chunked(size), b"0\r\n\r\n")
        return exchange(port, method, path, *pieces, token=process["token"], Transfer_Encoding="chunked", **headers)

    send("PUT", wire.PLAN_TREE, LARGEST + (1 << 17), Content_Type="application/json")
    before = most_memory(process["pid"])
    for path, kind in ((wire.PLAN_TREE, "application/json"), (f"{wire.EXECS}?args={ARGS}", "application/json"),
                       (f"{wire.EXECS}?args={ARGS}", FORM)):
        method = "PUT" if path == wire.PLAN_TREE else "POST"
        for _ in range(3):
            said = send(method, path, 40 << 20, Content_Type=kind)
            assert said == b"" or said[9:12] in (b"413", b"400"), said
    assert most_memory(process["pid"]) - before < 32 << 10


@pytest.mark.parametrize(("most", "limit"), [(1000, 1000), (2**30, 4 * 2**20)])
def test_a_refusal_names_the_limit_that_the_text_exceeds(tmp_path: Path, most: int, limit: int) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(65):
            yield b"[" * 2**16

    with pytest.raises(TooLarge, match=f"{limit}") as refused:
        asyncio.run(receive(body(), "application/json", tmp_path, most))
    assert refused.value.code == "submission.too_large"
