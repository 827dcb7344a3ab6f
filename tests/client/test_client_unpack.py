"""Unpack a result: completely or not at all, and only below the given folder."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import stat
import zipfile
from pathlib import Path

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, exec_object

COMMAND = ["--exec-trainresult", "w-1", "--unpack"]


def packed(*members: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


GOOD = packed(("model/", b""), ("model/weights.pth", b"w" * 5000), ("model/log/.a b", b"ok"), ("empty/", b""))


def serve(server: FakeServer, content: bytes, **headers: str) -> None:
    server.execs["w-1"] = exec_object("w-1", state="FINISHED")
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    server.results["w-1"] = Reply(200, content, {
        "Content-Disposition": f"attachment;filename=r.zip;size={len(content)}", "ETag": '"e"',
        "Repr-Digest": f"sha-256=:{digest}:", **headers})


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
            for path in sorted(folder.rglob("*"))}


FILES = {"empty": None, "model": None, "model/log": None, "model/log/.a b": b"ok", "model/weights.pth": b"w" * 5000}


def test_a_result_is_unpacked_without_leaving_the_zip(desk: Desk, local: FakeServer) -> None:
    serve(local, GOOD)
    (desk.folder / "out").mkdir()
    done = desk.run(*COMMAND, "--to", "out")
    assert (done.code, done.out) == (0, "Train result is unpacked to out (2 files)\n"), done
    assert tree(desk.folder / "out") == FILES
    assert desk.run(*COMMAND).code == 0
    assert (desk.folder / "model" / "weights.pth").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def test_a_file_is_not_overwritten_without_force(desk: Desk, local: FakeServer) -> None:
    serve(local, GOOD)
    assert desk.run(*COMMAND).code == 0
    assert desk.run(*COMMAND).code == 0
    (desk.folder / "model" / "log" / ".a b").write_text("mine")
    (desk.folder / "model" / "weights.pth").unlink()
    before = tree(desk.folder)
    refused = desk.run(*COMMAND, "-o", "json")
    assert (refused.code, refused.error) == (1, "result.failed") and "model/log/.a b" in refused.err
    assert tree(desk.folder) == before
    assert desk.run(*COMMAND, "--force").code == 0
    assert tree(desk.folder) == FILES


@pytest.mark.parametrize("place", ["model", "model/weights.pth", "empty"])
@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
def test_links_are_not_followed(desk: Desk, local: FakeServer, place: str, force: list[str]) -> None:
    serve(local, GOOD)
    victim = desk.home / "victim"
    victim.mkdir()
    (desk.folder / place).parent.mkdir(exist_ok=True)
    (desk.folder / place).symlink_to(victim)
    done = desk.run(*COMMAND, *force, "-o", "json")
    assert (done.code, done.error) == (1, "result.failed") and place in done.err
    assert tree(victim) == {} and not (desk.folder / "model" / "log").exists()


def test_a_folder_is_not_replaced_by_a_file(desk: Desk, local: FakeServer) -> None:
    serve(local, GOOD)
    (desk.folder / "model" / "weights.pth").mkdir(parents=True)
    before = tree(desk.folder)
    done = desk.run(*COMMAND, "--force", "-o", "json")
    assert (done.code, done.error) == (1, "result.failed") and "weights.pth" in done.err
    assert tree(desk.folder) == before


def special(mode: int) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo("model/x")
    member.create_system, member.external_attr = 3, mode << 16
    return member


def flagged(name: str) -> bytes:
    """Return a zip whose only file has the flag for encryption."""
    content = bytearray(packed((name, b"x")))
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


GOOD_FILE = ("model/good", b"good")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (packed(GOOD_FILE, ("../up", b"x")), "points outside"), (packed(GOOD_FILE, ("/abs", b"x")), "points outside"),
        (packed(GOOD_FILE, ("a/../../up", b"x")), "points outside"), (packed(("a//b", b"x")), "points outside"),
        (packed(("c:/up", b"x")), "points outside"), (packed(("a\\..\\up", b"x")), "points outside"),
        (packed(("\x1b]0;x\x07", b"x")), "points outside"), (packed(("./a", b"x")), "points outside"),
        (packed(GOOD_FILE, (special(stat.S_IFLNK | 0o777), b"/etc/passwd")), "a link or a special file"),
        (packed(GOOD_FILE, (special(stat.S_IFIFO | 0o666), b"")), "a link or a special file"),
        (flagged("model/x"), "it is encrypted"), (packed(("a", b"x"), method=zipfile.ZIP_LZMA), "method"),
        (packed(("a", b"x"), ("a/b", b"y")), "cannot unpack"),
        (b"no zip", "it is not a valid zip"), (GOOD[:-30], "it is not a valid zip"),
        (packed(("a", b"okay"), method=zipfile.ZIP_STORED).replace(b"okay", b"nope"), "it is not a valid zip"),
    ],
)
def test_a_refused_zip_leaves_no_files(desk: Desk, local: FakeServer, content: bytes, said: str) -> None:
    serve(local, content)
    done = desk.run(*COMMAND)
    assert done.code == 1 and done.out == "", done
    assert said in done.err and done.err.count("\n") == 1 and "\x1b" not in done.err and "Traceback" not in done.err
    assert tree(desk.folder) == {} and not (desk.folder.parent / "up").exists()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_zip_with_a_repeated_name_is_refused(desk: Desk, local: FakeServer) -> None:
    serve(local, packed(("a", b"x"), ("a", b"y")))
    done = desk.run(*COMMAND, "-o", "json")
    assert (done.code, done.error) == (1, "result.failed") and "twice" in done.err and tree(desk.folder) == {}


def test_a_result_larger_than_the_disk_is_refused(desk: Desk, local: FakeServer) -> None:
    """The client uses the sizes in a zip only to refuse it."""
    huge = bytearray(packed(*[(f"f{number}", b"") for number in range(20_000)]))
    at = huge.find(b"PK\x01\x02")
    while at >= 0:
        huge[at + 24 : at + 28] = b"\xfe\xff\xff\xff"
        at = huge.find(b"PK\x01\x02", at + 1)
    serve(local, bytes(huge))
    done = desk.run(*COMMAND, "-o", "json")
    assert (done.code, done.error) == (1, "result.failed") and tree(desk.folder) == {} and "needs" in done.err


def test_an_interrupted_download_is_resumed(desk: Desk, local: FakeServer) -> None:
    serve(local, GOOD)
    whole = local.results["w-1"]
    cut = Reply(200, GOOD[:200], {**whole.headers, "Content-Length": str(len(GOOD)), "Connection": "close"})
    answers = iter([cut, Reply(500, b"Error 500: away.\n")])
    local.replies["GET", f"{BASE}/execs/w-1/result"] = lambda _: next(answers)
    assert desk.run(*COMMAND).code == 1
    assert next(iter(tree(desk.folder))) == ".w-1.unpack" and not (desk.folder / "model").exists()
    local.replies.clear()
    assert desk.run(*COMMAND).code == 0
    assert local.requests("GET", "/result")[-1].headers["range"] == "bytes=200-"
    assert tree(desk.folder) == FILES


@pytest.mark.parametrize("name", [".bashrc", "model/.envrc", ".git/config", "new/.git/hooks/post-checkout"])
def test_hidden_files_are_not_unpacked_among_files_of_the_user(desk: Desk, local: FakeServer, name: str) -> None:
    serve(local, packed(("a", b"a"), (name, b"x")))
    (desk.folder / "model").mkdir()
    done = desk.run(*COMMAND, "-o", "json")
    assert (done.code, done.error) == (1, "result.failed") and list(tree(desk.folder)) == ["model"]
    assert desk.run(*COMMAND, "--force").code == 0 and tree(desk.folder)[name] == b"x"
