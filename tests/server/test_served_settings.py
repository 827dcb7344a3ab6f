"""Commands use the settings of the running server; after it stops, its settings keep clients from replacing it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from support import eventually
from user import User

from dlicmd.sdk import backend
from dlicmd.sdk.errors import BackendNotStarted
from local_backend.cli import main
from local_backend.files import write_json
from local_backend.serving import served
from local_backend.serving.server import locked, make_home
from local_backend.settings import TABLE, Settings


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for setting in TABLE:
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("DLICMD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@contextmanager
def running(settings: Settings) -> Iterator[None]:
    """Prepare a home as a running server with these settings does."""
    make_home(settings)
    with locked(settings):
        served.leave(settings, 1)
        write_json(settings.home / "backend.json", {"pid": os.getpid(), "url": "http://127.0.0.1:1", "token": "t"})
        yield


def shown() -> dict[str, tuple[str, str]]:
    done = CliRunner().invoke(main, ["config", "-o", "json"], catch_exceptions=False)
    return {row["setting"]: (row["value"], row["source"]) for row in json.loads(done.stdout)}


def test_commands_use_the_settings_of_the_running_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLI_PASSWORD", "tell-nobody")
    monkeypatch.setenv("DLI_STOP_GRACE", "4")
    settings = Settings.from_environment(["keep_days=7", f"result_fs={home / 'far'}"], slots=3, open_metrics=True)
    for name in ("DLI_PASSWORD", "DLI_STOP_GRACE"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("DLI_SLOTS", "9")
    with running(settings):
        found = shown()
        assert found["DLI_SLOTS"] == ("3", "--slots") and found["DLI_KEEP_DAYS"] == ("7", "--set keep_days")
        assert found["DLI_STOP_GRACE"] == ("4", "DLI_STOP_GRACE") and found["DLI_PASSWORD"] == ("***", "DLI_PASSWORD")
        assert found["DLI_OPEN_METRICS"] == ("true", "--open-metrics")
        pruned = CliRunner().invoke(main, ["prune"], catch_exceptions=False)
        assert (pruned.exit_code, pruned.output) == (0, "removed: 0 (0B)\n"), "prune must use the server's keep_days"
        monkeypatch.setattr("local_backend.serving.doctor._torch", lambda _: iter(()))
        sick = CliRunner().invoke(main, ["doctor"], catch_exceptions=False)
        assert "slots: 3 cpu" in sick.output and f"{home / 'far'} has" in sick.output
        left = home / "served.json"
        assert left.stat().st_mode & 0o777 == 0o600 and "tell-nobody" not in left.read_text()
    assert shown()["DLI_SLOTS"] == ("9", "DLI_SLOTS"), "no server is running"
    assert CliRunner().invoke(main, ["prune"]).exit_code == 2


def test_a_command_needs_the_database_url_if_it_has_a_password(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, secret = "postgresql+psycopg://h/x", "postgresql+psycopg://ada:hidden@h/x"
    with running(Settings.from_environment(database=plain)):
        read = served.read(home / "served.json")
        assert read is not None and read.settings(home).database == plain
    monkeypatch.setenv("DLI_DATABASE", secret)
    settings = Settings.from_environment()
    monkeypatch.delenv("DLI_DATABASE")
    with running(settings):
        assert "hidden" not in (home / "served.json").read_text()
        done = CliRunner().invoke(main, ["doctor"], catch_exceptions=False)
        assert done.exit_code == 1 and "DLI_DATABASE" in done.output
        assert shown()["DLI_DATABASE"] == ("***", "DLI_DATABASE"), "the source must be shown"
        monkeypatch.setenv("DLI_DATABASE", secret)
        assert shown()["DLI_DATABASE"] == ("***", "DLI_DATABASE")


def test_commands_work_while_the_settings_file_is_damaged(home: Path) -> None:
    with running(Settings.from_environment(slots=3)):
        (home / "server.yaml").write_text("slots: [")
        assert shown()["DLI_SLOTS"] == ("3", "--slots")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"embedded": false}', '{"embedded": true, "command": "x"}'])
def test_an_invalid_served_file_does_not_stop_clients(home: Path, content: str) -> None:
    home.mkdir()
    (home / "served.json").write_text(content)
    backend._mind_team(home)
    assert served.read(home / "served.json") is None


def test_the_error_contains_the_command_that_starts_the_server_again(home: Path) -> None:
    cert = home / "a b.pem"
    with running(Settings.from_environment(["keep_days=7"], host="127.0.0.1", port=0, tls_cert=cert, tls_key=cert)):
        pass
    command = f"local-backend serve --set keep_days=7 --host 127.0.0.1 --port 0 --tls-cert '{cert}' --tls-key '{cert}'"
    with pytest.raises(BackendNotStarted, match="not running") as refused:
        backend._mind_team(home)
    assert command in str(refused.value)


def test_a_client_does_not_start_a_server_on_the_home_of_a_team_server(tmp_path: Path) -> None:
    """The client runs in a shell of an administrator, with the home of the server, while the server is down."""
    admin = User(tmp_path / "home")
    server = admin.serve("--host", "127.0.0.1", "--port", "0", "--tls-self-signed")
    try:
        eventually((admin.home / "backend.json").exists, "the server serves")
        assert admin.run("--exec-get-all").code == 0
        assert {"setting": "DLI_HOST", "value": "127.0.0.1", "source": "--host"} in json.loads(
            admin.backend("config", "-o", "json").out)
    finally:
        admin.backend("stop")
        server.communicate(timeout=60)
    refused = admin.run("--exec-get-all")
    assert refused.code == 8 and not (admin.home / "backend.json").exists(), refused
    assert "local-backend serve --host 127.0.0.1 --port 0 --tls-self-signed" in refused.err
    assert len(refused.err.splitlines()) == 1
