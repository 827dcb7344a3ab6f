"""The disk or the database refuses writes for a while. The job goes on, and its end is recorded afterwards."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runtime_support import bench
from sqlalchemy.exc import OperationalError

from dlicmd.contract.states import FINISHED, RUNNING
from local_backend.files import read_json
from local_backend.runtime import launcher_log, runner
from local_backend.runtime.launch import Launch
from local_backend.runtime.launcher import Outcome


class Failing:
    """Call `real`, but raise `problem` for the first `times` calls."""

    def __init__(self, real: Callable[..., Any], problem: Exception, times: int) -> None:
        self.real, self.problem, self.left = real, problem, times

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.left > 0:
            self.left -= 1
            raise self.problem
        return self.real(*args, **kwargs)


FULL = OSError(errno.ENOSPC, "No space left on device")


def test_the_runner_retries_to_record_the_end_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with bench(tmp_path) as one:
        job = one.submit("print(1)")
        assert one.wait(job).state == FINISHED
        launch = Launch.read(one.paths(job).spec)
        monkeypatch.setattr(runner, "write_record", Failing(runner.write_record, FULL, 3))
        monkeypatch.setattr(runner, "_RETRY_WRITING", 0.0)
        runner._write_outcome(launch, Outcome(9, FINISHED, 1.0))
        assert read_json(one.paths(job).exit)["attempt"] == 9
    assert capsys.readouterr().err.count("No space left on device") == 1


@pytest.mark.integration
def test_the_supervisor_retries_when_the_database_refuses_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path) as one:
        job = one.submit("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n")
        one.wait_running(job)
        full = OperationalError("UPDATE", {}, sqlite3.OperationalError("database or disk is full"))
        failing = Failing(one.database.write, full, 2)
        monkeypatch.setattr(one.database, "write", failing)
        (one.paths(job).code(one.row(job).workload) / "go").touch()
        assert one.wait(job).state == FINISHED
        assert failing.left == 0
        assert one.history(job)[-2:] == [RUNNING, FINISHED]


def test_a_log_line_that_cannot_be_written_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "missing" / "launcher.log"
    launcher_log.note(log, "test", "no folder")
    log.parent.mkdir()
    with monkeypatch.context() as patch:
        failing = Failing(os.write, FULL, 1)
        patch.setattr(os, "write", failing)
        launcher_log.note(log, "test", "full disk")
    assert failing.left == 0
    launcher_log.note(log, "test", "free space")
    [line] = log.read_text().splitlines()
    assert line.endswith("free space")


def test_a_log_line_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "launcher.log"
    launcher_log.note(path, "test", "a\nb\x1b[31m\r\u202e" + "x" * 5000)
    text = path.read_text()
    assert text.count("\n") == 1
    assert "\x1b" not in text and "\u202e" not in text
    assert len(text) < 4100
    assert path.stat().st_mode & 0o777 == 0o600
