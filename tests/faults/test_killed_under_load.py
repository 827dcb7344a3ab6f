"""SIGKILL of the server while many clients submit: no acknowledged job is lost, and no job runs twice."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from loaded_server import Load, Server, check

from dlicmd.sdk import retry

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "LONGEST_PAUSE", 0.5)


def killed(load: Load, kills: int, seed: int, spread: float) -> None:
    """Kill the server `kills` times during the load, each up to `spread` seconds after an acknowledgment."""
    chance = random.Random(seed)
    total = load.clients * load.each
    load.begin(seed)
    for number in range(kills):
        load.wait_for(int(total * (number + chance.random()) / kills))
        threading.Event().wait(chance.random() * spread)  # The time of the kill is what varies in this test.
        load.server.kill()
        load.server.start()
    load.finish()
    check(load)


@pytest.mark.timeout(600)
def test_no_job_is_lost_in_three_kills(tmp_path: Path) -> None:
    with Server(tmp_path / "home", DLI_SLOTS="4", DLI_NURSERY_IDLE="0") as server:
        killed(Load(server, clients=10, each=2, seconds=0.3), kills=3, seed=1, spread=0.1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("nursery", ["0", "600"])
def test_no_job_is_lost_in_hundreds_of_kills(tmp_path: Path, nursery: str) -> None:
    with Server(tmp_path / "home", DLI_SLOTS="4", DLI_NURSERY_IDLE=nursery) as server:
        killed(Load(server, clients=10, each=20, seconds=2.0), kills=250, seed=2, spread=1.5)
