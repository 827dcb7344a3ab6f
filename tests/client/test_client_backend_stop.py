"""Messages of `local-backend stop` with and without `--jobs`."""

from __future__ import annotations

import urllib.error
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from workloads import workload

from dlicmd.contract import dlim, wire
from local_backend import cli
from local_backend.store import execs
from local_backend.store.database import Database


def test_stop_prints_the_jobs_and_the_grace_period_before_it_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    asked: list[Any] = []

    def call(_found: dict[str, Any], method: str, path: str, body: Any = None) -> Any:
        if path == wire.STATUS:
            return {wire.STOP_GRACE: 7.0}
        if method == "POST":
            said.append(capsys.readouterr().out)
            asked.append((path, body))
        return [{"id": "local-3", "state": "RUNNING"}]

    monkeypatch.setattr(cli, "call", call)
    cli._stop_jobs({}, ["local-1", "local-2"])
    assert said == ["stopping local-1, local-2; jobs have 7 s to finish\n"]
    assert asked == [(wire.STOP_MANY, {"ids": ["local-1", "local-2"]})]
    assert capsys.readouterr().out == "stopped local-1, local-2\n"
    cli._stop_jobs({}, [f"local-{number}" for number in range(10, 10_110)])
    assert [len(body["ids"]) for _, body in asked[1:]] == [10_000, 100]
    assert capsys.readouterr().out == f"stopped {', '.join(f'local-{n}' for n in range(10, 30))} and 10080 more\n"


def test_stop_names_pending_jobs_if_no_server_is_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLICMD_HOME", str(tmp_path))

    def stop(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli.main, ["stop", *words], catch_exceptions=False)
        return done.exit_code, done.output

    assert stop("--jobs") == (0, f"no server is running on {tmp_path}\n")
    database = Database(tmp_path / "backend.db")
    database.open()
    for number in (1, 2):
        spec = workload(id=f"local-{number}")
        database.write(lambda c, number=number, spec=spec: execs.create(c, number, spec, "", None, "/work"))
    database.write(lambda c: execs.transition(c, "local-1", "KILLED"))
    database.close()
    code, said = stop("--jobs")
    assert code == 1 and "local-2" in said and "local-1" not in said and "local-backend serve" in said
    assert stop() == (0, f"no server is running on {tmp_path}\n")


@pytest.mark.parametrize(("active", "models", "said"), [
    ({"local-1": "RUNNING"}, {}, "1 job continues (local-1);"),
    ({"local-1": "RECOVERING", "local-2": "SUBMITTED", "local-3": "RUNNING"}, {},
     "2 jobs continue (local-1, local-3), 1 job pending (local-2);"),
    ({"local-2": "SUBMITTED", "local-3": "PENDING_CRD_SCHEDULER"}, {"m": "Stopped"},
     "2 jobs pending (local-2, local-3);"),
    ({"local-1": "RUNNING"}, {"m": "Started", "n": "Failed"}, "1 job continues (local-1), 1 model serves (m);"),
    ({}, {"m": "Started", "n": "Starting"}, "2 models serve (m, n);"),
    ({}, {}, ""),
    ({}, None, ""),
])
def test_stop_counts_the_remaining_jobs_and_says_how_to_stop_them(
    monkeypatch: pytest.MonkeyPatch, active: dict[str, str], models: dict[str, str] | None, said: str
) -> None:
    """`models` is None for a server of a version without models."""
    def call(_found: dict[str, Any], _method: str, path: str) -> Any:
        if path != dlim.MODELS:
            return [{"id": name, "state": state} for name, state in active.items()]
        if models is None:
            raise urllib.error.HTTPError(path, 404, "Not Found", Message(), None)
        return [{"name": name, "state": state} for name, state in models.items()]

    monkeypatch.setattr(cli, "running", lambda: {"pid": 2**22 + 1})
    monkeypatch.setattr(cli, "call", call)
    done = CliRunner().invoke(cli.main, ["stop"], catch_exceptions=False)
    assert done.exit_code == 0
    _, *more = done.output.splitlines()
    assert len(more) == bool(said)
    assert all(line.startswith(said) and "local-backend stop --jobs" in line for line in more)
