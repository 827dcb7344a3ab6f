"""Uploads of data: where files lie then, who may store them where, and what is refused."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from data_source_calls import look
from live_server import TOKEN, Answer, Live, multipart

import dlicmd
from dlicmd.contract import wire
from dlicmd.sdk import data_calls
from local_backend.settings import Quotas

DIGITS = {"type": "fs", "location": {"paths": "digits"}}
FILES = {"a.csv": b"1,2\n", "inner/b.bin": b"\0\xff"}


def send(live: Live, files: dict[str, bytes], token: str = TOKEN, **query: str) -> Answer:
    body, kind = multipart([("file", name, content) for name, content in files.items()])
    return live.call("POST", f"/data/files?{urlencode(query)}", body, {"Content-Type": kind}, token=token)


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def audited(live: Live) -> list[tuple[Any, ...]]:
    lines = (live.settings.home / "audit.log").read_text().splitlines()
    return [(entry["about"], entry["outcome"], entry.get("code")) for entry in map(json.loads, lines)
            if entry["action"] == "data.upload"]


@pytest.fixture
def team(start: Callable[..., Live]) -> Live:
    """A server for several users with shared data, a volume for all users, and one for carol alone."""
    live = start(embedded=False, jobs_share_server_account=True)
    (live.settings.data_fs / "shared").mkdir(parents=True)
    for name in ("open", "closed"):
        (live.settings.paths.volumes / name).mkdir(parents=True)
    live.settings.paths.volume_users.write_text(json.dumps({"closed": ["carol"]}))
    return live


def test_files_and_folders_are_stored_for_jobs(live: Live) -> None:
    answer = send(live, FILES, path="digits")
    assert answer.json() == {"path": "digits", "files": 2, "bytes": 6}
    folder = live.settings.data_fs / "digits"
    assert content(folder) == FILES and not list(live.settings.paths.incoming.iterdir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and stat.S_IMODE((folder / "a.csv").stat().st_mode) == 0o600
    [found] = look(live, DIGITS).json()
    assert found["ok"] and found["files"] == 2
    assert audited(live) == [(["digits"], "done", None)]
    assert send(live, {"top.txt": b"x"}).json()["path"] == ""
    assert (live.settings.data_fs / "top.txt").read_bytes() == b"x"


def test_nothing_is_stored_if_a_file_exists_unless_it_is_to_be_replaced(live: Live) -> None:
    send(live, FILES, path="digits")
    again = {"a.csv": b"new", "c.csv": b"c", "inner/b.bin": b""}
    refused = send(live, again, path="digits")
    assert refused.error == (409, "data.exists") and "a.csv and 1 more" in refused.text
    folder = live.settings.data_fs / "digits"
    assert content(folder) == FILES
    assert send(live, again, path="digits", replace="true").json()["files"] == 3
    assert content(folder) == again
    folder = send(live, {"inner": b"not a folder"}, path="digits", replace="true")
    assert folder.error == (409, "data.exists")
    assert send(live, {"x": b"1"}, path="y", replace="perhaps").error == (400, "query.value")


@pytest.mark.parametrize(("path", "name"), [
    ("..", "x"), ("a/../../b", "x"), ("a\nb", "x"), ("ok", "../x"), ("ok", "a/../x"), ("ok", "/"), ("ok", "folder/"),
    ("ok", "x" * 256), ("/".join("a" * 65), "x"), ("file.txt", "x"), ("link", "x"), ("ok", "file.txt/x"),
    (".data.0.dlicmd-cache", "x"),
])
def test_no_path_leads_elsewhere(live: Live, path: str, name: str) -> None:
    top = live.settings.data_fs
    (top / "ok").mkdir(parents=True)
    for folder in (top, top / "ok"):
        (folder / "file.txt").write_text("1")
    outside = live.settings.home.parent / "outside"
    outside.mkdir()
    (top / "link").symlink_to(outside)
    assert send(live, {name: b"1"}, path=path, replace="true").error == (400, "data.path")
    assert not list(outside.iterdir()) and content(top / "ok") == {"file.txt": b"1"}
    assert sorted(os.listdir(top)) == ["file.txt", "link", "ok"]
    assert not (live.settings.home / "x").exists()


def test_a_link_in_place_of_a_file_is_replaced_and_not_followed(live: Live) -> None:
    secret = live.settings.home.parent / "secret"
    secret.write_text("secret")
    live.settings.data_fs.mkdir(exist_ok=True)
    (live.settings.data_fs / "a").symlink_to(secret)
    assert send(live, {"a": b"1"}).error == (409, "data.exists")
    assert send(live, {"a": b"1"}, replace="true").status == 200
    assert secret.read_text() == "secret" and content(live.settings.data_fs) == {"a": b"1"}


def test_an_upload_without_files_is_refused(live: Live) -> None:
    assert send(live, {"": b""}).error == (400, "data.no_files")


@pytest.mark.parametrize("names", [("a", "a"), ("a", "./a"), ("a", "a/b"), ("x/a/b", "x/a")])
def test_an_upload_has_each_name_once(live: Live, names: tuple[str, str]) -> None:
    body, kind = multipart([("file", name, b"1") for name in names])
    answer = live.call("POST", "/data/files", body, {"Content-Type": kind})
    assert answer.error == (400, "data.path") and not os.listdir(live.settings.data_fs)


def test_users_of_a_team_store_files_in_their_own_folders(team: Live) -> None:
    bob, carol = team.add_user("bob"), team.add_user("carol")
    top = team.settings.data_fs
    assert team.call("GET", "/data/files?path=users/bob", token=bob).json()["entries"] == []
    for path in ("digits", "users/bob/digits", "/digits"):
        answer = send(team, {f"{path.replace('/', '_')}.txt": b"1"}, bob, path=path)
        assert answer.json()["path"] == "users/bob/digits", path
    assert len(content(top / "users" / "bob" / "digits")) == 3
    assert send(team, FILES, bob, path="shared").error == (403, "data.shared")
    assert send(team, FILES, bob, path="shared/new").error == (403, "data.shared")
    assert send(team, FILES, bob, path="users/bob/shared").status == 200, "a name of the user's own"
    for path in ("users/carol", "users/carol/x", "users"):
        assert send(team, FILES, bob, path=path).error == (400, "data.path"), path
    assert sorted(os.listdir(top / "users")) == ["bob"] and not content(top / "shared")
    [found] = look(team, DIGITS, token=bob).json()
    assert found["ok"] and found["files"] == 3
    hidden = look(team, {"type": "fs", "location": {"paths": "users/bob/digits"}}, token=carol)
    assert hidden.error == (400, "data.invalid")


def test_volumes_take_files_of_their_users(team: Live) -> None:
    bob, carol = team.add_user("bob"), team.add_user("carol")
    assert send(team, FILES, bob, volume="open", path="b").json() == {"path": "b", "files": 2, "bytes": 6}
    assert content(team.settings.paths.volumes / "open" / "b") == FILES
    assert send(team, FILES, bob, volume="closed").error == (404, "data.not_found")
    assert send(team, FILES, bob, volume="none").error == (404, "data.not_found")
    assert send(team, FILES, carol, volume="closed").status == 200
    # A volume whose folder is inside another one stays closed by that way, too.
    inner = team.settings.paths.volumes / "open" / "inner"
    inner.mkdir()
    (team.settings.paths.volumes / "nested").symlink_to(inner)
    team.settings.paths.volume_users.write_text(json.dumps({"closed": ["carol"], "nested": ["carol"]}))
    assert send(team, FILES, bob, volume="open", path="inner").error == (400, "data.path")
    assert not content(inner)


def test_a_volume_that_a_program_leads_elsewhere_takes_no_files(team: Live) -> None:
    way = team.settings.paths.volumes / "open" / "way"
    way.mkdir()
    (team.settings.paths.volumes / "second").symlink_to(way)
    assert send(team, {"a": b"1"}, volume="second").status == 200
    (way / "a").unlink()
    way.rmdir()
    way.symlink_to(team.settings.paths.jobs)
    assert send(team, {"a": b"1"}, volume="second").error == (400, "data.path")
    assert not list(team.settings.paths.jobs.iterdir())


def test_limits_of_uploads_hold(start: Callable[..., Live]) -> None:
    live = start(embedded=False, jobs_share_server_account=True, quotas=Quotas(stored_bytes=200_000),
                 limits={"upload_bytes": 400_000})
    live.settings.data_fs.mkdir(parents=True, exist_ok=True)
    assert send(live, {"a": b"x" * 150_000}).status == 200
    refused = send(live, {"b": b"x" * 150_000})
    assert refused.error == (507, "quota.bytes") and "users/alice" in refused.text
    assert send(live, {"b": b"x" * 500_000}).error == (413, "submission.too_large")
    assert list(content(live.settings.data_fs / "users" / "alice")) == ["a"]
    assert not list(live.settings.paths.incoming.iterdir())
    assert [outcome for _, outcome, _ in audited(live)] == ["done", "refused", "refused"]


def test_a_token_that_only_reads_stores_nothing(team: Live) -> None:
    made = team.call("POST", "/tokens", json.dumps({"name": "ci", "scope": "read", "expiresIn": 3600}).encode(),
                     {"Content-Type": "application/json"}).json()
    assert send(team, FILES, made["token"]).error == (403, "auth.scope")


def test_an_upload_from_another_disk_is_copied(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def renamed(source: Any, target: Any, **more: Any) -> None:
        if str(live.settings.paths.incoming) in str(source) and "dst_dir_fd" in more:
            raise OSError(18, "Invalid cross-device link")
        rename(source, target, **more)

    monkeypatch.setattr(os, "rename", renamed)
    assert send(live, FILES, path="far").status == 200
    assert content(live.settings.data_fs / "far") == FILES


def test_the_extension_is_offered(live: Live) -> None:
    assert wire.EXT_DATA_UPLOAD in live.call("GET", "/conf").json()["DLICMD_EXTENSIONS"].split(",")


@pytest.fixture
def client(live: Live) -> dlicmd.Client:
    return dlicmd.Client("127.0.0.1", live.port, http=True, token=TOKEN)


def test_the_client_uploads_a_folder_in_several_calls(
    live: Live, client: dlicmd.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_calls, "_MOST_FILES", 2)
    source = tmp_path / "set"
    wanted = {"a": b"1", "in/b": b"", "in/c d": b"3" * 100_000, "in/deep/\u00e9.txt": b"4", ".hidden": b"5"}
    for name, data in wanted.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    (source / "link").symlink_to(source / "a")
    found = client.upload_data(source, "sets/one")
    assert (found.path, found.files, found.bytes) == ("sets/one", 6, 100_004)
    assert content(live.settings.data_fs / "sets" / "one") == wanted | {"link": b"1"}
    assert len(audited(live)) == 3
    with pytest.raises(dlicmd.ServerError) as refused:
        client.upload_data(source, "sets/one")
    assert refused.value.code == "data.exists"
    (source / "a").write_bytes(b"new")
    client.upload_data(source / "a", "sets/one", replace=True)
    assert (live.settings.data_fs / "sets" / "one" / "a").read_bytes() == b"new"


def test_the_client_uploads_no_part_of_a_folder_that_it_cannot_read(
    live: Live, client: dlicmd.Client, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for path in ("none", "empty"):
        with pytest.raises(dlicmd.UsageProblem):
            client.upload_data(tmp_path / path)
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / "a").write_text("1")
    (odd / "gone").symlink_to(tmp_path / "none")
    with pytest.raises(dlicmd.PackageError):
        client.upload_data(odd)
    (odd / "gone").unlink()
    os.mkfifo(odd / "pipe")
    with pytest.raises(dlicmd.PackageError):
        client.upload_data(odd)
    (odd / "pipe").unlink()
    (odd / "folder").symlink_to(tmp_path)
    with pytest.raises(dlicmd.PackageError):
        client.upload_data(odd)
    with pytest.raises(dlicmd.SubmissionRefused) as refused:
        client.upload_data(odd / "a", "../x")
    assert refused.value.code == "data.path" and not os.listdir(live.settings.data_fs)
