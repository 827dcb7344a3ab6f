"""SIGKILL of every kind of process while searches run, on 1, 2 and 4 slots: one table of experiments everywhere,
and for ASHA, which follows the order of ends, equal values of equal experiments
(docs/reliability.md)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from kill_matrix import EmbeddedServer
from search_matrix import ROLES, Kind, SearchMatrix, asha, check_equal, hyperband
from support import VOLUME

#: Kills, and the seconds after which no more processes are killed.
KILLS = int(os.environ.get("TEST_KILLS", "0")) or 100 * max(1, VOLUME // 10)
SECONDS = float(os.environ.get("TEST_SECONDS", "7200"))

FEW = {
    "hyperband": hyperband(5, 4, 2),
    "tpe": Kind("TPE", 5, {"RandomSeed": "5", "WarmUp": "3"}, parallel=2, epochs=1),
    "plugin": Kind("centered", -1, {"count": "3"}, parallel=2, epochs=1),
    "asha": asha(5, 4, 2),
}
MANY = {
    "hyperband": hyperband(-1, 9, 3),
    "tpe": Kind("TPE", 9, {"RandomSeed": "5", "WarmUp": "3"}),
    "random": Kind("Random", 6, {"RandomSeed": "5"}),
    "plugin": Kind("centered", -1, {"count": "7"}, epochs=2),
    "asha": asha(9, 9, 3),
}


@pytest.mark.integration
def test_searches_have_the_same_experiments_on_any_number_of_slots_despite_deaths(tmp_path: Path) -> None:
    tables, scores = {}, {}
    for slots, roles in ((1, ()), (4, ("worker", "suggester", "driver", "server", "stop", "runner", "plugin host"))):
        home = tmp_path / str(slots) / "home"
        home.parent.mkdir()
        with EmbeddedServer(home, forks_nurseries=True, DLI_SLOTS=str(slots), DLI_RESTED_KEPT="1") as server:
            matrix = SearchMatrix(server, slots, FEW)
            matrix.begin()
            for role in roles:
                matrix.trouble(role)
            matrix.finish()
        tables[slots], scores[slots] = matrix.tables, matrix.scores
    assert tables[1] == tables[4]
    check_equal(scores[1]["asha"], scores[4]["asha"])


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 5400)
def test_searches_survive_the_death_of_any_process(tmp_path: Path) -> None:
    tables, scores = {}, {}
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
        tables[slots], scores[slots] = matrix.tables, matrix.scores
    assert tables[1] == tables[2] == tables[4]
    for slots in (2, 4):
        check_equal(scores[1]["asha"], scores[slots]["asha"])
    if matrix.deaths >= 100:  # with fewer, chance may leave one out
        assert matrix.figures.kills.keys() >= ROLES.keys() - {"force", "away"}
