"""Files that a program wrote: which of them are fetched, and where they are stored."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_desk import Desk
from fake_server import BASE, TOKEN, FakeServer, Reply, Seen, exec_object

import dlicmd
from dlicmd.sdk import results
from dlicmd.sdk.errors import ResultError, ServerError, UsageProblem
from dlicmd.sdk.files import chosen, fetch_files

WRITTEN = {
    "model/a.bin": b"a" * 2000, "model/sub/b.bin": b"b", "out/plot.png": b"p", "out/log.txt": b"1", "log.txt": b"22",
    "weights.bin": b"w" * 100_000,
}


@pytest.fixture
def shop() -> Iterator[FakeServer]:
    with FakeServer("files") as server:
        server.execs["w-1"] = exec_object("w-1", state="FINISHED")
        server.files["w-1"] = dict(WRITTEN)
        yield server


@pytest.fixture
def client(shop: FakeServer) -> dlicmd.Client:
    return dlicmd.Client("127.0.0.1", shop.port, http=True, token=TOKEN, retries=0)


def fetched(client: dlicmd.Client, folder: Path, *words: str, force: bool = False) -> list[str]:
    choices = chosen(client.files("w-1").files, words)
    paths = fetch_files(client, "w-1", choices, folder, force=force)
    return [path.relative_to(folder).as_posix() for path in paths]


def below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def contents(shop: FakeServer) -> int:
    return len(shop.requests("GET", "/files/content"))


@pytest.mark.parametrize(("words", "places"), [
    (["weights.bin"], ["weights.bin"]), (["a.bin"], ["a.bin"]), (["model/sub/b.bin"], ["b.bin"]),
    (["log.txt"], ["log.txt"]), (["./out/"], ["out/log.txt", "out/plot.png"]), (["model/sub"], ["sub/b.bin"]),
    (["*.bin"], ["model/a.bin", "model/sub/b.bin", "weights.bin"]), (["model/*"], ["model/a.bin", "model/sub/b.bin"]),
    (["plot.png", "weights.bin"], ["plot.png", "weights.bin"]), ([], sorted(WRITTEN)),
])
def test_words_select_files_and_their_places(
    client: dlicmd.Client, tmp_path: Path, words: list[str], places: list[str],
) -> None:
    assert fetched(client, tmp_path / "new" / "folder", *words) == places
    assert sorted(below(tmp_path / "new" / "folder")) == places


@pytest.mark.parametrize("words", [["nothing"], ["b.*x"], ["log.txt", "out/log.txt"], ["*.gz"], [".."], ["/etc/x"]])
def test_words_that_select_no_file_or_one_place_twice_are_refused(client: dlicmd.Client, words: list[str]) -> None:
    with pytest.raises(ResultError):
        chosen(client.files("w-1").files, words)


def test_a_name_of_two_files_is_refused(client: dlicmd.Client, shop: FakeServer) -> None:
    shop.files["w-1"]["more/plot.png"] = b""
    with pytest.raises(ResultError, match=r"out/plot\.png"):
        chosen(client.files("w-1").files, ["plot.png"])


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "a//x", "C:/x", "a\\x", "a\nb", "a/."])
def test_an_unsafe_path_of_a_server_is_refused(
    client: dlicmd.Client, shop: FakeServer, tmp_path: Path, path: str,
) -> None:
    shop.files["w-1"][path] = b"x"
    with pytest.raises(ResultError):
        fetched(client, tmp_path / "to")
    with pytest.raises(UsageProblem):
        client.fetch_file("w-1", path, tmp_path)
    assert contents(shop) == 0 and list(tmp_path.iterdir()) == []


def test_existing_files_stop_the_call_before_anything_is_fetched(
    client: dlicmd.Client, shop: FakeServer, tmp_path: Path,
) -> None:
    (tmp_path / "weights.bin").write_text("mine")
    with pytest.raises(ResultError, match=r"--force|force=True"):
        fetched(client, tmp_path)
    assert contents(shop) == 0 and below(tmp_path) == {"weights.bin": b"mine"}
    assert len(fetched(client, tmp_path, force=True)) == len(WRITTEN)
    assert below(tmp_path) == WRITTEN


@pytest.mark.parametrize("kind", ["link", "folder", "link above", "file above"])
def test_even_force_replaces_only_regular_files(
    client: dlicmd.Client, shop: FakeServer, tmp_path: Path, kind: str,
) -> None:
    folder = tmp_path / "to"
    folder.mkdir()
    if kind == "link":
        (folder / "weights.bin").symlink_to(tmp_path / "victim")
    elif kind == "folder":
        (folder / "weights.bin").mkdir()
    elif kind == "link above":
        (folder / "out").symlink_to(tmp_path)
    else:
        (folder / "out").write_text("mine")
    with pytest.raises(ResultError):
        fetched(client, folder, force=True)
    assert contents(shop) == 0 and not (tmp_path / "victim").exists() and not (tmp_path / "plot.png").exists()


def test_an_interrupted_fetch_continues(client: dlicmd.Client, shop: FakeServer, tmp_path: Path) -> None:
    path = f"{BASE}/execs/w-1/files/content"

    def cut(seen: Seen) -> Reply:
        reply = shop._file(seen, "w-1")
        if seen.query["path"] == ["weights.bin"]:
            reply.headers["Content-Length"] = str(len(reply.body))
            reply.body = reply.body[:70_000]
            shop.replies.pop(("GET", path))
            reply.headers["Connection"] = "close"
        return reply

    shop.replies["GET", path] = cut
    with pytest.raises(dlicmd.ConnectionLost):
        fetched(client, tmp_path)
    before = contents(shop)
    fetched(client, tmp_path)
    assert below(tmp_path) == WRITTEN
    [last] = shop.requests("GET", "/files/content")[before:]
    assert last.query["path"] == ["weights.bin"] and last.headers["range"].startswith("bytes=")


def test_a_second_fetch_downloads_nothing(client: dlicmd.Client, shop: FakeServer, tmp_path: Path) -> None:
    fetched(client, tmp_path)
    before = contents(shop)
    assert fetched(client, tmp_path) == sorted(WRITTEN) and contents(shop) == before
    assert os.stat(tmp_path / "log.txt").st_mtime_ns == 1_767_323_045_678_901_000


def test_one_file_is_fetched_by_the_client(client: dlicmd.Client, tmp_path: Path) -> None:
    assert client.fetch_file("w-1", "model/a.bin", tmp_path / "new") == tmp_path / "new" / "a.bin"
    assert below(tmp_path) == {"new/a.bin": WRITTEN["model/a.bin"]}
    with pytest.raises(ServerError) as found:
        client.fetch_file("w-1", "nothing", tmp_path)
    assert found.value.code == "exec.no_file"


@pytest.fixture
def at_desk(desk: Desk, shop: FakeServer) -> Desk:
    desk.embed(shop)
    return desk


def test_the_verb_lists_files(at_desk: Desk) -> None:
    done = at_desk.run("result", "w-1", "--list")
    assert done.code == 0 and [line.split()[0] for line in done.out.splitlines()[1:]] == sorted(WRITTEN)
    assert "dlicmd result w-1 --all" in done.err
    found = json.loads(at_desk.run("result", "w-1", "--list", "-o", "json").out)
    assert [file["bytes"] for file in found] == [len(WRITTEN[name]) for name in sorted(WRITTEN)]


def test_the_verb_fetches_files_into_a_new_folder(at_desk: Desk) -> None:
    done = at_desk.run("result", "w-1", "weights.bin", "out", "--to", "a/b")
    assert done.code == 0 and sorted(below(at_desk.folder / "a" / "b")) == [
        "out/log.txt", "out/plot.png", "weights.bin"]
    assert at_desk.run("result", "w-1", "plot.png").out == "Saved plot.png\n"
    assert at_desk.run("result", "w-1", "--all").code == 0 and below(at_desk.folder / "w-1") == WRITTEN
    found = json.loads(at_desk.run("result", "w-1", "a.bin", "--to", "j", "-o", "json").out)
    assert found == {"id": "w-1", "paths": ["j/a.bin"]}


def test_the_verb_gives_the_model_a_short_name(at_desk: Desk, shop: FakeServer) -> None:
    named = {"Content-Disposition": "attachment;filename=dlpd-model-1-2w-1-result.zip;size=2"}
    shop.results["w-1"] = Reply(200, b"PK", named)
    assert at_desk.run("result", "w-1", "--to", "new").out == "Train result is saved to new/w-1.zip\n"
    assert at_desk.run("--exec-trainresult", "w-1").code == 0
    assert sorted(below(at_desk.folder)) == ["dlpd-model-1-2w-1-result.zip", "new/w-1.zip"]


def test_a_job_without_a_model_shows_its_files(at_desk: Desk, shop: FakeServer) -> None:
    shop.results["w-1"] = Reply(400, b"Error 400: none.\n", {"X-DLI-Error-Code": "exec.no_result"})
    done = at_desk.run("result", "w-1")
    assert done.code == 1 and "weights.bin" in done.out and "dlicmd result w-1 --all" in done.err
    done = at_desk.run("result", "w-1", "-o", "json")
    assert (done.out, done.error) == ("", "exec.no_result")
    done = at_desk.run("--exec-trainresult", "w-1")
    assert done.code == 1 and "weights.bin" not in done.out


@pytest.mark.parametrize(("state", "next_one"), [
    ("RUNNING", "dlicmd wait w-1"), ("PENDING_CRD_SCHEDULER", "dlicmd wait w-1"), ("FINISHED", "dlicmd logs w-1"),
])
def test_a_job_without_files_leads_to_the_next_command(
    at_desk: Desk, shop: FakeServer, state: str, next_one: str,
) -> None:
    shop.results["w-1"] = Reply(400, b"Error 400: none.\n", {"X-DLI-Error-Code": "exec.no_result"})
    shop.files["w-1"] = {}
    shop.execs["w-1"]["state"] = state
    done = at_desk.run("result", "w-1")
    assert (done.code, done.out) == (1, "") and next_one in done.err
    done = at_desk.run("result", "w-1", "--list")
    assert (done.code, done.out) == (0, "") and done.err.endswith("yet\n") == (state != "FINISHED")


@pytest.mark.parametrize("words", [["--list", "--all"], ["--list", "x"], ["--all", "x"], ["x", "--unpack"]])
def test_contradicting_words_are_usage_errors(at_desk: Desk, words: list[str]) -> None:
    assert at_desk.run("result", "w-1", *words).code == 2


def test_another_server_gives_the_model_alone(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1", state="FINISHED")
    for words in (["--list"], ["--all"], ["x"]):
        done = desk.run("result", "w-1", *words)
        assert done.code == 1 and "'files'" in done.err


HIDDEN = [".bashrc", ".ssh/authorized_keys", "sub/.envrc"]


@pytest.mark.parametrize("path", [*HIDDEN, ".git/hooks/post-checkout", "sub/.GIT/config"])
def test_hidden_files_are_not_stored_among_files_of_the_user(
    client: dlicmd.Client, shop: FakeServer, tmp_path: Path, path: str,
) -> None:
    shop.files["w-1"] = {path: b"x", "sub/a": b"a"}
    (tmp_path / "sub").mkdir()
    (tmp_path / "mine").write_text("mine")
    for words in ([], [path.partition("/")[0]] if path.startswith("sub/") else ["*"]):
        with pytest.raises(ResultError, match="hidden"):
            fetched(client, tmp_path, *words)
    assert contents(shop) == 0 and below(tmp_path) == {"mine": b"mine"}
    assert fetched(client, tmp_path, path) == [Path(path).name], "the user names the file"
    assert path in fetched(client, tmp_path, force=True)


@pytest.mark.parametrize("path", HIDDEN)
def test_hidden_files_are_stored_in_a_folder_of_their_job(
    client: dlicmd.Client, shop: FakeServer, tmp_path: Path, path: str,
) -> None:
    shop.files["w-1"] = {path: b"x", "a": b"a"}
    for folder in (tmp_path / "new", tmp_path / "w-1", tmp_path / "w-1"):
        assert sorted(fetched(client, folder)) == sorted(["a", path])
    shop.files["w-1"][".git/config"] = b"x"
    with pytest.raises(ResultError, match="hidden"):
        fetched(client, tmp_path / "w-1")


@pytest.mark.parametrize("names", [["Model.bin", "model.bin"], ["A/x", "a/x"], ["\u00e9", "e\u0301"]])
def test_names_that_the_disk_takes_for_one_another_are_refused(
    client: dlicmd.Client, shop: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str],
) -> None:
    shop.files["w-1"] = dict.fromkeys(names, b"x")
    assert sorted(fetched(client, tmp_path / "linux")) == sorted(names)
    monkeypatch.setattr(results, "folds_names", lambda _: True)
    before = contents(shop)
    for force in (False, True):
        with pytest.raises(ResultError, match="both"):
            fetched(client, tmp_path / "mac", force=force)
    assert contents(shop) == before and not (tmp_path / "mac").exists()
