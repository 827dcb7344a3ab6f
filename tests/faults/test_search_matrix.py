"""SIGKILL of every kind of process while searches run, on 1, 2 and 4 slots: one table of experiments everywhere
(docs/reliability.md)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from kill_matrix import EmbeddedServer
from search_matrix import ROLES, Kind, SearchMatrix, hyperband
from support import VOLUME

#: Kills, and the seconds after which no more processes are killed.
KILLS = int(os.environ.get("TEST_KILLS", "0")) or 100 * max(1, VOLUME // 10)
SECONDS = float(os.environ.get("TEST_SECONDS", "7200"))

FEW = {
    "hyperband": hyperband(5, 4, 2),
    "tpe": Kind("TPE", 5, {"RandomSeed": "5", "WarmUp": "3"}, parallel=2, epochs=1),
    "plugin": Kind("centered", -1, {"count": "3"}, parallel=2, epochs=1),
}
MANY = {
    "hyperband": hyperband(-1, 9, 3),
    "tpe": Kind("TPE", 9, {"RandomSeed": "5", "WarmUp": "3"}),
    "random": Kind("Random", 6, {"RandomSeed": "5"}),
    "plugin": Kind("centered", -1, {"count": "7"}, epochs=2),
}


@pytest.mark.integration
def test_searches_have_the_same_experiments_on_any_number_of_slots_despite_deaths(tmp_path: Path) -> None:
    tables = {}
    for slots, roles in ((1, ()), (4, ("worker", "suggester", "driver", "server", "runner", "plugin host"))):
        home = tmp_path / str(slots) / "home"
        home.parent.mkdir()
        with EmbeddedServer(home, DLI_SLOTS=str(slots), DLI_RESTED_KEPT="1") as server:
            matrix = SearchMatrix(server, slots, FEW)
            matrix.begin()
            for role in roles:
                matrix.trouble(role)
            matrix.finish()
        tables[slots] = matrix.tables
    assert tables[1] == tables[4]


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 5400)
def test_searches_survive_the_death_of_any_process(tmp_path: Path) -> None:
    tables = {}
    for slots in (1, 2, 4):
        home = tmp_path / str(slots) / "home"
        home.parent.mkdir()
        with EmbeddedServer(home, DLI_SLOTS=str(slots), DLI_RESTED_KEPT="1") as server:
            matrix = SearchMatrix(server, slots, MANY)
            matrix.begin()
            until = time.monotonic() + SECONDS
            try:
                while slots == 4 and matrix.deaths < KILLS and time.monotonic() < until:
                    matrix.any_trouble()
                    matrix.observe()
                matrix.finish()
            finally:
                print(f"\n{slots} slots", *matrix.lines(), sep="\n")
        tables[slots] = matrix.tables
    assert tables[1] == tables[2] == tables[4]
    if matrix.deaths >= 100:  # with fewer, chance may leave one out
        assert matrix.figures.kills.keys() >= ROLES.keys() - {"force", "away"}
