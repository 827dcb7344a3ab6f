"""Remote data is complete before its job starts, also after failures of data servers, fetchers and backends."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support import eventually
from toy_kind import PASSWORD, installed_in
from user import User

pytestmark = pytest.mark.integration

CONTENT = bytes(range(256)) * 4096
SHOW = 'cd "$DATA_DIR" && sha256sum a.bin | cut -c1-64; cat "$DLI_DATA_SOURCES_FILE"'


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    folder = tmp_path_factory.mktemp("fetched")
    user = User(folder / "home")
    user.environment |= {"DLI_NURSERY_IDLE": "0", "PYTHONPATH": installed_in(folder / "plugins"),
                         "TOY_PASSWORD": PASSWORD}
    yield user
    user.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def lake(user: User, tmp_path: Path) -> Path:
    """The folder of a toy server; each test has its own."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.bin").write_bytes(CONTENT)
    return tmp_path


def source(lake: Path, **more: object) -> str:
    connection = {"type": "toy", "folder": str(lake), "password": PASSWORD}
    return json.dumps([{"type": "connection", "connection": connection, "location": {"path": "d"}, **more}])


def start(user: User, sources: str, *words: str) -> str:
    return user.submit("PyTorch", "--user-cmd", "--data-source", sources, *words, "--", "sh", "-c", SHOW)


def shown(user: User, exec_id: str) -> dict:
    return user.run("--exec-get", exec_id).json


def message(user: User, exec_id: str, part: str) -> Callable[[], bool]:
    return lambda: part in shown(user, exec_id).get("message", "")


def fetchers(user: User) -> list[psutil.Process]:
    return user.running("local_backend.data.fetcher")


def nothing_of(user: User, exec_id: str) -> bool:
    folder = user.home / "jobs" / exec_id
    return not (folder / "data").exists() and not (folder / "fetch").exists() and not fetchers(user)


def cached(user: User) -> list[Path]:
    return [path for path in (user.home / "cache").rglob("a.bin") if path.is_file()]


def test_data_is_fetched_before_the_job_starts_and_cached_for_the_next(user: User, lake: Path) -> None:
    first = start(user, source(lake, name="toys: 日本/1"), "--wait")
    out = user.run("--exec-trainoutlogs", first).out
    digest, entries = out.split("\n", 1)
    assert digest == hashlib.sha256(CONTENT).hexdigest()
    [entry] = json.loads(entries)
    assert entry["path"] == str(user.home / "jobs" / first / "data" / "1-toys-日本-1")
    assert entry["name"] == "toys: 日本/1"
    assert (entry["files"], entry["bytes"], entry["access"]) == (1, len(CONTENT), "download")
    found = shown(user, first)
    assert found["dataSource"][0]["connection"] == {"type": "toy", "folder": str(lake), "password": "***"}
    (lake / "gate").touch()
    second = start(user, source(lake), "--wait")
    assert shown(user, second)["state"] == "FINISHED", "the data must come from the cache"
    eventually(lambda: nothing_of(user, first) and nothing_of(user, second), "the data of both jobs is removed")
    assert len(cached(user)) >= 1


def test_data_cached_in_shared_storage_is_not_visible_to_other_jobs(user: User, lake: Path, tmp_path: Path) -> None:
    volume = tmp_path / "volumes" / "train"
    volume.mkdir(parents=True)
    assert user.backend("volume", "add", "train", str(volume)).code == 0
    (user.home / "data").mkdir(parents=True, exist_ok=True)  # the first server of this home makes it, too
    (user.home / "data" / "own.txt").write_text("mine")
    for target, storage in (("shared", user.home / "data"), ({"volume": "train"}, volume)):
        place = storage.with_name(f".{storage.name}.{os.getuid()}.dlicmd-cache")
        (lake / "gate").unlink(missing_ok=True)
        first = start(user, source(lake, target=target), "--wait")
        assert shown(user, first)["state"] == "FINISHED"
        assert list(place.rglob("a.bin")) and place.stat().st_mode & 0o777 == 0o700
        (lake / "gate").touch()
        assert shown(user, start(user, source(lake, target=target), "--wait"))["state"] == "FINISHED"
        location = {"volume": "train"} if isinstance(target, dict) else {}
        other = user.submit("PyTorch", "--user-cmd", "--wait", "--data-source",
                            json.dumps([{"type": "fs", "location": location}]), "--", "sh", "-c", 'find "$DATA_DIR/"')
        found = user.run("--exec-trainoutlogs", other).out
        assert "a.bin" not in found and ("own.txt" in found) == (target == "shared"), found
        (lake / "d" / "a.bin").touch()
    assert [line.split()[0] for line in user.backend("volume", "list").out.splitlines()] == ["name", "train"]


def test_a_job_waits_for_its_data_without_slots_and_shows_the_progress(user: User, lake: Path) -> None:
    (lake / "gate").touch()
    exec_id = start(user, source(lake))
    eventually(message(user, exec_id, "50 % of 1.0 MB"), "the progress is shown")
    found = shown(user, exec_id)
    assert (found["state"], found["reason"]) == ("PENDING_CRD_SCHEDULER", "DATA") and "queuePosition" not in found
    why = user.run("--exec-why", exec_id).out
    assert "fetching d (toy)" in why and "the job starts when all its data is fetched" in why
    assert "fetching d (toy)" in user.run("--top").out
    follower = user.start("--follow", exec_id)
    assert follower.stderr is not None
    assert any("fetching d (toy): 50 %" in line for line in follower.stderr), "--follow must show the progress"
    (lake / "gate").unlink()
    follower.communicate(timeout=100)
    assert follower.returncode == 0


def test_a_fetch_survives_a_killed_server_and_a_killed_fetcher(user: User, lake: Path) -> None:
    (lake / "gate").touch()
    exec_id = start(user, source(lake))
    eventually(message(user, exec_id, "% of 1.0 MB"), "the fetch has begun")
    [before] = fetchers(user)
    os.kill(user.server_pid, signal.SIGKILL)
    eventually(message(user, exec_id, "% of 1.0 MB"), "the next server shows the progress")
    assert [one.pid for one in fetchers(user)] == [before.pid], "the server must adopt the fetcher"
    before.kill()
    eventually(lambda: [one.pid for one in fetchers(user)] not in ([], [before.pid]), "another fetcher runs")
    (lake / "gate").unlink()
    done = user.run("--wait", exec_id)
    assert done.code == 0, done


def test_a_stopped_or_deleted_job_leaves_no_data(user: User, lake: Path) -> None:
    (lake / "a.bin").write_bytes(b"another content" * 50_000)
    (lake / "gate").touch()
    before = {path.parent for path in cached(user)}
    stopped, deleted = (start(user, source(lake, location={"path": "a.bin"})) for _ in range(2))
    # One of the two fetches, and the other waits for its data.
    eventually(lambda: any(message(user, one, "% of")() for one in (stopped, deleted)), "the fetch has begun")
    assert user.run("--exec-stop", stopped).code == user.run("--exec-delete", deleted).code == 0
    assert user.run("--wait", stopped).code == 4
    eventually(lambda: nothing_of(user, stopped) and not (user.home / "jobs" / deleted).exists(), "no file is left")
    assert {path.parent for path in cached(user)} == before, "the cache must not contain partial data"


@pytest.mark.parametrize(("flaw", "expected"), [
    ("password", "the toy server does not know the password ***"), ("path", "there is no absent on the toy server"),
    ("broken", "RuntimeError: toy is broken, ***"),
])
def test_a_permanent_error_ends_the_job_at_once(user: User, lake: Path, flaw: str, expected: str) -> None:
    connection = {"type": "toy", "folder": str(lake), "password": "planted-wrong-one"}
    if flaw != "password":
        connection["password"] = PASSWORD
    if flaw == "broken":
        (lake / "broken").touch()
    location = {"path": "absent" if flaw == "path" else "d"}
    done = user.run("--exec-start", "PyTorch", "--user-cmd", "--wait", "--data-source", json.dumps(
        [{"type": "connection", "connection": connection, "location": location}]), "--", "true")
    assert done.code == 3 and expected in done.err and "planted" not in done.err, done
    assert shown(user, "last")["reason"] == "DATA" and "--exec-trainlogs" not in done.err


def test_a_job_waits_for_a_data_server_that_is_down(user: User, lake: Path) -> None:
    (lake / "down").touch()
    exec_id = start(user, source(lake))
    eventually(message(user, exec_id, "the toy server is down; try "), "the reason and the next try are shown")
    (lake / "down").unlink()
    assert user.run("--wait", exec_id).code == 0


def connect(user: User, name: str, folder: Path, *words: str) -> None:
    """Store a connection to a toy server on the backend."""
    done = user.backend("connection", "add", name, "--type", "toy", "--set", f"folder={folder}",
                        "--secret", "password=env:TOY_PASSWORD", *words)
    assert done.code == 0, done


def waits_for_one_that_is_down(user: User, lake: Path, name: str) -> str:
    """Return a job whose data comes through the connection `name` to a server that does not answer."""
    away = lake / "away"
    away.mkdir()
    (away / "down").touch()
    connect(user, name, away)
    exec_id = start(user, json.dumps([{"type": "connection", "connection": {"name": name}, "location": {"path": "d"}}]))
    eventually(message(user, exec_id, "the toy server is down; try "), "the job waits for the server")
    return exec_id


def test_a_pending_job_uses_a_replaced_connection(user: User, lake: Path) -> None:
    exec_id = waits_for_one_that_is_down(user, lake, "moved")
    connect(user, "moved", lake, "--replace")
    done = user.run("--wait", exec_id)
    assert done.code == 0, done
    log = (user.home / "jobs" / exec_id / "launcher.log").read_text()
    assert "a connection has changed; fetching data again" in log


def test_a_connection_replaced_without_a_server_is_used_after_its_start(user: User, lake: Path) -> None:
    exec_id = waits_for_one_that_is_down(user, lake, "moved-later")
    [before] = fetchers(user)
    user.backend("stop")
    connect(user, "moved-later", lake, "--replace")
    assert [one.pid for one in fetchers(user)] == [before.pid], "the fetcher must outlive the server"
    done = user.run("--wait", exec_id)
    assert done.code == 0, done


def test_a_removed_connection_ends_jobs_that_wait_for_its_data(user: User, lake: Path) -> None:
    exec_id = waits_for_one_that_is_down(user, lake, "gone")
    assert user.backend("connection", "remove", "gone").code == 0
    done = user.run("--wait", exec_id)
    assert done.code == 3 and "data source 1: connection '" in done.err and "/gone' does not exist" in done.err, done
    assert shown(user, exec_id)["reason"] == "DATA"
    eventually(lambda: nothing_of(user, exec_id), "the fetcher of the job has ended and its secrets are removed")


def test_data_preview_shows_data_without_a_submission(user: User, lake: Path) -> None:
    (lake / "d" / "a.csv").write_text("height,weight\n1,2\n")
    jobs = sorted((user.home / "jobs").glob("*"))
    user.model("model", train="1")
    done = user.run("--data-preview", source(lake))
    assert done.code == 0, done
    assert "d (toy)\n2 files, 1.0M\n  a.bin  1.0M\n" in done.out and "height  weight" in done.out
    [found] = json.loads(user.run("--data-preview", source(lake), "-o", "json").out)
    assert found["ok"] and found["rows"] == [["height", "weight"], ["1", "2"]] and found["kind"] == "toy"
    local = user.run("--data-preview", str(lake / "d"))
    assert local.code == 0 and "a.csv: csv" in local.out
    (lake / "d" / "b.npy").write_bytes(b"\x93NUMPY\1\0\x39\0{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3)}" +
                                       bytes(range(6)))
    arrays = user.run("--data-preview", str(lake / "d" / "b.npy"))
    assert arrays.code == 0 and "array: 2x3 of uint8" in arrays.out and "  3  4  5" in arrays.out, arrays
    (lake / "down").touch()
    done = user.run("--data-preview", source(lake))
    assert done.code == 1 and "cannot be read: the toy server is down" in done.out
    for text, code, expected in (
        ("nobody:x", 2, "connection 'nobody' does not exist"), ("{", 2, "not JSON"), ("s3://b/x", 2, "URL as JSON"),
        (str(lake / "absent"), 2, "does not exist"), ("model", 2, "; did you mean ./model?"),
        ('{"type": "fs", "locaton": {}}', 2, "did you mean 'location'"),
    ):
        refused = user.run("--data-preview", text)
        assert (refused.code, expected in refused.err) == (code, True), refused
    assert sorted((user.home / "jobs").glob("*")) == jobs


def test_dli_data_patience_limits_how_long_a_job_waits_for_data(user: User, lake: Path) -> None:
    (lake / "down").touch()
    user.backend("stop")
    user.environment["DLI_DATA_PATIENCE"] = "0"
    try:
        exec_id = start(user, source(lake))
        done = user.run("--wait", exec_id)
        assert done.code == 3 and "the toy server is down; gave up after 1 try in 0 s (DLI_DATA_PATIENCE)" in done.err
        assert shown(user, exec_id)["reason"] == "DATA"
    finally:
        del user.environment["DLI_DATA_PATIENCE"]
        user.backend("stop")


def test_an_invalid_connection_is_refused_at_the_submission(user: User, lake: Path) -> None:
    for connection, expected in (
        ({"type": "tyo"}, "unknown kind of connection 'tyo'; did you mean 'toy'?"),
        ({"type": "toy", "folder": "x"}, "a connection of type 'toy' needs 'password'"),
        ({"type": "toy", "folder": "x", "pasword": "planted"}, "a connection of type 'toy' has no field 'pasword'"),
        ({"name": "absent"}, "connection 'absent' does not exist"), ({}, "'connection' names no connection"),
    ):
        sources = [{"type": "fs"}, {"type": "connection", "connection": connection, "location": {"path": "d"}}]
        done = user.run("--exec-start", "PyTorch", "--user-cmd", "--data-source", json.dumps(sources), "--", "true")
        assert done.code == 2 and f"data source 2: {expected}" in done.err, done
        assert "planted" not in done.err
