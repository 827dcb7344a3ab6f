"""Quotas of one user, the minimum of free disk space, and the removal of old results."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from live_server import Live, settings_for

from dlicmd.contract.states import ERROR, FINISHED, KILLED, PENDING, RUNNING, SUBMITTED
from local_backend.cli import main
from local_backend.runtime.retention import expired
from local_backend.serving.server import make_home, open_database
from local_backend.settings import Quotas, Settings
from local_backend.store import execs
from local_backend.store.execs import Brief

MAIN = {"main.py": b"print(1)\n"}
ARGS = "--exec-start PyTorch --model-main main.py"
DAY = 86_400.0


def test_the_limit_of_active_execs_holds_for_simultaneous_submissions(start: Callable[..., Live]) -> None:
    live = start(quotas=Quotas(active_execs=2))
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: live.submit(ARGS, MAIN), range(6)))
    assert sorted(answer.status for answer in answers) == [200, 200, 507, 507, 507, 507]
    refused = next(answer for answer in answers if answer.status == 507)
    assert refused.error == (507, "quota.active")
    assert "alice has 2 " in refused.text and "dlicmd --exec-stop ID" in refused.text
    kept = sorted(path.name for path in live.settings.paths.jobs.iterdir())
    assert len(kept) == 2 and not list(live.settings.paths.incoming.iterdir())
    live.move(kept[0], PENDING, KILLED)
    live.submitted(ARGS)


def test_the_limit_of_stored_execs_holds(start: Callable[..., Live]) -> None:
    live = start(quotas=Quotas(stored_execs=1))
    only = live.submitted(ARGS)
    live.move(only, PENDING, KILLED)
    refused = live.submit(ARGS, MAIN)
    assert refused.error == (507, "quota.execs")
    assert "limit is 1" in refused.text and "--exec-delete" in refused.text
    entry = json.loads((live.settings.home / "audit.log").read_text().splitlines()[-1])
    assert (entry["action"], entry["outcome"], entry["code"]) == ("exec.submit", "refused", "quota.execs")
    assert live.call("DELETE", f"/execs/{only}").status == 204
    live.submitted(ARGS)


def test_the_limit_of_bytes_holds_and_a_deletion_frees_space_at_once(start: Callable[..., Live]) -> None:
    live = start(quotas=Quotas(stored_bytes=1_000_000))
    first = live.submitted(files={"main.py": b"#" * 600_000})
    refused = live.submit(ARGS, {"main.py": b"#" * 600_000})
    assert refused.error == (507, "quota.bytes") and "976.6K" in refused.text, "new submissions must count"
    live.paths(first).model.joinpath("weights").write_bytes(b"w" * 500_000)
    live.services.housekeeper.round()
    refused = live.submit(ARGS, MAIN)
    assert refused.error == (507, "quota.bytes"), "results must count"
    assert live.call("DELETE", f"/execs/{first}").status == 204
    live.submitted(ARGS)
    packages = live.settings.paths.user_python("alice")
    packages.mkdir(parents=True)
    packages.joinpath("large").write_bytes(b"p" * 1_000_000)
    live.services.housekeeper.round()
    assert live.submit(ARGS, MAIN).error == (507, "quota.bytes"), "packages must count"


def test_a_full_disk_refuses_submissions_and_running_jobs_continue(
    start: Callable[..., Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start(quotas=Quotas(free_bytes=10**6))
    running = live.submitted(ARGS)
    live.run_on(running, "cpu-0")
    real = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=800 * 1024))
    refused = live.submit(ARGS, MAIN)
    assert refused.error == (507, "storage.full") and "800.0K" in refused.text and "976.6K" in refused.text
    assert live.call("GET", f"/execs/{running}").json()["state"] == RUNNING
    monkeypatch.setattr(shutil, "disk_usage", real)
    live.submitted(ARGS)


def row(number: int, state: str, ended: float | None) -> Brief:
    return Brief(number, f"local-{number}", "alice", "name", state, 0.0, None, ended, None, deleted=False)


ROWS = st.lists(st.tuples(st.sampled_from([SUBMITTED, PENDING, RUNNING, FINISHED, ERROR, KILLED]),
                          st.integers(0, 20), st.integers(0, 100)), max_size=12)


@given(ROWS, st.none() | st.integers(1, 10), st.none() | st.integers(1, 500))
def test_only_ended_execs_expire_by_age_or_size(
    told: list[tuple[str, int, int]], days: int | None, most: int | None
) -> None:
    rows = [row(n, state, ended * DAY if state in (FINISHED, ERROR, KILLED) else None)
            for n, (state, ended, _) in enumerate(told, 1)]
    sizes = {f"local-{n}": size for n, (_, _, size) in enumerate(told, 1)}
    now = 20 * DAY
    gone = {item.row.id for item in expired(rows, sizes.__getitem__, Quotas(keep_days=days, keep_bytes=most), now)}
    over = [one for one in rows if one.end_time is not None]
    assert gone <= {one.id for one in over}, "waiting and running execs must never expire"
    left = [one for one in over if one.id not in gone]
    if days is not None:
        assert all(now - (one.end_time or 0) <= days * DAY for one in left)
    if most is not None and left:
        assert sum(size for name, size in sizes.items() if name not in gone) <= most
    if days is None and most is None:
        assert not gone
    if most is None and days is not None:
        assert gone == {one.id for one in over if now - (one.end_time or 0) > days * DAY}


@pytest.fixture
def served(start: Callable[..., Live]) -> Live:
    """A server with keep_days 10, and 3 execs: one ended 11 days ago, one ended just now, one waits."""
    live = start(quotas=Quotas(keep_days=10))
    old, new, _ = (live.submitted(ARGS) for _ in range(3))
    live.move(old, PENDING, KILLED, end_time=time.time() - 11 * DAY)
    live.move(new, PENDING, KILLED)
    return live


def test_the_server_removes_an_expired_exec_and_logs_it(served: Live, caplog: pytest.LogCaptureFixture) -> None:
    woken = served.supervisor.woken
    with caplog.at_level("INFO"):
        served.services.housekeeper.round()
        served.services.housekeeper.round()
    (said,) = [record.getMessage() for record in caplog.records if "removed" in record.getMessage()]
    assert all(word in said for word in ("local-1", "alice", "KILLED", "11 days", "keep_days is 10")), said
    assert served.supervisor.woken == woken + 1 and served.row("local-1").deleted
    assert [item["id"] for item in served.call("GET", "/execs").json()] == ["local-2", "local-3"]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Runs `local-backend WORDS` on the home of the settings."""
    def run(settings: Settings, *words: str) -> Result:
        monkeypatch.setenv("DLICMD_HOME", str(settings.home))
        monkeypatch.setattr("local_backend.settings.user_name", lambda: "alice")
        return CliRunner().invoke(main, words, catch_exceptions=False)

    yield run


def test_the_prune_command_removes_expired_execs(tmp_path: Path, command: Callable[..., Result]) -> None:
    live = Live(settings_for(tmp_path / "home"))
    old, new, waits = (live.submitted(ARGS) for _ in range(3))
    live.move(old, PENDING, KILLED, end_time=time.time() - 11 * DAY)
    live.move(new, PENDING, KILLED)
    live.close()
    settings = live.settings
    assert command(settings, "prune").exit_code == 2
    for size, why in (("0", "0 is too small"), ("abc", "'abc' is not a number of bytes; use a form like 500G"),
                      ("-1", "'-1' is not a number of bytes"), ("0G", "'0G' is not a number"),
                      ("", "'' is not a number")):
        said = command(settings, "prune", "--keep-bytes", size)
        assert said.exit_code == 2 and why in said.output, said.output
    said = command(settings, "prune", "--keep-days", "10", "--dry-run")
    assert said.exit_code == 0 and old in said.output and ": 1 (" in said.output
    assert settings.paths.job(old, "alice").state.is_dir()
    said = command(settings, "prune", "--keep-days", "10", "-o", "json")
    assert [item["id"] for item in json.loads(said.output)["execs"]] == [old]
    assert not settings.paths.job(old, "alice").state.exists() and not settings.paths.job(old, "alice").root.exists()
    said = command(settings, "prune", "--keep-bytes", "1")
    assert new in said.output and waits not in said.output
    make_home(settings)
    database = open_database(settings)
    assert database.read(execs.all_ids) == {waits}
    database.close()
