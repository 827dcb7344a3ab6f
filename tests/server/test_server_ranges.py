"""Ranges of results over HTTP; downloads and uploads whose client disconnects."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from live_server import TOKEN, Answer, Live, multipart, quoted, tar
from support import PATIENCE, eventually

from dlicmd.contract import states, wire
from local_backend.api import archives, results
from local_backend.api.depends import CALLER
from local_backend.api.ranges import Part
from local_backend.services.access import Caller
from local_backend.services.load import Load
from local_backend.settings import Quotas

ARGS = "--exec-start PyTorch --model-dir d --model-main train.py"


@pytest.fixture
def exec_id(live: Live) -> str:
    found = live.submitted()
    (live.paths(found).model / "weights").write_bytes(os.urandom(20_000))
    (live.paths(found).model / "text").write_bytes(b"word " * 5000)
    return found


def result(live: Live, exec_id: str, **headers: str) -> Answer:
    return live.call("GET", f"/execs/{exec_id}/result", headers={k.replace("_", "-"): v for k, v in headers.items()})


def test_a_range_from_any_byte_returns_the_rest(live: Live, exec_id: str) -> None:
    whole = result(live, exec_id)
    size = len(whole.body)
    assert whole.status == 200 and whole.headers["accept-ranges"] == "bytes" and "content-range" not in whole.headers
    assert whole.headers["etag"] == f'"{hashlib.sha256(whole.body).hexdigest()}"'
    for start in (0, 1, 1000, size // 2, size - 1):
        for condition in ({}, {"If_Range": whole.headers["etag"]}):
            rest = result(live, exec_id, Range=f"bytes={start}-", **condition)
            assert rest.status == 206 and rest.body == whole.body[start:]
            assert rest.headers["content-range"] == f"bytes {start}-{size - 1}/{size}"
            assert int(rest.headers["content-length"]) == size - start
            for name in ("content-disposition", "repr-digest", "etag", "accept-ranges", "content-type"):
                assert rest.headers[name] == whole.headers[name], name
    digest = base64.b64encode(hashlib.sha256(whole.body).digest()).decode()
    assert whole.headers["repr-digest"] == f"sha-256=:{digest}:"
    assert whole.headers["content-disposition"].endswith(f";size={size}")


def test_a_range_beyond_the_end_is_refused(live: Live, exec_id: str) -> None:
    whole = result(live, exec_id)
    for start in (len(whole.body), len(whole.body) + 1, 10**17):
        refused = result(live, exec_id, Range=f"bytes={start}-", If_Range=whole.headers["etag"])
        assert refused.error == (416, "exec.result_range")
        assert refused.headers["content-range"] == f"bytes */{len(whole.body)}"
    assert list(live.settings.paths.incoming.iterdir()) == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Range": "bytes=5-10"}, {"Range": "bytes=-5"}, {"Range": "bytes=1-,5-"}, {"Range": "lines=1-"},
        {"Range": "bytes=x-"}, {"Range": "bytes=-"}, {"Range": ""}, {"Range": "bytes=1"}, {"Range": "bytes=１-"},
        {"Range": "bytes=+1-"}, {"Range": "bytes=" + "9" * 5000 + "-"}, {"If_Range": '"other"'},
        {"Range": "bytes=5-", "If_Range": '"other"'}, {"Range": "bytes=5-", "If_Range": ""},
        {"Range": "bytes=5-", "If_Range": "Fri, 27 Oct 2023 16:27:29 GMT"},
        {"Range": "bytes=5-", "If_Range": "W/ETAG"}, {"Range": "bytes=5-", "If_Range": "*"},
    ],
)
def test_any_other_range_returns_the_whole_result(live: Live, exec_id: str, headers: dict[str, str]) -> None:
    whole = result(live, exec_id)
    sent = {key: value.replace("ETAG", whole.headers["etag"]).encode().decode("latin-1")
            for key, value in headers.items()}
    answer = result(live, exec_id, **sent)
    assert answer.status == 200 and answer.body == whole.body and "content-range" not in answer.headers


def test_a_changed_result_is_sent_whole(live: Live, exec_id: str) -> None:
    before = result(live, exec_id)
    (live.paths(exec_id).model / "text").write_bytes(b"other " * 5000)
    after = result(live, exec_id, Range="bytes=10-", If_Range=before.headers["etag"])
    assert after.status == 200 and after.headers["etag"] != before.headers["etag"]
    assert hashlib.sha256(after.body).hexdigest() in after.headers["etag"]


def test_a_range_of_an_unknown_exec_or_an_empty_result_is_refused(live: Live) -> None:
    empty = live.submitted()
    for exec_id in ("local-99", empty):
        assert result(live, exec_id, Range="bytes=5-").status == 400


def hang_up(connection: socket.socket, abruptly: bool) -> None:
    if abruptly:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def cut_download(live: Live, exec_id: str, abruptly: bool = True) -> None:
    """Begin a download and disconnect after the first bytes."""
    connection = socket.create_connection(("127.0.0.1", live.port), timeout=PATIENCE)
    path = f"{wire.BASE}/execs/{exec_id}/result"
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
    assert connection.recv(1000)
    hang_up(connection, abruptly)


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were packed, with one entry per packing."""
    seen: list[Path] = []

    def pack(folder: Path, mark: archives.Mark, place: Path) -> archives.Archive:
        seen.append(folder)
        return archives.pack(folder, mark, place)

    monkeypatch.setattr(results, "pack", pack)
    return seen


def kept(live: Live) -> dict[Any, archives.Archive]:
    return live.guard.app.state.archives._kept


@pytest.fixture
def large(live: Live) -> str:
    """A finished exec with a result of 40 MiB, which fits into no buffer."""
    found = live.submitted()
    (live.paths(found).model / "weights").write_bytes(os.urandom(40 << 20))
    live.move(found, states.PENDING, states.RUNNING, states.FINISHED)
    return found


@pytest.mark.integration
@pytest.mark.parametrize("abruptly", [True, False])
def test_an_interrupted_download_is_packed_once(live: Live, large: str, packed: list[Path], abruptly: bool) -> None:
    for _ in range(3):
        cut_download(live, large, abruptly)
        eventually(lambda: kept(live), "the server keeps the zip")
    assert len(packed) == 1 and list(live.settings.paths.incoming.iterdir()) == []
    (waiting,) = kept(live).values()
    rest = result(live, large, Range="bytes=1000-", If_Range=f'"{waiting.digest.hex()}"')
    assert rest.status == 206 and len(packed) == 1 and not kept(live)
    eventually(lambda: waiting.file.closed, "the server closes a zip that was sent completely")
    whole = result(live, large)
    assert len(packed) == 2 and whole.body[1000:] == rest.body


def test_a_zip_is_dropped_if_the_client_leaves_with_the_last_byte(tmp_path: Path) -> None:
    """The client disconnects after all bytes were sent and before the server has closed its response."""
    (tmp_path / "file").write_bytes(os.urandom(5000))
    zipped, keeper = archives.pack(tmp_path, archives.mark_of(tmp_path), tmp_path), archives.Archives()
    came = bytearray()

    async def call() -> None:
        has_all = asyncio.Event()

        async def receive() -> dict[str, str]:
            await has_all.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            came.extend(message.get("body", b""))
            if len(came) == zipped.length - 100:
                has_all.set()
            if message.get("more_body") is False:
                await asyncio.Event().wait()  # The disconnect comes first.

        part = Part(zipped.digest, zipped.length, 100)
        answer = results.ArchiveResponse(
            Load(Quotas(), shared=False), zipped, part, part.headers, tmp_path, keeper)
        await answer({"type": "http", CALLER: Caller("alice", False)}, receive, send)

    asyncio.run(call())
    assert len(came) == zipped.length - 100 and zipped.file.closed and not keeper._kept


@pytest.mark.integration
def test_a_kept_zip_of_changed_content_is_not_used(live: Live, large: str, packed: list[Path]) -> None:
    cut_download(live, large)
    eventually(lambda: kept(live), "the server keeps the zip")
    (waiting,) = kept(live).values()
    (live.paths(large).model / "more").write_bytes(b"x")
    answer = result(live, large)
    assert len(packed) == 2 and f'"{hashlib.sha256(answer.body).hexdigest()}"' == answer.headers["etag"]
    assert waiting.file.closed and not kept(live)


@pytest.mark.integration
def test_a_kept_zip_is_dropped_after_a_while(live: Live, large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "KEPT_SECONDS", 0.05)
    seen: list[archives.Archive] = []
    keep = archives.Archives.keep
    monkeypatch.setattr(archives.Archives, "keep", lambda self, folder, zipped: (
        seen.append(zipped), keep(self, folder, zipped)))
    cut_download(live, large)
    eventually(lambda: seen and seen[0].file.closed, "the zip is closed")
    assert not kept(live)


@pytest.mark.integration
def test_the_zip_of_a_running_exec_is_not_kept(live: Live, packed: list[Path]) -> None:
    found = live.submitted()
    (live.paths(found).model / "weights").write_bytes(os.urandom(40 << 20))
    for times in (1, 2):
        cut_download(live, found)
        eventually(lambda n=times: len(packed) == n, "the server packs the result for each request")
    assert result(live, found).status == 200 and not kept(live)


def test_at_most_four_zips_are_kept(tmp_path: Path) -> None:
    keeper, made = archives.Archives(), []
    for number in range(7):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "file").write_bytes(b"x")
        made.append(archives.pack(folder, archives.mark_of(folder), tmp_path))
        keeper.keep(folder, made[-1])
    assert [zipped.file.closed for zipped in made] == [True] * 3 + [False] * 4
    taken = keeper.take(tmp_path / "6", archives.mark_of(tmp_path / "6"))
    assert taken is made[6] and keeper.take(tmp_path / "6", taken.mark) is None
    keeper.drop(tmp_path / "6", taken)
    assert not taken.file.closed, "a zip in use was closed"
    for zipped in made:
        zipped.file.close()


@pytest.mark.parametrize("abruptly", [True, False])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.999])
def test_an_interrupted_upload_leaves_no_files(live: Live, share: float, abruptly: bool) -> None:
    archive = tar({"d/train.py": b"1", "d/data": os.urandom(6 << 20)})
    body, kind = multipart([("file", "x.modelDir.tar", archive)])
    head = (
        f"POST {wire.BASE}/execs/?args={quoted(ARGS)} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection = socket.create_connection(("127.0.0.1", live.port), timeout=PATIENCE)
    connection.sendall(head.encode() + body[: int(len(body) * share)])
    eventually(lambda: list(live.settings.paths.incoming.iterdir()), "the upload has begun")
    hang_up(connection, abruptly)
    eventually(live.nothing_left, "no file of the upload is left")
    assert live.call("GET", "/execs").json() == [] and live.supervisor.woken == 0
