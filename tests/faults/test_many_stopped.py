"""Many pending jobs are stopped or deleted at once: each ends exactly once, and no file of a deleted job is left."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from loaded_server import Load, Server
from support import PATIENCE, eventually

from dlicmd.contract.states import ACTIVE, KILLED

pytestmark = pytest.mark.integration

ALL = f"state={','.join(sorted(ACTIVE))}"


@pytest.mark.parametrize(
    ("clients", "each"), [(6, 10), pytest.param(20, 50, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_all_jobs_end_exactly_once(tmp_path: Path, clients: int, each: int) -> None:
    with Server(tmp_path / "home", DLI_SLOTS="1", DLI_NURSERY_IDLE="0") as server, server.client() as client:
        load = Load(server, clients, each, seconds=600)  # One job has the slot, the others wait.
        load.begin()
        load.finish()
        ids = {exec_id for exec_id, _ in load.acknowledged.values()}
        code, out, err = server.command("--app-stop-all", program="dlicmd.cli")
        assert code == 0 and not err, (out, err)
        assert {line.split()[2] for line in out.splitlines() if " succeed. " in line} == ids
        eventually(lambda: not client.execs(f"{ALL}&limit=1"), "all jobs have ended", 900)
        assert Counter(one["state"] for one in client.execs()) == {KILLED: len(ids)}
        for exec_id in ids:
            log, line = server.home / "jobs" / exec_id / "launcher.log", "supervisor: KILLED: stopped on request\n"
            eventually(lambda log=log, line=line: line in log.read_text(), "the end is logged after it is recorded")
            assert log.read_text().count(line) == 1, exec_id
        client.delete_execs()
        eventually(lambda: not list((server.home / "jobs").iterdir()), "the files of all jobs are removed", 900)
        assert not list((server.home / "results").glob("*/batchworkdir/*")) and client.execs() == []


def test_stopping_the_server_can_stop_all_its_jobs(tmp_path: Path) -> None:
    with Server(tmp_path / "home", DLI_SLOTS="1", DLI_NURSERY_IDLE="0") as server:
        load = Load(server, 5, 10, seconds=600)
        load.begin()
        load.finish()
        code, out, err = server.command("stop", "--jobs")
        assert code == 0 and "and 30 more" in out and "stopped local-" in out, (out, err)
        server.process.wait(PATIENCE)
        server.start()
        with server.client() as client:
            assert Counter(one["state"] for one in client.execs()) == {KILLED: 50}
