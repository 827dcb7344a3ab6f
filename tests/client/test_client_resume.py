"""Interrupted downloads: received bytes stay, are never taken for the whole result, and the next call resumes."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import resource
import signal
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from client_desk import Desk
from fake_server import BASE, TOKEN, FakeServer, Reply, Seen, exec_object
from hypothesis import given, settings
from hypothesis import strategies as st
from support import eventually, examples

from dlicmd.sdk import results
from dlicmd.sdk.errors import ConnectionLost, DlicmdError, ServerError
from dlicmd.sdk.transport import Answer

ZIP = bytes(range(256)) * 2000 + b"end"
NAME = "dlpd-model-1-2w-1-result.zip"
PART, NOTE = NAME + ".part", NAME + ".part.json"
FETCH = ("--exec-trainresult", "w-1")


def etag(data: bytes) -> str:
    return f'"{hashlib.sha256(data).hexdigest()}"'


def described(data: bytes, name: str = NAME) -> dict[str, str]:
    digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
    return {"Content-Disposition": f"attachment;filename={name};size={len(data)}", "ETag": etag(data),
            "Repr-Digest": f"sha-256=:{digest}:"}


class Shop:
    """Serves `data` with ranges. `cuts` are the offsets at which the connection ends, one per call; None means no
    cut, and so does an exhausted list."""

    def __init__(self, server: FakeServer) -> None:
        self.data, self.name, self.ranges, self.tagged = ZIP, NAME, True, True
        self.cuts: list[int | None] = []
        self.asked: list[str | None] = []
        #: Called after the (possibly cut) body is sent.
        self.after: Callable[[], object] = lambda: None
        server.execs["w-1"] = exec_object("w-1", state="FINISHED")
        server.replies["GET", f"{BASE}/execs/w-1/result"] = self.answer

    def answer(self, seen: Seen) -> Reply:
        self.asked.append(seen.headers.get("range"))
        asked = self.ranges and seen.headers.get("if-range") == etag(self.data)
        start = int(seen.headers["range"].removeprefix("bytes=").removesuffix("-")) if asked else 0
        headers = described(self.data, self.name)
        if asked:
            headers["Content-Range"] = f"bytes {start}-{len(self.data) - 1}/{len(self.data)}"
        if not self.tagged:
            headers = {"Content-Disposition": headers["Content-Disposition"]}
        cut = self.cuts.pop(0) if self.cuts else None
        headers["Content-Length"] = str(len(self.data) - start)
        if cut is not None:
            headers["Connection"] = "close"
        return Reply(206 if asked else 200, self.data[start:cut], headers, self.after)


@pytest.fixture
def shop(desk: Desk, local: FakeServer) -> Shop:
    return Shop(local)


def lies(desk: Desk) -> list[str]:
    """Return the names of the files in the folder of the user."""
    return sorted(os.listdir(desk.folder))


def saved(desk: Desk, data: bytes = ZIP, name: str = NAME) -> bool:
    """Return whether the folder contains the result and nothing else."""
    return lies(desk) == [name] and (desk.folder / name).read_bytes() == data


def interrupted(desk: Desk, shop: Shop, at: int = 100_000) -> None:
    """Run a download that fails for good after `at` bytes."""
    desk.environment["DLICMD_RETRIES"] = "0"  # only the next call may resume the download
    shop.cuts = [at] * 10
    failed = desk.run(*FETCH)
    assert failed.code == 8 and PART in failed.err, failed
    assert lies(desk) == [PART, NOTE] and (desk.folder / PART).read_bytes() == ZIP[:at]
    assert shop.asked == [None]
    shop.cuts, shop.asked = [], []


def test_lost_connections_are_resumed_in_the_same_call(desk: Desk, shop: Shop) -> None:
    shop.cuts = [0, 1, 65_535, 65_536, 65_537, 200_000, len(ZIP) - 1]
    done = desk.run(*FETCH)
    assert done.code == 0 and done.out == f"Train result is saved to {NAME}\n", done
    assert shop.asked == [None, None, *(f"bytes={at}-" for at in (1, 65_535, 65_536, 65_537, 200_000, len(ZIP) - 1))]
    assert saved(desk) and "Traceback" not in done.err


@pytest.mark.parametrize(("retries", "attempts"), [
    ("1", 2), pytest.param(None, 4, marks=pytest.mark.integration),
])
def test_repeated_losses_without_new_bytes_end_the_download(
    desk: Desk, shop: Shop, retries: str | None, attempts: int
) -> None:
    if retries is not None:
        desk.environment["DLICMD_RETRIES"] = retries
    shop.cuts = [1000] * 10
    failed = desk.run(*FETCH)
    assert failed.code == 8 and shop.asked == [None, *["bytes=1000-"] * (attempts - 1)]
    assert lies(desk) == [PART, NOTE]


def test_the_next_call_resumes_the_download(desk: Desk, shop: Shop) -> None:
    interrupted(desk, shop)
    done = desk.run(*FETCH)
    assert done.code == 0 and "97.7K" in done.err
    assert shop.asked == ["bytes=100000-"] and saved(desk)


def test_the_next_call_finishes_a_complete_part(desk: Desk, shop: Shop) -> None:
    interrupted(desk, shop)
    (desk.folder / PART).write_bytes(ZIP)
    assert desk.run(*FETCH).code == 0
    assert shop.asked == [f"bytes={len(ZIP) - 1}-"] and saved(desk)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_client_killed_during_the_download_can_resume(desk: Desk, shop: Shop, number: signal.Signals) -> None:
    go_on = threading.Event()
    shop.cuts, shop.after = [150_000], lambda: go_on.wait(90)
    with desk.start(*FETCH) as process:
        try:
            part = desk.folder / PART
            eventually(lambda: part.exists() and part.stat().st_size == 150_000, "the first bytes are stored")
            process.send_signal(number)
            _, err = process.communicate(timeout=90)
        finally:
            go_on.set()
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert lies(desk) == [PART, NOTE]
    if number == signal.SIGINT:
        assert PART.encode() in err and b"Traceback" not in err
    assert desk.run(*FETCH).code == 0
    assert shop.asked == [None, "bytes=150000-"] and saved(desk)


@pytest.mark.parametrize("name", [NAME, "dlpd-model-3-4w-1-result.zip"])
def test_a_changed_result_is_fetched_again_from_the_start(desk: Desk, shop: Shop, name: str) -> None:
    interrupted(desk, shop)
    shop.data, shop.name = ZIP[::-1] + b"more", name
    assert desk.run(*FETCH).code == 0
    assert shop.asked == ["bytes=100000-"] and saved(desk, shop.data, name)


@pytest.mark.parametrize(
    ("status", "change"),
    [
        (416, {}),
        (206, {"Content-Range": "bytes 99999-512002/512003"}),
        (206, {"Content-Range": "bytes 100000-512002/512004"}),
        (206, {"Content-Range": ""}),
        (206, {"ETag": '"other"'}),
        (206, {"ETag": ""}),
        (206, {"Repr-Digest": "sha-256=:AAAA:"}),
    ],
)
def test_an_answer_that_does_not_match_the_part_restarts_the_download(
    desk: Desk, shop: Shop, local: FakeServer, status: int, change: dict[str, str]
) -> None:
    interrupted(desk, shop)

    def answer(seen: Seen) -> Reply:
        usual = shop.answer(seen)
        if "range" not in seen.headers:
            return usual
        return Reply(status, usual.body, {key: value for key, value in (usual.headers | change).items() if value})

    local.replies["GET", f"{BASE}/execs/w-1/result"] = answer
    assert desk.run(*FETCH).code == 0
    assert shop.asked == ["bytes=100000-", None] and saved(desk)


def test_an_unrequested_partial_answer_is_refused(desk: Desk, shop: Shop, local: FakeServer) -> None:
    headers = described(ZIP) | {"Content-Range": f"bytes 0-{len(ZIP) - 1}/{len(ZIP)}"}
    local.replies["GET", f"{BASE}/execs/w-1/result"] = Reply(206, ZIP, headers)
    failed = desk.run(*FETCH)
    assert failed.code == 1 and len(failed.err.splitlines()) == 1 and lies(desk) == []


def test_damage_on_the_disk_is_detected_and_removed(desk: Desk, shop: Shop) -> None:
    interrupted(desk, shop)
    with (desk.folder / PART).open("r+b") as file:
        file.seek(50_000)
        file.write(b"!!")
    failed = desk.run(*FETCH)
    assert failed.code == 1 and "checksum" in failed.err and "removed" in failed.err and lies(desk) == []
    assert desk.run(*FETCH).code == 0 and saved(desk)


@pytest.mark.parametrize("note", ["", "{}", "[]", '{"exec_id": 1}', "null", "{" * 5000])
def test_a_damaged_note_is_left_alone_but_an_empty_one_is_replaced(desk: Desk, shop: Shop, note: str) -> None:
    interrupted(desk, shop)
    (desk.folder / NOTE).write_text(note)
    done = desk.run(*FETCH)
    if note:
        assert done.code == 1 and NOTE in done.err and len(done.err.splitlines()) == 1
        assert lies(desk) == [PART, NOTE] and (desk.folder / NOTE).read_text() == note
    else:  # a dlicmd was killed before it wrote the note
        assert done.code == 0 and shop.asked == [None] and saved(desk)


def test_a_server_without_ranges_sends_the_whole_result_again(desk: Desk, shop: Shop) -> None:
    shop.ranges, shop.cuts = False, [1000, 300_000]
    assert desk.run(*FETCH).code == 0
    assert shop.asked == [None, "bytes=1000-", "bytes=300000-"] and saved(desk)


def test_a_download_without_etag_is_not_kept(desk: Desk, shop: Shop) -> None:
    shop.tagged, shop.cuts = False, [1000]
    failed = desk.run(*FETCH)
    assert failed.code == 8 and len(failed.err.splitlines()) == 1 and lies(desk) == []
    assert desk.run(*FETCH).code == 0
    assert shop.asked == [None, None] and saved(desk)


def test_the_part_of_a_killed_client_without_etag_is_replaced(desk: Desk, shop: Shop) -> None:
    go_on = threading.Event()
    shop.tagged, shop.cuts, shop.after = False, [1000], lambda: go_on.wait(90)
    with desk.start(*FETCH) as process:
        part = desk.folder / PART
        eventually(lambda: part.exists() and part.stat().st_size == 1000, "the first bytes are stored")
        process.kill()
        process.communicate(timeout=90)
    go_on.set()
    assert lies(desk) == [PART, NOTE]
    assert desk.run(*FETCH).code == 0 and saved(desk)


def test_refused_requests_keep_the_part(desk: Desk, shop: Shop, local: FakeServer) -> None:
    interrupted(desk, shop)
    usual = local.replies.pop(("GET", f"{BASE}/execs/w-1/result"))
    for status, code in ((401, 9), (403, 9), (507, 1)):
        local.replies["GET", f"{BASE}/execs/w-1/result"] = Reply(status, b"Error: No.\n")
        assert desk.run(*FETCH).code == code and lies(desk) == [PART, NOTE]
    (desk.folder / NAME).write_text("mine")
    local.replies["GET", f"{BASE}/execs/w-1/result"] = usual
    assert "--force" in desk.run(*FETCH).err and lies(desk) == [NAME, PART, NOTE]
    assert desk.run(*FETCH, "--force").code == 0 and saved(desk)


@pytest.mark.parametrize("suffix", [".part", ".part.json"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "folder", "pipe", "file"])
def test_foreign_files_with_the_name_of_a_part_are_not_changed(desk: Desk, shop: Shop, suffix: str, kind: str) -> None:
    victim, place = desk.folder / "victim", desk.folder / (NAME + suffix)
    victim.write_text("precious")
    make: dict[str, Callable[[], Any]] = {
        "link": lambda: place.symlink_to(victim), "dangling link": lambda: place.symlink_to(desk.home / "new"),
        "folder": place.mkdir, "pipe": lambda: os.mkfifo(place), "file": lambda: place.write_text("mine"),
    }
    make[kind]()
    before = lies(desk)
    for more in ((), ("--force",)):
        failed = desk.run(*FETCH, *more, "-o", "json")
        assert (failed.code, failed.error) == (1, "result.failed") and place.name in failed.err, failed
    assert lies(desk) == before and victim.read_text() == "precious" and os.listdir(desk.home) == []
    assert kind != "file" or place.read_text() == "mine"


@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_a_part_replaced_by_a_link_is_not_followed(desk: Desk, shop: Shop, link: str) -> None:
    interrupted(desk, shop)
    victim = desk.home / "victim"
    victim.write_text("precious")
    (desk.folder / PART).unlink()
    (os.symlink if link == "symbolic" else os.link)(victim, desk.folder / PART)
    done = desk.run(*FETCH)
    assert done.code == (1 if link == "symbolic" else 0) and victim.read_text() == "precious"
    assert link == "symbolic" or saved(desk)


def test_two_simultaneous_downloads_do_not_mix(desk: Desk, shop: Shop) -> None:
    interrupted(desk, shop)
    with (desk.folder / NOTE).open("r+b") as note:
        fcntl.flock(note, fcntl.LOCK_EX)
        failed = desk.run(*FETCH)
        assert failed.code == 1 and "another dlicmd" in failed.err and len(failed.err.splitlines()) == 1
    assert (desk.folder / PART).read_bytes() == ZIP[:100_000]
    assert desk.run(*FETCH).code == 0 and saved(desk)


def test_the_part_of_another_exec_is_not_used(desk: Desk, shop: Shop, local: FakeServer) -> None:
    interrupted(desk, shop)
    local.execs["w-2"] = exec_object("w-2", state="FINISHED")
    local.results["w-2"] = Reply(200, b"PK2", described(b"PK2", "two.zip"))
    assert desk.run("--exec-trainresult", "w-2").code == 0
    assert lies(desk) == [PART, NOTE, "two.zip"] and "range" not in local.requests("GET", "w-2/result")[0].headers


@pytest.mark.parametrize("name", ["report.part", "report.part.json", "report.PART"])
def test_a_result_is_never_named_like_a_part(desk: Desk, shop: Shop, name: str) -> None:
    shop.name = name
    assert desk.run(*FETCH).code == 0 and saved(desk, name=name + ".zip")


def test_a_failed_write_leaves_no_files(desk: Desk, shop: Shop) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    with desk.start(*FETCH, preexec_fn=limit) as process:
        _, err = process.communicate(timeout=90)
    assert process.returncode == 1 and b"cannot store" in err and len(err.splitlines()) == 1 and lies(desk) == []


def test_more_bytes_than_announced_are_refused(desk: Desk, shop: Shop, local: FakeServer) -> None:
    headers = described(ZIP) | {"Content-Length": "", "Connection": "close"}
    body = b"%x\r\n" % (len(ZIP) + 1) + ZIP + b"x\r\n0\r\n\r\n"
    local.replies["GET", f"{BASE}/execs/w-1/result"] = Reply(200, body, headers | {"Transfer-Encoding": "chunked"})
    failed = desk.run(*FETCH)
    assert failed.code == 1 and "damaged" in failed.err and lies(desk) == []


class Stub:
    """A stand-in for a client: call n shows behavior n; later calls show a good server."""

    def __init__(self, behaviours: list[tuple[str, int]]) -> None:
        self.behaviours = list(behaviours)
        self.data = ZIP[:2000]
        self.retries = 2

    def result(self, _exec_id: str, start: int = 0, tag: str = "") -> Answer:
        kind, cut = self.behaviours.pop(0) if self.behaviours else ("good", 1 << 30)
        if kind == "gone":
            raise ConnectionLost("gone")
        if kind == "changed":
            self.data = self.data[1:] + b"c"
        if kind == "416" and start:
            raise ServerError("no such range", 416)
        if kind == "whole" or tag != etag(self.data):
            start = 0
        headers = described(self.data)
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(self.data) - 1}/{len(self.data)}"
        return Answer(206 if start else 200, headers.items(), self._chunks(self.data[start:], cut))

    def _chunks(self, data: bytes, cut: int) -> Iterator[bytes]:
        for at in range(0, min(len(data), cut), 100):
            yield data[at:min(at + 100, cut)]
        if cut < len(data):
            raise ConnectionLost("cut")


KINDS = st.sampled_from(["good", "whole", "changed", "416", "gone"])


@settings(max_examples=examples(150), deadline=None)
@given(calls=st.lists(st.lists(st.tuples(KINDS, st.integers(0, 2100)), max_size=6), min_size=1, max_size=4))
def test_a_result_is_complete_or_absent_after_any_sequence_of_failures(calls: list[list[tuple[str, int]]]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "RESUME_DELAYS", (0.0,))
        stub = Stub([])
        for behaviours in [*calls, []]:
            stub.behaviours = list(behaviours)
            try:
                target = results.fetch(stub, results.Wanted("w-1"), Path(folder), True)  # type: ignore[arg-type]
            except DlicmdError:
                assert set(os.listdir(folder)) <= {NAME, PART, NOTE}
            else:
                assert os.listdir(folder) == [NAME] and target.read_bytes() == stub.data
        assert (Path(folder) / NAME).read_bytes() == stub.data


def test_the_note_contains_no_secret(desk: Desk, shop: Shop) -> None:
    interrupted(desk, shop)
    said = json.loads((desk.folder / NOTE).read_text())
    assert sorted(said) == ["digest", "etag", "exec_id", "path", "size"]


def test_a_download_over_tls_is_resumed(desk: Desk, tmp_path: Path) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with FakeServer(tls=context) as server:
        shop = Shop(server)
        shop.cuts = [100_000, 100_000, 300_000]
        done = desk.run(*FETCH, "--rest-host", "localhost", "--rest-port", str(server.port), "--jwt-token", TOKEN,
                        "--ca-cert", str(tmp_path / "ca.pem"))
    # A connection may lose less than one chunk.
    starts = [int(asked.removeprefix("bytes=").removesuffix("-")) for asked in shop.asked if asked]
    assert done.code == 0 and saved(desk), done
    assert shop.asked[0] is None and len(starts) == 3 and 0 < starts[0] <= starts[1] <= 100_000 < starts[2] <= 300_000
