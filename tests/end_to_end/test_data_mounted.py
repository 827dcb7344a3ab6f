"""Data on the server: the variables that the program gets, for each option that names data."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from user import User

pytestmark = pytest.mark.integration

SHOW = 'echo "$DATA_PATH|$DATA_DIR|$DLI_DATA_DIRS|$(cat "$DLI_DATA_SOURCES_FILE" 2>/dev/null)"'


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    folder = tmp_path_factory.mktemp("mounted")
    user = User(folder / "home")
    user.environment["DLI_NURSERY_IDLE"] = "0"
    yield user
    user.close()
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def setting(user: User, name: str, value: Path) -> Iterator[None]:
    """Let the next server of the user have a setting, within the block."""
    user.backend("stop")
    user.environment[name] = str(value)
    try:
        yield
    finally:
        user.backend("stop")
        del user.environment[name]


def found(user: User, *words: str) -> tuple[str, list[str], list[dict]]:
    """Return DATA_DIR, all directories, and the entries of the file, as a program sees them."""
    done = user.run("--exec-start", "PyTorch", "--user-cmd", "--follow", *words, "--", "sh", "-c", SHOW)
    assert done.code == 0, done
    line = next(line for line in done.out.splitlines() if line.count("|") >= 3)
    data_path, data_dir, folders, entries = line.split("|", 3)
    assert os.path.normpath(user.home / "data" / data_path) == data_dir, "DATA_PATH must be relative to DLI_DATA_FS"
    return data_dir, folders.split(":"), json.loads(entries or "[]")


def test_data_dir_is_the_first_of_several_sources(user: User) -> None:
    data = user.home / "data"
    for name in ("mnist", "other", "third"):
        (data / name).mkdir(parents=True)
    (user.folder / "lake").mkdir()
    done = user.backend("volume", "add", "cpd::deep-lake", str(user.folder / "lake"))
    assert done.code == 0 and "deep_lake" in done.out, done
    first = [{"type": "fs", "location": {"paths": "mnist, other"}}]
    second = [{"type": "fs", "location": {"volume": "cpd::deep-lake"}, "name": "my lake!"}]
    data_dir, folders, entries = found(user, "--data-source", json.dumps(first), "--data-source", json.dumps(second),
                                       "--cs-datastore-meta", "type=fs,data_path=third")
    assert data_dir == str(data / "mnist")
    assert folders == [str(data / "mnist"), str(data / "other"), str(user.home / "volumes" / "deep_lake")]
    assert [(entry["name"], entry["path"]) for entry in entries] == list(
        zip(("mnist", "other", "my lake!"), folders, strict=True))
    assert {(entry["type"], entry["access"]) for entry in entries} == {("fs", "mount")}
    assert user.run("--exec-get", "last").json["dataSource"] == first + second


def test_cs_datastore_meta_needs_no_sources_file(user: User) -> None:
    (user.folder / "here").mkdir()
    path = str(user.folder / "here")
    assert found(user, "--cs-datastore-meta", "type=fs,data_path=./here") == (path, [path], [])


def test_volumes_are_added_and_removed(user: User) -> None:
    (user.folder / "one").mkdir()
    assert user.backend("volume", "add", "one", "one").code == 0
    again = user.backend("volume", "add", "one", "one")
    assert again.code == 1 and "volume one already exists" in again.err
    listed = json.loads(user.backend("volume", "list", "-o", "json").out)
    assert [item["directory"] for item in listed if item["name"] == "one"] == [str(user.folder / "one")]
    assert user.backend("volume", "remove", "one").code == 0 and (user.folder / "one").is_dir()
    gone = user.backend("volume", "remove", "one")
    assert gone.code == 6 and "volume one does not exist" in gone.err
    (user.home / "volumes" / "real").mkdir()
    kept = user.backend("volume", "remove", "real")
    assert kept.code == 1 and "folder with the data itself" in kept.err
    (user.home / "volumes" / "real").rmdir()
    for name, folder, expected in (("../x", "one", "is not a valid name"), ("x", "absent", "is not a directory")):
        refused = user.backend("volume", "add", name, folder)
        assert refused.code == 1 and expected in refused.err and len(refused.err.splitlines()) == 1
    source = '[{"type": "fs", "location": {"volume": "absent"}}]'
    done = user.run("--exec-start", "PyTorch", "--user-cmd", "--data-source", source, "--", "true")
    assert done.code == 2 and "local-backend volume add absent DIR" in done.err


def test_volumes_use_the_configured_folder_and_have_a_list_of_users(user: User) -> None:
    (user.folder / "deep").mkdir()
    with setting(user, "DLI_VOLUMES", user.folder / "mnts"):
        added = user.backend("volume", "add", "cpd::demo-project-pvc", "deep", "--user", "ada", "--user", "bob")
        place = user.folder / "mnts" / "demo_project_pvc"
        assert added.code == 0 and f"for programs {place}, for ada,bob" in added.out, added
        [listed] = json.loads(user.backend("volume", "list", "-o", "json").out)
        assert (listed["path"], listed["users"]) == (str(place), ["ada", "bob"])
        assert "demo_project_pvc  ada,bob  " in user.backend("volume", "list").out
        source = '[{"type": "fs", "location": {"volume": "cpd::demo-project-pvc"}}]'
        assert found(user, f"--data-source={source}")[0] == str(place), "the user of the server is an administrator"
        assert user.backend("volume", "allow", "demo-project-pvc").out == "demo_project_pvc: usable by everybody\n"
        refused = user.backend("volume", "allow", "absent", "--user", "ada")
        assert refused.code == 6 and "volume absent does not exist" in refused.err
        wrong = user.backend("volume", "allow", "demo-project-pvc", "--user", "../x")
        assert wrong.code == 1 and "is not a valid user name" in wrong.err
        assert user.backend("volume", "allow", "demo-project-pvc", "--user", "ada").code == 0
        assert user.backend("volume", "remove", "demo-project-pvc").code == 0
        again = user.backend("volume", "add", "demo-project-pvc", "deep")
        assert again.out.endswith("for everybody\n"), "the removal must remove the users of the volume"


def test_a_missing_data_folder_gives_an_empty_data_dir_and_a_log_line(user: User) -> None:
    empty = 'test -z "$DATA_DIR$DATA_PATH"'
    with setting(user, "DLI_DATA_FS", user.folder / "nowhere"):
        done = user.run("--exec-start", "PyTorch", "--user-cmd", "--wait", "--", "sh", "-c", empty)
        assert done.code == 0, done
        log = user.run("--exec-launcherlogs", "last").out
    why = f"the folder {user.folder / 'nowhere'} (DLI_DATA_FS) does not exist"
    assert f"ERROR supervisor: DATA_DIR is empty: {why}" in log
