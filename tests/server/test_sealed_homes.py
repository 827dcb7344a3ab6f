"""Variables of jobs are never stored unencrypted; those stored by an earlier version are sealed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from live_server import settings_for
from workloads import workload

from local_backend.cli import main
from local_backend.forward import orders
from local_backend.forward.target import Rest
from local_backend.runtime.launch import Launch, requeues
from local_backend.scheduler.slots import cpu_slots
from local_backend.serving.home_database import opened
from local_backend.serving.server import make_home, open_database
from local_backend.settings import Settings
from local_backend.store import execs
from local_backend.store.database import Database
from local_backend.store.errors import DatabaseError
from local_backend.vault import Vault, VaultError

DATA = Path(__file__).parent.parent / "data"
SECRET = "planted-by-an-earlier-version"


@pytest.fixture
def old(tmp_path: Path) -> Settings:
    """A home of the previous version, with a secret in a waiting job and in a deleted job."""
    settings = settings_for(tmp_path / "home")
    make_home(settings)
    with closing(sqlite3.connect(settings.paths.database)) as made:
        made.executescript((DATA / "schema_0006.sql").read_text(encoding="utf-8"))
        for exec_id in ("local-1", "local-3"):
            spec = json.loads(made.execute("SELECT spec FROM execs WHERE id = ?", [exec_id]).fetchone()[0])
            spec["env"] = {"MY_TOKEN": SECRET, "EMPTY": ""}
            made.execute("UPDATE execs SET spec = ? WHERE id = ?", [json.dumps(spec, sort_keys=True), exec_id])
            paths = settings.paths.job(exec_id, "ada")
            paths.state.mkdir()
            launch = spec if exec_id == "local-3" else {
                "spec": json.dumps(spec), "environment": {"A_KEY": SECRET}, "requeues": 2,
            }
            paths.spec.write_text(json.dumps(launch))
        targets = {"rest": {"url": "https://h/in", "bearer": SECRET}, "rabbit": None}
        settings.paths.order("local-3").write_text(json.dumps({"user": "ada", "targets": targets}))
        made.execute("DELETE FROM execs WHERE id = 'local-1'")
        made.commit()
    assert SECRET in everything(settings.home)
    return settings


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs `local-backend` on the home."""
    monkeypatch.setenv("DLICMD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("local_backend.serving.doctor._torch", lambda _patient: iter(()))
    return lambda *words: CliRunner().invoke(main, words)


def findings(command: Callable[..., Result]) -> dict[str, str]:
    """Return the finding of doctor about secrets."""
    shown = json.loads(command("doctor", "-o", "json").stdout)["findings"]
    return next(one for one in shown if one["check"] == "secrets")


def everything(home: Path) -> str:
    return "".join(path.read_bytes().decode("latin-1") for path in home.rglob("*") if path.is_file())


def test_secrets_of_an_earlier_version_are_sealed_and_still_work(old: Settings) -> None:
    database = open_database(old)
    try:
        row = database.read(lambda c: execs.get(c, "local-3"))
        assert row is not None
        vault = Vault(old.paths.vault)
        assert {name: vault.open_text(value) for name, value in row.workload.environment.variables.items()} == {
            "MY_TOKEN": SECRET, "EMPTY": ""}
    finally:
        database.close()
    assert SECRET not in everything(old.home)
    order = orders.find(old.paths, "local-3")
    assert order is not None and order.user == "ada" and order.targets.rest == Rest("https://h/in", SECRET)
    open_database(old).close()


def test_an_upgraded_launch_file_keeps_only_user_and_counts(old: Settings) -> None:
    opened(old).close()
    paths = old.paths.job("local-1", "ada")
    assert requeues(paths) == 2 and json.loads(paths.spec.read_text()) == {
        "user": "ada", "requeues": 2,
    }


def test_a_database_is_not_upgraded_without_a_key(old: Settings) -> None:
    database = Database(old.paths.database)
    with pytest.raises(DatabaseError, match="sealed"):
        database.open()
    database.close()
    assert SECRET in old.paths.database.read_bytes().decode("latin-1")


def test_a_launch_file_contains_no_secret_and_restores_the_variables(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "home")
    make_home(settings)
    vault = Vault(settings.paths.vault)
    spec = workload(variables={"MY_TOKEN": vault.seal_text(SECRET)})
    launch = Launch(spec, 1, settings.paths, cpu_slots(1), 1, {"A_KEY": SECRET, "PATH": "/bin"}, 1.0)
    launch.paths.state.mkdir()
    launch.write()
    assert SECRET not in everything(settings.home)
    found = Launch.read(launch.paths.spec)
    assert found.spec.environment.variables == {"MY_TOKEN": SECRET} and found.environment == launch.environment
    settings.paths.vault.unlink()
    with pytest.raises(VaultError, match=str(settings.paths.vault)):
        launch.write()


def test_a_renewed_key_reseals_secrets_and_doctor_detects_a_lost_key(
    old: Settings, command: Callable[..., Result]
) -> None:
    open_database(old).close()
    vault = Vault(old.paths.vault)
    first = old.paths.vault.read_bytes()
    done = command("renew-key")
    assert done.exit_code == 0 and str(old.paths.vault) in done.stdout, done.output
    renewed = old.paths.vault.read_bytes()
    assert first.strip() not in renewed and len(renewed.split()) == 1
    assert findings(command)["level"] == "ok"
    with closing(Database(old.paths.database)) as database:
        row = database.read(lambda c: execs.get(c, "local-3"))
    assert row is not None and vault.open_text(row.workload.environment.variables["MY_TOKEN"]) == SECRET
    assert orders.find(old.paths, "local-3") is not None
    old.paths.vault.write_bytes(first)
    found = findings(command)
    assert found["level"] == "problem" and found["do"]
    assert "local-3, metrics of local-3" in found["what"]
    old.paths.vault.unlink()
    assert "local-3" in findings(command)["what"]
    old.paths.vault.write_bytes(b"broken")
    assert str(old.paths.vault) in findings(command)["what"]
