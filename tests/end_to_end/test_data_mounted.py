"""Data that lies on the server already: what the program finds, for every way to name it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import psutil
import pytest
from user import User

SHOW = 'echo "$DATA_DIR|$DLI_DATA_DIRS|$(cat "$DLI_DATA_SOURCES_FILE" 2>/dev/null)"'


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    folder = tmp_path_factory.mktemp("mounted")
    user = User(folder / "home")
    user.environment["DLI_NURSERY_IDLE"] = "0"
    yield user
    user.backend("stop", "--jobs")
    for process in user.processes():
        process.kill()
    psutil.wait_procs(user.processes())
    shutil.rmtree(folder, ignore_errors=True)


def found(user: User, *words: str) -> tuple[str, list[str], list[dict]]:
    """DATA_DIR, all directories, and the entries of the file, as a program sees them."""
    done = user.run("--exec-start", "PyTorch", "--user-cmd", "--follow", *words, "--", "sh", "-c", SHOW)
    assert done.code == 0, done
    line = next(line for line in done.out.splitlines() if line.count("|") >= 2)
    data_dir, folders, entries = line.split("|", 2)
    return data_dir, folders.split(":"), json.loads(entries or "[]")


def test_several_sources_all_arrive_the_first_is_data_dir(user: User) -> None:
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
        zip(("mnist", "other", "my-lake"), folders, strict=True))
    assert {(entry["type"], entry["access"]) for entry in entries} == {("fs", "mount")}
    assert user.run("--exec-get", "last").json["dataSource"] == first + second


def test_the_simple_option_needs_no_file(user: User) -> None:
    (user.folder / "here").mkdir()
    path = str(user.folder / "here")
    assert found(user, "--cs-datastore-meta", "type=fs,data_path=./here") == (path, [path], [])


def test_volumes_come_and_go(user: User) -> None:
    (user.folder / "one").mkdir()
    assert user.backend("volume", "add", "one", "one").code == 0
    again = user.backend("volume", "add", "one", "one")
    assert again.code == 1 and "there is a volume one already" in again.err
    listed = json.loads(user.backend("volume", "list", "-o", "json").out)
    assert [item["directory"] for item in listed if item["name"] == "one"] == [str(user.folder / "one")]
    assert user.backend("volume", "remove", "one").code == 0 and (user.folder / "one").is_dir()
    gone = user.backend("volume", "remove", "one")
    assert gone.code == 1 and "there is no volume one" in gone.err
    (user.home / "volumes" / "real").mkdir()
    kept = user.backend("volume", "remove", "real")
    assert kept.code == 1 and "folder with the data itself" in kept.err
    for name, folder, expected in (("../x", "one", "is not the name"), ("x", "absent", "is not a directory")):
        refused = user.backend("volume", "add", name, folder)
        assert refused.code == 1 and expected in refused.err and len(refused.err.splitlines()) == 1
    source = '[{"type": "fs", "location": {"volume": "absent"}}]'
    done = user.run("--exec-start", "PyTorch", "--user-cmd", "--data-source", source, "--", "true")
    assert done.code == 2 and "local-backend volume add absent DIR" in done.err
