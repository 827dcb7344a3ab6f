"""SIGKILL of every kind of process, hundreds of times, while elastic jobs share one server (docs/reliability.md)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kill_matrix import SLOTS, EmbeddedServer, Matrix, run, seeds
from support import VOLUME

#: Kills, and the seconds after which no more processes are killed.
KILLS = int(os.environ.get("TEST_KILLS", "0")) or 500 * max(1, VOLUME // 10)
SECONDS = float(os.environ.get("TEST_SECONDS", "7200"))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 3600)
def test_jobs_survive_the_death_of_any_process(tmp_path: Path) -> None:
    with seeds() as url, EmbeddedServer(tmp_path / "home", DLI_SLOTS=str(SLOTS)) as server:
        figures = run(Matrix(server, url, epochs=8), KILLS, SECONDS)
    if figures.kills.total() >= 100:  # with fewer, chance may leave one out
        assert set(figures.kills) == {"worker", "driver", "runner", "server", "nursery", "fetcher"}
