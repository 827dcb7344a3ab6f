"""Full or broken disks and damaged databases: the server returns one line of text and leaves nothing incomplete."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from live_server import Live, settings_for, tar
from sqlalchemy.exc import OperationalError

from dlicmd.contract import states, wire
from local_backend.serving.server import ServingError, make_home, open_database
from local_backend.store import execs
from local_backend.store.database import Database
from local_backend.submit import unpacker

ARGS = "--exec-start PyTorch --model-dir d --model-main train.py"
CONTENT = {"x.modelDir.tar": tar({"d/train.py": b"1", "d/more/data.bin": os.urandom(200_000)}), "extra.yaml": b"a: 1"}
WRITES = ("open", "write", "mkdir", "fsync", "replace", "rename")


class Faults:
    """Makes the n-th write of the server's threads fail, once or for all later writes too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.for_ever, self.error, self.count = 0, False, errno.ENOSPC, 0
        for name in WRITES:
            monkeypatch.setattr(os, name, self._failing(name, getattr(os, name)))

    def fail_at(self, n: int, error: int, for_ever: bool) -> None:
        self.at, self.error, self.for_ever, self.count = n, error, for_ever, 0

    def off(self) -> bool:
        """Stop the faults; return whether a fault was raised."""
        hit = 0 < self.at <= self.count
        self.at = 0
        return hit

    def _failing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            writing = name != "open" or (len(args) > 1 and args[1] & os.O_CREAT)
            if self.at and writing and threading.current_thread() is not threading.main_thread():
                self.count += 1
                if self.count == self.at or (self.for_ever and self.count > self.at):
                    raise OSError(self.error, os.strerror(self.error))
            return real(*args, **kwargs)

        return call


def forget(live: Live, exec_id: str) -> None:
    """Check that an exec is complete; remove every trace of it."""
    paths = live.paths(exec_id)
    assert (paths.submitted / "d/more/data.bin").stat().st_size == 200_000
    assert (paths.submitted / "extra.yaml").read_bytes() == b"a: 1" and paths.spec.exists()
    live.forget(exec_id)


@pytest.mark.parametrize(("error", "for_ever"), [
    (errno.ENOSPC, False), (errno.EDQUOT, True), *(pytest.param(error, for_ever, marks=pytest.mark.integration)
    for error, for_ever in ((errno.ENOSPC, True), (errno.EIO, False), (errno.EACCES, False), (errno.EMFILE, False)))])
def test_any_failed_write_refuses_the_submission_and_leaves_nothing(
    live: Live, monkeypatch: pytest.MonkeyPatch, error: int, for_ever: bool
) -> None:
    faults = Faults(monkeypatch)
    for n in range(1, 200):
        faults.fail_at(n, error, for_ever)
        answer = live.submit(ARGS, CONTENT)
        if not faults.off():
            break
        if answer.status == 200:  # the server has a fallback: it copies a file that it cannot rename
            forget(live, answer.json()["id"])
            continue
        assert answer.status == 507 and answer.error[1].startswith("storage."), (n, answer)
        assert answer.text.count("\n") == 1 and "Traceback" not in answer.text
        assert live.nothing_left(), n
    assert n > 8 and answer.status == 200, "the loop must reach every write"
    assert live.submit(ARGS, CONTENT).status == 200


def test_any_failed_database_write_refuses_the_submission(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = Database.write, [0]

    def failing(self: Database, work: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise OperationalError("INSERT", {}, Exception("database or disk is full"))
        return real(self, work)

    monkeypatch.setattr(Database, "write", failing)
    for n in (1, 2):
        left[0] = n
        answer = live.submit(ARGS, CONTENT)
        assert answer.error == (507, "storage.failed") and live.nothing_left()
    assert live.submit(ARGS, CONTENT).status == 200


def test_a_full_disk_of_the_database_refuses_the_submission(live: Live) -> None:
    def limit(pages: int) -> None:
        live.database.write(lambda c: c.exec_driver_sql(f"PRAGMA max_page_count = {pages}"))

    limit(1)  # SQLite takes the present number of pages
    refused = live.submit(f"{ARGS} {'x' * 50000}", CONTENT)
    assert refused.error == (507, "storage.full") and "database" in refused.text and live.nothing_left()
    limit(2**30)
    assert live.submit(ARGS, CONTENT).status == 200


def test_a_connection_lost_after_the_commit_keeps_the_exec_complete(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = Database.write, [0]

    def failing(self: Database, work: Any) -> Any:
        done = real(self, work)
        calls[0] += 1
        if calls[0] == 2:
            raise OperationalError("COMMIT", {}, Exception("server closed the connection"), connection_invalidated=True)
        return done

    monkeypatch.setattr(Database, "write", failing)
    answer = live.submit(ARGS, CONTENT)
    assert answer.error == (507, "storage.unknown")
    (stored,) = live.call("GET", "/execs").json()
    code = live.paths(stored["id"]).code(live.row(stored["id"]).workload)
    assert code.joinpath("train.py").exists(), "the job must have its code"


def failing_os(patch: pytest.MonkeyPatch, n: int, error: int) -> list[int]:
    """Make the n-th write call fail; return a list that contains the number of calls left."""
    left = [n]

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(error, "injected")
            return real(*args, **kwargs)

        return call

    for name in ("write", "mkdir", "fsync"):
        patch.setattr(os, name, failing(getattr(os, name)))
    return left


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_the_extractor_distinguishes_a_full_disk_from_a_bad_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    archive = tmp_path / "a"
    archive.write_bytes(CONTENT["x.modelDir.tar"])
    limits = {"bytes": 1 << 30, "files": 100, "ratio": 200}
    results = []
    for n in range(1, 50):
        target = tmp_path / str(n)
        target.mkdir()
        with monkeypatch.context() as patch:
            left = failing_os(patch, n, error)
            results.append(unpacker.run(str(archive), str(target), limits))
        if left[0] > 0:
            break
    assert results[-1][0] == unpacker.DONE and len(results) > 6
    assert all(result == (unpacker.STORAGE, str(error)) for result in results[:-1])


def rows_of(home: Path) -> dict[str, str] | str:
    """Return id and state of every exec, or the line with which a server refuses to start."""
    settings = settings_for(home)
    try:
        database = open_database(settings)
    except ServingError as problem:
        return str(problem)
    try:
        return {row.id: row.state for row in database.read(lambda c: execs.of_user(c, None))}
    finally:
        database.close()


@pytest.fixture
def filled(start: Callable[..., Live], tmp_path: Path) -> Path:
    """The home of a stopped server with 6 execs."""
    live = start()
    for n in range(6):
        exec_id = live.submitted(f"--exec-start PyTorch --model-main main.py --name {'x' * 300} {n}")
        if n % 2:
            live.move(exec_id, states.PENDING, states.KILLED)
    live.close()
    return live.settings.home


@pytest.mark.integration
def test_a_damaged_database_is_refused_or_read_completely(filled: Path, tmp_path: Path) -> None:
    whole = rows_of(filled)
    assert isinstance(whole, dict) and len(whole) == 6
    content = (filled / "backend.db").read_bytes()
    chance = random.Random(7)
    cuts = [content[:-n] for n in (1, 2, 100, 511, 512, 1024, 4000, 4095, 4096, len(content) - 20, len(content))]
    flips = []
    for _ in range(200):
        at = chance.randrange(len(content))
        flips.append(content[:at] + bytes([content[at] ^ (1 << chance.randrange(8))]) + content[at + 1 :])
    refused = 0
    for damaged in (*cuts, *flips):
        (filled / "backend.db").write_bytes(damaged)
        found = rows_of(filled)
        if isinstance(found, str):
            refused += 1
            assert str(filled / "backend.db") in found and "\n" not in found, found
        else:
            assert found == whole
        assert len(list((filled / "jobs").iterdir())) == 6, "the server must keep all files of the execs"
    assert refused > len(cuts) - 3


def test_a_lost_database_is_not_treated_as_a_fresh_start(filled: Path) -> None:
    (filled / "backend.db").unlink()
    found = rows_of(filled)
    assert isinstance(found, str) and "local-" in found and len(list((filled / "jobs").iterdir())) == 6


def test_a_newer_database_is_refused(filled: Path) -> None:
    import sqlite3

    with sqlite3.connect(filled / "backend.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    found = rows_of(filled)
    assert isinstance(found, str) and "newer version" in found and str(filled / "backend.db") in found


def test_leftovers_of_a_killed_server_are_removed(filled: Path) -> None:
    settings = settings_for(filled)
    paths = settings.paths
    (paths.incoming / "abc").mkdir()
    (paths.incoming / "abc" / "part-1").write_bytes(b"x" * 1000)
    database = Database(paths.database)
    database.open()
    number, *_ = (database.write(execs.next_number) for _ in range(3))
    database.close()
    orphan, bobs = paths.job(execs.exec_id(number), "alice"), paths.job(execs.exec_id(number + 1), "bob")
    unsaid = paths.job(execs.exec_id(number + 2), "alice")
    for left in (orphan, bobs, unsaid):
        left.root.mkdir(parents=True)
        (left.root / "half").write_bytes(b"x")
        left.state.mkdir()
    orphan.spec.write_text('{"user": "alice"}')
    bobs.spec.write_text('{"user": "bob"}')
    (paths.jobs / "notes of the user").mkdir()
    assert len(rows_of(filled)) == 6
    assert not any(folder.exists() for left in (orphan, bobs) for folder in (left.root, left.state))
    assert not unsaid.state.exists() and (unsaid.root / "half").exists(), "the folder may belong to another backend"
    assert list(paths.incoming.iterdir()) == []
    assert (paths.jobs / "notes of the user").is_dir()


def test_two_backends_with_one_results_folder_use_different_ids(start: Callable[..., Live], tmp_path: Path) -> None:
    first, second = start(), start()
    object.__setattr__(second.settings, "result_fs", first.settings.result_fs)
    one, other = first.submitted(), second.submitted()
    assert one == "local-1" and other == "local-2"
    assert (first.paths(one).submitted / "main.py").exists() and (second.paths(other).submitted / "main.py").exists()


def test_an_unusable_home_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file, not a folder")
    with pytest.raises(ServingError, match=r"home.*DLICMD_HOME"):
        make_home(settings_for(tmp_path / "home"))
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_a_removed_database_gives_status_507(live: Live) -> None:
    exec_id = live.submitted()
    shutil.rmtree(live.settings.home)
    for method, path in (("GET", "/execs"), ("GET", f"/execs/{exec_id}"), ("POST", f"/execs/{exec_id}/stop")):
        answer = live.call(method, path)
        assert answer.error == (507, "database.failed"), path


def test_an_exec_reports_that_a_full_disk_prevents_recording_its_end(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that ends on a full disk stays RUNNING until space is free, so clients that wait need the reason."""
    exec_id = live.submitted()
    live.move(exec_id, states.PENDING, states.RUNNING)
    assert wire.MESSAGE not in live.call("GET", f"/execs/{exec_id}").json()
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=3 * 4096))
    shown = live.call("GET", f"/execs/{exec_id}").json()
    assert shown[wire.STATE] == states.RUNNING and "is full" in shown[wire.MESSAGE]
