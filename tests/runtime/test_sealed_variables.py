"""Variables of a job stay sealed on disk until a process of the job gets them."""

from __future__ import annotations

from pathlib import Path

import pytest
from runtime_support import bench
from support import eventually

from dlicmd.contract.states import FINISHED, PENDING
from local_backend.runtime import beginning

SECRET = "planted-variable"
PROGRAM = "import os\nprint(os.environ['MY_TOKEN'])\n"


def test_a_job_waits_with_a_reason_until_its_key_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beginning, "_PUT_OFF", 0.2)
    with bench(tmp_path) as one:
        wake, one.wake = one.wake, lambda: None
        job = one.submit(PROGRAM, variables={"MY_TOKEN": SECRET})
        vault = one.settings.paths.vault
        key = vault.read_bytes()
        vault.unlink()
        wake()
        eventually(lambda: f"{vault}, which has the key" in (one.row(job).message or ""), "the message names the key")
        assert one.row(job).state == PENDING
        vault.write_bytes(key)
        assert one.wait(job).state == FINISHED and one.output(job) == f"{SECRET}\n"
        held = [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
        assert held == [one.paths(job).capture("task12n-1", "stdout", False)], "only the output may contain the secret"
