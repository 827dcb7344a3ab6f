"""Many clients submit folders of 1 KiB to 1 MiB at once: every acknowledged folder is stored once and complete."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from loaded_server import Load, Server, check_stored
from support import eventually

pytestmark = pytest.mark.integration

#: The most by which the memory of the server may grow under the load, in bytes.
MOST_GROWTH = 100 << 20


@pytest.mark.parametrize(
    ("clients", "each"), [(8, 10), pytest.param(20, 50, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_every_acknowledged_submission_is_stored(tmp_path: Path, clients: int, each: int) -> None:
    with Server(tmp_path / "home", DLI_SLOTS="1", DLI_NURSERY_IDLE="0") as server, server.client() as client:
        process = psutil.Process(server.process.pid)
        before = process.memory_info().rss
        load = Load(server, clients, each, largest=1 << 20, seconds=600)  # One job has the slot, the others wait.
        load.begin()
        load.finish()
        grown = process.memory_info().rss - before
        check_stored(load, client.execs())
        assert grown < MOST_GROWTH
        client.delete_execs()
        eventually(lambda: not list((server.home / "jobs").iterdir()), "the files of all jobs are removed", 900)
