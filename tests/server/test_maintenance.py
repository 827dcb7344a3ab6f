"""The commands backup, restore and doctor."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography.fernet import Fernet
from live_server import Live, settings_for

from dlicmd.contract.states import FINISHED, PENDING, RECOVERING, RUNNING, SUBMITTED, TERMINAL
from local_backend.cli import main
from local_backend.commands import backup_tag
from local_backend.runtime import bundles
from local_backend.serving import doctor
from local_backend.serving.server import ServingError, locked, make_home, open_database
from local_backend.store import execs, tokens

Command = Callable[..., Result]
#: The line of a key file.
LINE = "correct horse battery staple"


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key file for the tags of backups that move between homes."""
    file = tmp_path_factory.mktemp("keys") / "key"
    file.write_text(f"{LINE}\n")
    return file


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, key: Path) -> Command:
    """Runs `local-backend WORDS` on a home. Backups have a tag made with `key`, unless `home_key` is true."""
    monkeypatch.setenv("DLI_SLOTS", "2")
    monkeypatch.delenv("DLI_DATABASE", raising=False)
    monkeypatch.setattr("local_backend.settings.user_name", lambda: "alice")

    def run(home: Path, *words: str, home_key: bool = False) -> Result:
        monkeypatch.setenv("DLICMD_HOME", str(home))
        if words[0] in {"backup", "restore"} and not home_key:
            words += ("--key-file", str(key))
        return CliRunner().invoke(main, words, catch_exceptions=False)

    return run


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with a finished exec and a waiting exec."""
    live = Live(settings_for(tmp_path_factory.mktemp("served") / "home"))
    done = live.submitted(files={"main.py": b"print(1)\n"})
    live.run_on(done, "cpu-0")
    live.move(done, FINISHED)
    live.paths(done).model.joinpath("weights").write_bytes(b"w" * 5000)
    live.paths(done).model.joinpath("link").symlink_to("weights")
    live.submitted(files={"main.py": b"print(2)\n"})
    live.database.write(lambda c: tokens.keep(c, "secret", "alice", 4e9))
    yield live
    live.close()


@pytest.fixture(scope="module")
def made(served: Live, tmp_path_factory: pytest.TempPathFactory, key: Path) -> Path:
    """A backup with results."""
    from local_backend.commands.backup import backup

    file = tmp_path_factory.mktemp("backup") / "b.tar.gz"
    backup(served.settings, file, results=True, force=False, key=key)
    return file


def rows(home: Path) -> list[execs.ExecRow]:
    """Return the execs that a server loads when it starts on this home."""
    database = open_database(settings_for(home))
    try:
        return database.read(lambda c: execs.of_user(c, None))
    finally:
        database.close()


def test_a_backup_of_a_running_server_is_restored_elsewhere(served: Live, tmp_path: Path, command: Command) -> None:
    file, home = tmp_path / "b.tar.gz", tmp_path / "new"
    for fetched in (served.paths("local-1").data, served.paths("local-1").fetching):
        fetched.mkdir()
        fetched.joinpath("x").touch()
    said = command(served.settings.home, "backup", str(file), "--results", "-o", "json")
    assert said.exit_code == 0 and json.loads(said.output)["execs"] == 2 and json.loads(said.output)["leftOut"] == 1
    assert file.stat().st_mode & 0o777 == 0o600 and list(tmp_path.iterdir()) == [file]
    said = command(home, "restore", str(file))
    assert said.exit_code == 0 and said.output == "restored execs: 2\n"
    assert rows(home) == served.database.read(lambda c: execs.of_user(c, None))
    there = settings_for(home).paths.job("local-1", "alice")
    assert there.model.joinpath("weights").read_bytes() == b"w" * 5000 and there.spec.stat().st_mode & 0o777 == 0o600
    assert there.submitted.joinpath("main.py").read_bytes() == b"print(1)\n"
    for row in rows(home):
        assert bundles.digest(settings_for(home).paths.bundle(str(row.bundle))) == row.bundle
    assert not there.data.exists() and not there.fetching.exists(), "fetched data is not part of a backup"
    with closing(sqlite3.connect(home / "backend.db")) as restored:
        assert restored.execute("SELECT count(*) FROM tokens").fetchone() == (0,)
    assert [path.name for path in home.glob(".*")] == [] == [path.name for path in home.glob("restoring")]


def test_a_follower_misses_no_event_after_a_restore(tmp_path: Path, command: Command) -> None:
    live = Live(settings_for(tmp_path / "home"))
    exec_id = live.submitted()
    assert command(live.settings.home, "backup", str(tmp_path / "b.tar.gz")).exit_code == 0
    live.move(exec_id, PENDING, RUNNING, FINISHED)
    cursor = live.call("GET", f"/execs/{exec_id}/follow").json()["cursor"]
    live.close()
    assert command(live.settings.home, "restore", str(tmp_path / "b.tar.gz"), "--force").exit_code == 0
    live = Live(settings_for(tmp_path / "home"))
    live.move(exec_id, PENDING)
    news = live.call("GET", f"/execs/{exec_id}/follow?cursor={cursor}").json()
    live.close()
    assert [event["state"] for event in news["events"]] == [PENDING]


def test_a_backup_is_consistent_while_execs_are_added_and_deleted(tmp_path: Path, command: Command) -> None:
    live = Live(settings_for(tmp_path / "busy"))
    over = threading.Event()

    def submit_and_delete() -> None:
        while not over.is_set():
            live.forget(live.submitted())
            live.submitted()

    busy = threading.Thread(target=submit_and_delete)
    busy.start()
    try:
        for number in range(3):
            file, home = tmp_path / f"{number}.tar.gz", tmp_path / f"home{number}"
            assert command(live.settings.home, "backup", str(file)).exit_code == 0
            assert command(home, "restore", str(file)).exit_code == 0
            kept = [row for row in rows(home) if live.database.read(partial(execs.get, exec_id=row.id))]
            for row in kept:
                paths = settings_for(home).paths.job(row.id, "alice")
                assert paths.spec.exists() and paths.submitted.joinpath("main.py").exists(), row.id
    finally:
        over.set()
        busy.join()
        live.close()


def test_without_results_a_waiting_exec_can_still_run(served: Live, tmp_path: Path, command: Command) -> None:
    file, home = tmp_path / "b.tar.gz", tmp_path / "new"
    assert "without results" in command(served.settings.home, "backup", str(file)).output
    assert "without results: " in command(home, "restore", str(file)).output
    log = settings_for(home).paths.job("local-1", "alice").launcher_log
    assert "--results" in log.read_text() and log.stat().st_mode & 0o777 == 0o600
    waiting = settings_for(home).paths.job("local-2", "alice")
    assert waiting.submitted.joinpath("main.py").read_bytes() == b"print(2)\n" and waiting.spec.exists()
    assert not settings_for(home).paths.job("local-1", "alice").model.joinpath("weights").exists()


def test_only_force_replaces_a_home_and_the_old_home_is_kept(made: Path, tmp_path: Path, command: Command) -> None:
    assert command(tmp_path, "restore", str(made)).exit_code == 0
    newer = settings_for(tmp_path).paths.job("local-1", "alice").model / "weights"
    newer.write_bytes(b"newer")
    refused = command(tmp_path, "restore", str(made))
    assert refused.exit_code == 1 and "--force" in refused.output
    (tmp_path / "backend.db").write_bytes(b"garbage")
    done = command(tmp_path, "restore", str(made), "--force")
    assert done.exit_code == 0 and len(rows(tmp_path)) == 2
    (kept,) = tmp_path.glob("replaced-*")
    assert (kept / "backend.db").read_bytes() == b"garbage" and (kept / "jobs" / "local-1").is_dir()
    assert str(kept) in done.output and newer.read_bytes() == b"newer"


def test_restore_is_refused_while_a_server_or_a_job_runs(made: Path, tmp_path: Path, command: Command) -> None:
    settings = settings_for(tmp_path)
    make_home(settings)
    with locked(settings):
        refused = command(tmp_path, "restore", str(made), "--force")
    assert refused.exit_code == 1 and str(tmp_path) in refused.output
    job = settings.paths.job("local-9", "alice")
    job.state.mkdir()
    with job.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = command(tmp_path, "restore", str(made), "--force")
    assert refused.exit_code == 1 and "local-9" in refused.output


def entries(made: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(made) as archive:
        return [(entry, archive.extractfile(entry).read() if entry.isreg() else b"")  # type: ignore[union-attr]
                for entry in archive]


def rewritten(made: Path, target: Path, change: Callable[[tarfile.TarInfo, bytes], bytes | None], *more: str) -> Path:
    """Write the backup to `target` with changed contents (None: left out) and additional files `more`, and a valid
    tag."""
    with tarfile.open(target, "w:gz") as archive:
        for entry, content in entries(made):
            new = change(entry, content)
            if new is not None:
                entry.size = len(new)
                archive.addfile(entry, io.BytesIO(new))
        for name in more:
            entry = tarfile.TarInfo(name)
            entry.size = 1
            archive.addfile(entry, io.BytesIO(b"x"))
    with target.open("ab") as file:
        file.write(backup_tag.tag(LINE.encode(), hashlib.sha256(target.read_bytes()).digest()))
    return target


def with_manifest(**values: Any) -> Callable[[tarfile.TarInfo, bytes], bytes]:
    return lambda entry, content: (
        json.dumps(json.loads(content) | values).encode() if entry.name == "manifest.json" else content
    )


def same(_entry: tarfile.TarInfo, content: bytes) -> bytes:
    return content


@pytest.mark.parametrize(("change", "more", "said"), [
    (with_manifest(format=3), (), "another version"),
    (with_manifest(schema="9999"), (), "newer version"),
    (with_manifest(unknown=1), (), "damaged"),
    (lambda e, c: c if e.name != "manifest.json" else None, (), "not a backup"),
    (lambda e, c: c if e.name != "backend.db" else None, (), "damaged"),
    (lambda e, c: c if e.name != "backend.db" else c[:-1] + b"!", (), "damaged"),
    (same, ("jobs/../../evil",), "does not belong in a backup"), (same, ("/evil",), "does not belong in a backup"),
    (same, ("trees/alice/../../../evil",), "does not belong in a backup"),
    (same, ("backend.json",), "does not belong in a backup"),
])
def test_a_bad_backup_changes_nothing(
    *, change: Callable[..., Any], more: tuple[str, ...], said: str, made: Path, tmp_path: Path, command: Command
) -> None:
    bad, home = rewritten(made, tmp_path / "bad.tar.gz", change, *more), tmp_path / "home"
    refused = command(home, "restore", str(bad))
    assert refused.exit_code == 1 and said in refused.output and refused.output.count("\n") == 1
    assert os.listdir(tmp_path) == ["bad.tar.gz"], "the restore must leave no files behind"


def test_a_truncated_backup_changes_nothing(made: Path, tmp_path: Path, command: Command) -> None:
    content = made.read_bytes()
    for kept in (0, 10, len(content) // 3, len(content) - 1):
        (tmp_path / "cut").write_bytes(content[:kept])
        refused = command(tmp_path / "home", "restore", str(tmp_path / "cut"))
        assert refused.exit_code == 1 and "damaged" in refused.output
        assert not (tmp_path / "home").exists()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "server.yaml").write_text("slots: 3\n")
    assert command(tmp_path / "home", "restore", str(tmp_path / "cut")).exit_code == 1
    assert os.listdir(tmp_path / "home") == ["server.yaml"], "the restore must keep existing files"
    refused = command(tmp_path / "none", "restore", str(tmp_path / "nope"))
    assert refused.exit_code == 1 and str(tmp_path / "nope") in refused.output
    assert not (tmp_path / "none").exists()


def test_a_changed_backup_is_refused_before_anything_is_written(made: Path, tmp_path: Path, command: Command) -> None:
    content = made.read_bytes()
    half = len(content) // 2
    other = made.with_name("other")
    if not other.exists():
        other.write_bytes(rewritten(made, tmp_path / "other", same).read_bytes())
        (tmp_path / "other").unlink()
    tag = backup_tag.SIZE
    for name, bad, code in (
        ("flipped", content[:half] + bytes([content[half] ^ 1]) + content[half + 1:], "backup.changed"),
        ("reordered", content[half:-tag] + content[:half] + content[-tag:], "backup.changed"),
        ("longer", content[:-tag] + b"x" + content[-tag:], "backup.changed"),
        ("tag of another", content[:-tag] + other.read_bytes()[-tag:], "backup.changed"),
        ("other tag", content[:-12] + bytes([content[-12] ^ 1]) + content[-11:], "backup.changed"),
        ("cut", content[:half], "backup.untagged"),
        ("appended", content + b"x", "backup.untagged"),
    ):
        (tmp_path / "bad").write_bytes(bad)
        refused = command(tmp_path / "home", "restore", str(tmp_path / "bad"))
        assert refused.exit_code == 1 and f"[{code}]" in refused.output, (name, refused.output)
        assert os.listdir(tmp_path) == ["bad"], name


def test_the_key_of_the_home_verifies_its_backups_and_no_others(served: Live, tmp_path: Path, command: Command) -> None:
    home, file = served.settings.home, tmp_path / "b.tar.gz"
    assert command(home, "backup", str(file), home_key=True).exit_code == 0
    new = tmp_path / "new"
    refused = command(new, "restore", str(file), home_key=True)
    assert refused.exit_code == 1 and "[backup.foreign]" in refused.output and not new.exists()
    refused = command(new, "restore", str(file))
    assert refused.exit_code == 1 and "[backup.foreign]" in refused.output and not new.exists()
    with_copy = command(new, "restore", str(file), "--key-file", str(home / "vault" / "secrets.key"), home_key=True)
    assert with_copy.exit_code == 0 and len(rows(new)) == 2
    shutil.copytree(home / "vault", tmp_path / "again" / "vault")
    assert command(tmp_path / "again", "restore", str(file), home_key=True).exit_code == 0


def test_an_older_key_of_the_home_still_verifies_until_it_is_removed(
    served: Live, tmp_path: Path, command: Command
) -> None:
    file, vault = tmp_path / "b.tar.gz", tmp_path / "home" / "vault"
    assert command(served.settings.home, "backup", str(file), home_key=True).exit_code == 0
    old = (served.settings.home / "vault" / "secrets.key").read_text()
    vault.mkdir(parents=True)
    (vault / "secrets.key").write_text(Fernet.generate_key().decode() + "\n")
    assert "[backup.foreign]" in command(tmp_path / "home", "restore", str(file), home_key=True).output
    with (vault / "secrets.key").open("a") as keys:
        keys.write(old)
    assert command(tmp_path / "home", "restore", str(file), home_key=True).exit_code == 0


def test_a_backup_of_an_earlier_version_needs_an_option(made: Path, tmp_path: Path, command: Command) -> None:
    old, stripped = tmp_path / "old", tmp_path / "stripped"
    old.write_bytes(rewritten(made, tmp_path / "x", with_manifest(format=1)).read_bytes()[:-backup_tag.SIZE])
    stripped.write_bytes(made.read_bytes()[:-backup_tag.SIZE])
    assert "[backup.untagged]" in command(tmp_path / "home", "restore", str(old)).output
    assert "[backup.changed]" in command(tmp_path / "home", "restore", str(stripped), "--allow-untagged").output
    assert not (tmp_path / "home").exists()
    assert command(tmp_path / "home", "restore", str(old), "--allow-untagged").exit_code == 0
    assert len(rows(tmp_path / "home")) == 2


def test_an_unusable_key_file_is_refused(served: Live, made: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "short").write_text("secret\n")
    for name in ("short", "missing"):
        for words in (("restore", str(made)), ("backup", str(tmp_path / "b"))):
            home = served.settings.home if words[0] == "backup" else tmp_path / "home"
            refused = command(home, *words, "--key-file", str(tmp_path / name), home_key=True)
            assert refused.exit_code == 1 and "[backup.key]" in refused.output
    assert os.listdir(tmp_path) == ["short"]


def test_a_backup_is_an_ordinary_compressed_archive(made: Path) -> None:
    listed = subprocess.run(["tar", "-tzf", made], capture_output=True, text=True, check=True)
    assert "backend.db" in listed.stdout.split() and not listed.stderr
    subprocess.run(["gzip", "-t", made], check=True)


def test_after_a_failed_restore_the_restore_can_be_repeated(
    *, made: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(tmp_path / "old", "restore", str(made)).exit_code == 0
    (tmp_path / "old" / "mark").touch()
    real, done, refusals = os.rename, False, 0
    for fails_at in range(20):
        home = shutil.copytree(tmp_path / "old", tmp_path / f"home{fails_at}")
        shutil.rmtree(home / "results")
        calls = iter(range(1000))

        def rename(*words: Any, calls: Iterator[int] = calls, fails_at: int = fails_at) -> None:
            if next(calls) == fails_at:
                raise OSError(28, "No space left on device", "x")
            real(*words)

        monkeypatch.setattr(os, "rename", rename)
        said = command(home, "restore", str(made), "--force")
        monkeypatch.setattr(os, "rename", real)
        if said.exit_code == 0:
            done = True
            break
        refusals += 1
        assert f"{home} is incomplete" in said.output and "--force" in said.output
        with pytest.raises(ServingError, match="restore"):
            rows(home)
        assert command(home, "restore", str(made), "--force").exit_code == 0
        assert len(rows(home)) == 2
    assert done and refusals >= 4


def test_a_backup_is_written_completely_or_not_at_all(served: Live, tmp_path: Path, command: Command) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    refused = command(served.settings.home, "backup", str(taken))
    assert refused.exit_code == 1 and "already exists" in refused.output and taken.read_text() == "mine"
    refused = command(served.settings.home, "backup", str(tmp_path / "nowhere" / "x"))
    assert refused.exit_code == 1 and "cannot write" in refused.output
    refused = command(tmp_path / "empty", "backup", str(tmp_path / "x"))
    assert refused.exit_code == 1 and str(tmp_path / "empty") in refused.output
    assert command(served.settings.home, "backup", str(taken), "--force").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.integration
def test_doctor_reports_no_problem_on_a_sound_home(made: Path, tmp_path: Path, command: Command) -> None:
    assert command(tmp_path, "restore", str(made)).exit_code == 0
    said = command(tmp_path, "doctor", "-o", "json")
    found = json.loads(said.output)
    assert said.exit_code == 0 and found["ok"] and {item["level"] for item in found["findings"]} == {"ok"}, found
    assert {item["check"] for item in found["findings"]} == {
        "home", "isolation", "keys", "tls", "forwarding", "server", "database", "backups", "secrets", "rows", "folders",
        "disk", "kinds", "devices", "torch", "clock",
    }


def test_doctor_names_each_problem_and_its_repair(
    *, made: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.sys, "executable", shutil.which("false"))
    assert command(tmp_path, "restore", str(made)).exit_code == 0
    (tmp_path / "backend.db").chmod(0o644)
    shutil.rmtree(tmp_path / "jobs" / "local-2")
    (tmp_path / "results" / "alice" / "batchworkdir" / "local-7").mkdir()
    with closing(sqlite3.connect(tmp_path / "backend.db")) as database, database:
        database.execute("UPDATE execs SET create_time = create_time + 1000000")
    said = command(tmp_path, "doctor")
    assert said.exit_code == 1
    for text in ("chmod 600", "local-2: files missing in", "local-7: results without an exec",
                 "import torch fails", "NTP"):
        assert text in said.output, said.output
    (tmp_path / "backend.db").write_bytes((tmp_path / "backend.db").read_bytes()[:9000])
    said = command(tmp_path, "doctor")
    assert said.exit_code == 1 and "restore a backup" in said.output


def test_doctor_finds_old_keys_and_missing_or_old_backups_of_a_server_for_a_team(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(settings_for(tmp_path))
    live.close()
    monkeypatch.setattr(doctor, "_torch", lambda _patient: iter(()))

    def levels(check: str) -> list[str]:
        found = json.loads(command(tmp_path, "doctor", "-o", "json").stdout)["findings"]
        return [item["level"] for item in found if item["check"] == check]

    assert levels("backups") == ["ok"], "a server for one user may do without"
    monkeypatch.setenv("DLI_HOST", "127.0.0.1")
    assert levels("backups") == ["warning"]
    assert command(tmp_path, "backup", str(tmp_path.with_name("b.tar.gz")), "--force", home_key=True).exit_code == 0
    assert levels("backups") == ["ok"] and levels("keys") == ["ok"]
    made = json.loads((tmp_path / "backup.json").read_text())
    (tmp_path / "backup.json").write_text(json.dumps({**made, "time": made["time"] - 30 * 86400}))
    os.utime(tmp_path / "vault" / "secrets.key", (made["time"] - 400 * 86400,) * 2)
    assert levels("backups") == ["warning"] and levels("keys") == ["ok", "warning"]
    (tmp_path / "vault" / "secrets.key").chmod(0o640)
    assert "problem" in levels("home")


def test_a_restore_keeps_the_states_of_execs(tmp_path: Path, command: Command) -> None:
    live = Live(settings_for(tmp_path / "home"))
    moves: list[tuple[str, ...]] = [(), (PENDING,), (PENDING, RUNNING), (PENDING, RUNNING, RECOVERING),
                                    *((PENDING, RUNNING, end) for end in sorted(TERMINAL))]
    for states in moves:
        live.move(live.submitted(), *states)
    before = live.database.read(lambda c: execs.of_user(c, None))
    live.close()
    assert command(live.settings.home, "backup", str(tmp_path / "b.tar.gz")).exit_code == 0
    assert command(tmp_path / "new", "restore", str(tmp_path / "b.tar.gz")).exit_code == 0
    assert rows(tmp_path / "new") == before
    assert [row.state for row in before] == [states[-1] if states else SUBMITTED for states in moves]
