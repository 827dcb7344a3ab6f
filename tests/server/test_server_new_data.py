"""Data paths that do not exist yet, and the folders that the server creates for them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from data_source_calls import look
from live_server import Answer, Live

from dlicmd.contract import wire
from local_backend.services import submissions

SINGLE = "--exec-start PyTorch --model-main main.py"
STRICT = {wire.PREFER: wire.STRICT}
CREATE = "--create-data-path"


def asked(live: Live, path: str, *words: str, strict: bool = True, token: str | None = None) -> Answer:
    argv = [*SINGLE.split(), *words, "--cs-datastore-meta", f"type=fs,data_path={path}"]
    return live.submit("", {"main.py": b"1"}, json.dumps({"argv": argv}), token or live.token,
                       STRICT if strict else {})


def data_dir(live: Live, answer: Answer) -> str:
    assert answer.status == 200, answer
    return live.row(answer.json()["id"]).workload.data.data_dir


def refused(answer: Answer) -> str:
    assert answer.error == (400, "submission.data_source"), answer
    return answer.text


@pytest.fixture
def team(start: Callable[..., Live]) -> Live:
    """A server for several users, with a folder of data that all of them share."""
    live = start(embedded=False)
    (live.settings.data_fs / "shared").mkdir(parents=True)
    return live


def test_a_missing_path_is_refused_unless_the_submission_asks_for_it(live: Live) -> None:
    assert CREATE in refused(asked(live, "new/mnist"))
    assert live.nothing_left() and not os.listdir(live.settings.data_fs)
    answer = asked(live, "new/mnist", CREATE)
    place = live.settings.data_fs / "new" / "mnist"
    assert data_dir(live, answer) == str(place) and str(place) in answer.json()["warning"]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (place, place.parent)] == [0o700, 0o700]
    log = live.paths(answer.json()["id"]).launcher_log.read_text()
    assert str(place) in log
    assert "warning" not in asked(live, "new/mnist", CREATE).json(), "the path exists now"


def test_a_client_of_the_recorded_server_needs_no_option(live: Live) -> None:
    assert data_dir(live, asked(live, "new", strict=False)) == str(live.settings.data_fs / "new")
    sources = json.dumps({"dataSource": [{"type": "fs", "location": {"paths": "a, b/c"}}]})
    answer = live.submit(SINGLE, {"main.py": b"1"}, sources)
    paths = [source.path for source in live.row(answer.json()["id"]).workload.data.sources]
    assert paths == [str(live.settings.data_fs / "a"), str(live.settings.data_fs / "b" / "c")]
    assert all(os.path.isdir(path) for path in paths)


def test_only_paths_of_type_fs_are_created(live: Live) -> None:
    (live.settings.paths.volumes / "lake").mkdir(parents=True)
    for source in ({"type": "data_asset", "location": {"path": "new"}},
                   {"type": "fs", "location": {"volume": "lake", "path": "new"}},
                   {"type": "fs", "location": {"path": "/nowhere/on/this/machine"}}):
        data = json.dumps({"dataSource": [source]})
        refused(live.submit(f"{SINGLE} {CREATE}", {"main.py": b"1"}, data))
    assert look(live, {"type": "fs", "location": {"path": "new"}}).status == 400
    assert not os.listdir(live.settings.data_fs)


@pytest.mark.parametrize("path", ["../new", "a/../../new", "a/../new", "link/new", "file/new", "loop/new", "out/new",
                                  "a/" * 65 + "a", "x" * 256, "a\tb", "a\u202eb", "cache.dlicmd-cache/x"])
def test_forbidden_data_paths_are_not_created(live: Live, path: str) -> None:
    data = live.settings.data_fs
    (data / "real").mkdir()
    (data / "link").symlink_to("real")
    (data / "loop").symlink_to("loop")
    (data / "out").symlink_to(live.settings.home)
    (data / "file").touch()
    refused(asked(live, path, CREATE))
    assert live.nothing_left() and not [path for path in live.settings.home.rglob("*") if path.name == "new"]


def test_an_invalid_submission_creates_nothing(live: Live) -> None:
    assert asked(live, "new", CREATE, "--msd-env", "X").status == 400
    assert asked(live, "new", "--pbmodel-name", "VGG16", strict=False).json()["state"] == "ERROR"
    assert not os.listdir(live.settings.data_fs)


def test_without_a_data_folder_nothing_is_created(live: Live) -> None:
    live.settings.data_fs.rmdir()
    refused(asked(live, "new", CREATE))
    assert not live.settings.data_fs.exists()


def test_a_full_disk_is_an_error_of_the_storage(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_given: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "mkdir", fail)
    answer = asked(live, "new", CREATE)
    monkeypatch.undo()
    assert answer.error[0] == 507


def test_users_of_a_team_server_get_folders_of_their_own(team: Live) -> None:
    ada, bob = team.add_user("ada"), team.add_user("bob")
    data = team.settings.data_fs
    for user, token in (("ada", ada), ("bob", bob)):
        place = data / "users" / user / "mnist" / "v1"
        assert data_dir(team, asked(team, "mnist/v1", CREATE, token=token)) == str(place)
        assert {stat.S_IMODE(one.stat().st_mode) for one in (place, *place.parents[:3])} == {0o700}
        for spelled in ("mnist/v1", f"users/{user}/mnist/v1", f"{data}/users/{user}/mnist/v1", "./mnist//v1"):
            assert data_dir(team, asked(team, spelled, token=token)) == str(place), "later jobs find it by its name"
        refused(asked(team, f"/{user}", strict=False, token=token))
    assert data_dir(team, asked(team, "shared", CREATE, token=bob)) == str(data / "shared")
    assert data_dir(team, asked(team, "shared/new", CREATE, token=bob)) == str(data / "users/bob/shared/new")


def test_users_cannot_name_data_in_folders_of_other_users(team: Live) -> None:
    ada, bob, boss = team.add_user("ada"), team.add_user("bob"), team.add_user("boss", "admin")
    assert asked(team, "mnist", CREATE, token=ada).status == 200
    data = team.settings.data_fs
    (data / "users" / "ada" / "mnist" / "x.bin").write_text("1")
    for path in ("users/ada", "users/ada/mnist", f"{data}/users/ada/mnist", "users/bob/../ada/mnist", "users/ada/new",
                 "users/new", "users/carol/new"):
        refused(asked(team, path, CREATE, token=bob))
    assert data_dir(team, asked(team, "users/ada/mnist", token=boss)) == str(data / "users" / "ada" / "mnist")
    refused(asked(team, "users/ada/new", CREATE, token=boss))
    (data / "users" / "bob").mkdir(0o700)
    (data / "users" / "bob" / "peek").symlink_to(data / "users" / "ada")
    refused(asked(team, "peek/mnist", token=bob))
    assert "x.bin" in look(team, {"type": "fs"}, token=boss).text
    assert "x.bin" not in look(team, {"type": "fs"}, token=bob).text
    assert sorted(os.listdir(data / "users" / "ada")) == ["mnist"]


@pytest.mark.parametrize("folder", ["users", "users/ada"])
def test_a_folder_of_users_that_others_can_enter_is_not_used(team: Live, folder: str) -> None:
    ada, place = team.add_user("ada"), team.settings.data_fs / folder
    for mode in (0o755, 0o770):
        place.mkdir(parents=True, exist_ok=True)
        (team.settings.data_fs / "users").chmod(0o700)
        place.chmod(mode)
        assert f"chmod 700 {place}" in refused(asked(team, "mnist", CREATE, token=ada))
        assert not (place / "mnist").exists()
    place.chmod(0o700)
    assert asked(team, "mnist", CREATE, token=ada).status == 200


def test_the_folder_of_users_is_no_link(team: Live, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(0o700)
    (team.settings.data_fs / "users").symlink_to(tmp_path / "elsewhere")
    refused(asked(team, "mnist", CREATE, token=team.add_user("ada")))
    assert not os.listdir(tmp_path / "elsewhere")


def test_a_link_that_appears_after_the_check_is_not_followed(
    team: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of other users can change DLI_DATA_FS at any time."""
    create, users = submissions.create, team.settings.data_fs / "users"

    def later(*given: object) -> object:
        (users / "ada").mkdir(0o700, parents=True)
        users.chmod(0o700)
        (users / "ada" / "a").symlink_to(tmp_path)
        return create(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(submissions, "create", later)
    refused(asked(team, "a/b", CREATE, token=team.add_user("ada")))
    assert not (tmp_path / "b").exists() and team.nothing_left()
