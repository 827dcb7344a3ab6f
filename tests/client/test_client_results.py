"""Fetch a result: it is checked, and written only where the user wants it."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, Seen, exec_object

ZIP = b"PK\x05\x06" + bytes(18) + b"x" * 300_000
NAME = "dlpd-model-1-2w-1-result.zip"


def digest(data: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"


def result(disposition: str | None, **headers: str) -> Reply:
    named = {} if disposition is None else {"Content-Disposition": disposition}
    return Reply(200, ZIP, named | {name.replace("_", "-"): value for name, value in headers.items()})


@pytest.fixture
def done(local: FakeServer) -> FakeServer:
    local.execs["w-1"] = exec_object("w-1", state="FINISHED")
    local.results["w-1"] = result(f"attachment;filename={NAME};size={len(ZIP)}", Repr_Digest=digest(ZIP))
    return local


def test_a_result_is_saved_in_the_current_or_the_given_folder(desk: Desk, done: FakeServer) -> None:
    assert desk.run("--exec-trainresult", "w-1").out == f"Train result is saved to {NAME}\n"
    assert (desk.folder / NAME).read_bytes() == ZIP
    (desk.folder / "out").mkdir()
    assert desk.run("--exec-trainresult", "w-1", "--to", "out").out == f"Train result is saved to out/{NAME}\n"
    assert os.listdir(desk.folder / "out") == [NAME]


def test_a_file_is_not_overwritten_without_force(desk: Desk, done: FakeServer) -> None:
    (desk.folder / NAME).write_text("mine")
    refused = desk.run("--exec-trainresult", "w-1")
    assert refused.code == 1 and "--force" in refused.err and (desk.folder / NAME).read_text() == "mine"
    assert desk.run("--exec-trainresult", "w-1", "--force").code == 0
    assert (desk.folder / NAME).read_bytes() == ZIP
    for kind in ("folder", "link"):
        (desk.folder / NAME).unlink(missing_ok=True)
        (desk.folder / NAME).mkdir() if kind == "folder" else (desk.folder / NAME).symlink_to(desk.folder / "victim")
        blocked = desk.run("--exec-trainresult", "w-1", "--force", "-o", "json")
        assert (blocked.code, blocked.error) == (1, "result.failed") and NAME in blocked.err
        if kind == "folder":
            (desk.folder / NAME).rmdir()
    assert not (desk.folder / "victim").exists()
    assert [path.name for path in desk.folder.iterdir()] == [NAME]


def test_fetching_an_existing_equal_result_succeeds(desk: Desk, done: FakeServer) -> None:
    first = desk.run("--exec-trainresult", "w-1")
    before = (desk.folder / NAME).stat().st_mtime_ns
    again = desk.run("--exec-trainresult", "w-1")
    assert (again.code, again.out) == (0, first.out)
    assert (desk.folder / NAME).stat().st_mtime_ns == before
    assert [path.name for path in desk.folder.iterdir()] == [NAME]
    (desk.folder / NAME).write_bytes(ZIP[:-1] + b"y")
    assert desk.run("--exec-trainresult", "w-1").code == 1, "the size is the same, but the content differs"


@pytest.mark.parametrize(
    "reply",
    [
        result(f"attachment;filename={NAME};size={len(ZIP)}", Repr_Digest=digest(b"other")),
        result(f"attachment;filename={NAME};size=5"),
        result(f"attachment;filename={NAME}", Content_Length=str(len(ZIP) + 1)),
    ],
    ids=["checksum", "size", "cut"],
)
def test_a_damaged_result_is_not_saved(desk: Desk, done: FakeServer, reply: Reply) -> None:
    done.results["w-1"] = reply
    reply.headers["Connection"] = "close"
    failed = desk.run("--exec-trainresult", "w-1")
    assert failed.code in (1, 8) and len(failed.err.splitlines()) == 1
    assert os.listdir(desk.folder) == []


HOSTILE = [
    "../../evil.zip", "/etc/evil.zip", "..", ".", "", "/", "\\..\\..\\evil.zip", "C:\\evil.zip", "a/b/../../evil.zip",
    ".bashrc", ".ssh", "~/evil", "~root", "-rf", "--help", "con", "NUL.zip", "lpt1.txt", "e\x1b[31mvil.zip",
    "e\x00.zip", "evil.zip ", " evil", "\u202egpj.exe", "a" * 5000, "ü" * 300, '"quoted.zip"', '"../q\\"uoted.zip"',
    "%2e%2e%2fevil", "evil?.zip", "e*v|i<l>.zip", "evil:stream", "....//evil", "x;y", "\ufeff.zip",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_names_of_a_server_are_replaced(desk: Desk, done: FakeServer, name: str) -> None:
    from dlicmd.sdk.results import file_name

    chosen = file_name(f"attachment;filename={name};size=1", "w-1")
    assert chosen and chosen == os.path.basename(chosen) and not chosen.startswith((".", "-", "~"))
    assert chosen.isprintable() and len(chosen.encode()) <= 200 and not set(chosen) & set('<>:"|?*\\/')
    assert Path(chosen).stem.lower() not in {"con", "nul", "lpt1"}
    if not name.isascii() or not name.isprintable():
        return
    (desk.folder.parent / "evil.zip").write_text("mine")
    done.results["w-1"] = result(f"attachment;filename={name};size={len(ZIP)}")
    assert desk.run("--exec-trainresult", "w-1").code == 0
    assert os.listdir(desk.folder) == [chosen]
    assert (desk.folder.parent / "evil.zip").read_text() == "mine"
    assert os.listdir(desk.home) == []


def test_a_result_without_a_name_gets_a_default_name(desk: Desk, done: FakeServer) -> None:
    done.results["w-1"] = result(None)
    assert desk.run("--exec-trainresult", "w-1").out == "Train result is saved to dlpd-model-w-1-result.zip\n"


def test_a_chunked_answer_needs_no_length(desk: Desk, done: FakeServer) -> None:
    chunked = b"%x\r\n" % len(ZIP) + ZIP + b"\r\n0\r\n\r\n"

    def answer(_seen: Seen) -> Reply:
        return Reply(200, chunked, {"Content-Length": "", "Transfer-Encoding": "chunked"})

    done.replies["GET", f"{BASE}/execs/w-1/result"] = answer
    assert desk.run("--exec-trainresult", "w-1").code == 0
    assert (desk.folder / "dlpd-model-w-1-result.zip").read_bytes() == ZIP


def test_an_unwritable_folder_is_reported(desk: Desk, done: FakeServer) -> None:
    failed = desk.run("--exec-trainresult", "w-1", "--to", "/proc")
    assert failed.code == 1 and "cannot store" in failed.err and len(failed.err.splitlines()) == 1
