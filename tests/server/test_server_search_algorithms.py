"""Algorithms of searches: installed ones, suggestions of other processes, and rungs that continue."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from live_server import Live, multipart, tar
from searching import ARGS, Searching, searching, states_of
from support import eventually

from dlicmd.contract.states import FINISHED, KILLED
from local_backend.hypersearch import controller
from local_backend.settings import Quotas
from local_backend.store import execs

STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


@pytest.fixture
def search(live: Live) -> Iterator[Searching]:
    with searching(live) as found:
        yield found


# --- algorithms

PLUGIN = b"""
from plugins.core.base_plugin_opt import BasePluginOptimizer

class PluginOptimizer(BasePluginOptimizer):
    def __init__(self, name, hyper_parameters, **kwargs):
        super().__init__(name, hyper_parameters, **kwargs)
        self.count = 0

    def search(self, number_samples, last_exp_results=None):
        found = [] if self.count >= 4 else [{"rate": 0.01 * (self.count + at)} for at in range(number_samples)]
        self.count += len(found)
        return found

    def get_state(self):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]
"""


def install(live: Live, name: str, **files: bytes) -> Any:
    """Install an algorithm as the recorded notebook does: `data` twice, and the archive."""
    text = json.dumps({"name": name}).encode()
    packed = tar({f"{stem}.py": content for stem, content in files.items()})
    body, kind = multipart([("data", None, text), ("data", "data", text), ("file", f"{name}.tar", packed)])
    return live.call("POST", "/hypersearch/algorithm/install", body, {"Content-Type": kind})


def test_an_installed_algorithm_decides_until_its_space_is_exhausted(search: Searching, live: Live) -> None:
    answer = install(live, "Mine", optimizer=PLUGIN)
    assert answer.status == 200, answer.text
    shown = live.call("GET", "/hypersearch/algorithm/Mine").json()
    assert shown == answer.json() and (shown["type"], shown["creator"]) == ("USER_PLUGIN", live.settings.user)
    assert STAMP.fullmatch(shown["createtime"])
    assert live.call("GET", "/hypersearch/algorithm?type=USER_PLUGIN").json() == [shown]
    assert install(live, "mine", optimizer=PLUGIN).error == (409, "search.algorithm_exists")
    assert install(live, "Other", main=PLUGIN).error == (400, "search.plugin")
    search.begin(algorithm="mine", maxJobNum=-1)
    for _ in range(2):
        for exec_id in search.running(2):
            search.loss(exec_id, 1.0)
        if len(search.get()["experiments"]) == 2:
            assert live.call("DELETE", "/hypersearch/algorithm/Mine").error == (409, "search.algorithm_in_use")
            search.until(lambda one: len(one["experiments"]) == 4)
    shown = search.over()
    assert (shown["state"], shown["progress"], shown["algorithm"]) == ("FINISHED", "4/4", "Mine")
    assert [row.values["rate"] for row in search.rows()] == [0.0, 0.01, 0.02, 0.03]
    assert live.call("DELETE", "/hypersearch/algorithm/Mine").status == 204
    assert live.call("DELETE", "/hypersearch/algorithm/Mine").error == (404, "search.algorithm_not_found")
    assert not live.settings.paths.plugin("Mine").exists()


def test_an_algorithm_that_has_suggested_too_few_is_not_asked_again_after_a_restart(
    search: Searching, live: Live
) -> None:
    few = PLUGIN.replace(b"[] if self.count >= 4 else [", b"[").replace(b"range(number_samples)", b"range(1)")
    assert install(live, "Few", optimizer=few).status == 200
    search.begin(algorithm="Few", maxJobNum=-1, maxParalleJobNum=2)
    first = search.running(1)
    assert live.call("PUT", "/hypersearch/s").status == 204
    search.stops(first)
    search.over()
    assert live.call("PUT", "/hypersearch/s/restart").status == 200
    (again,) = search.running(1)
    search.loss(again, 1.0)
    shown = search.over()
    assert (shown["state"], states_of(shown)) == ("FINISHED", ["FINISHED"])


def test_an_algorithm_that_breaks_ends_its_search_with_a_sentence(search: Searching, live: Live) -> None:
    broken = PLUGIN.replace(b"self.count += len(found)", b"raise ValueError('no idea')")
    assert install(live, "Broken", optimizer=broken).status == 200
    search.begin(algorithm="Broken")
    shown = search.over()
    assert shown["state"] == "FAILED" and "no idea" in shown["message"]


HANGING = PLUGIN.replace(b"self.count += len(found)", b"import os, time; print(os.getpid(), flush=True); "
                                                      b"time.sleep(3600)")


def process_of(live: Live, number: int) -> int:
    """Wait until the plugin of a search runs, and return the id of its process."""
    log = live.settings.paths.search_log(f"search-{number}")
    eventually(lambda: log.exists() and log.read_text().strip(), "the plugin runs")
    return int(log.read_text().split()[0])


def test_a_question_of_an_ended_search_ends_at_once(search: Searching, live: Live) -> None:
    """A user has 2 places for questions, so the last search shows that both are free again."""
    assert install(live, "Hanging", optimizer=HANGING).status == 200
    assert install(live, "Mine", optimizer=PLUGIN).status == 200
    search.begin(name="a", algorithm="Hanging")
    search.begin(name="b", algorithm="Hanging")
    asked = [process_of(live, number) for number in (1, 2)]
    search.begin(name="c", algorithm="Mine")
    assert live.call("PUT", "/hypersearch/a").status == 204
    assert search.over("a")["state"] == "STOPPED"
    search.running(2, "c")
    assert live.call("PUT", "/hypersearch/b/force").status == 204
    assert live.call("DELETE", "/hypersearch/b").status == 204
    for process in asked:
        eventually(lambda one=process: not psutil.pid_exists(one), "the process of the plugin ends")
    assert live.call("PUT", "/hypersearch/a/restart").status == 200  # a question of the next attempt
    eventually(lambda: len(live.settings.paths.search_log("search-1").read_text().split()) == 2, "it is asked again")


def test_a_hanging_algorithm_does_not_delay_the_end_of_the_server(live: Live) -> None:
    with searching(live) as search:
        assert install(live, "Hanging", optimizer=HANGING).status == 200
        search.begin(algorithm="Hanging")
        asked = process_of(live, 1)
    assert not psutil.pid_exists(asked)


def test_an_algorithm_that_always_dies_ends_its_search(
    search: Searching, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "_DEATHS", 2)
    dying = PLUGIN.replace(b"self.count += len(found)", b"import os; print('asked', flush=True); os._exit(7)")
    assert install(live, "Dying", optimizer=dying).status == 200
    search.begin(algorithm="Dying")
    shown = search.over()
    log = live.settings.paths.search_log("search-1")
    assert shown["state"] == "FAILED" and str(log) in shown["message"]
    assert log.read_text().split() == ["asked"] * 2


def test_suggestions_come_from_another_process_that_may_be_killed(search: Searching, live: Live) -> None:
    search.begin(algorithm="TPE", maxJobNum=8, algoParams=[{"name": "WarmUp", "value": "3"},
                                                           {"name": "RandomSeed", "value": "5"}])
    for batch in range(4):
        for exec_id in search.running(2):
            search.loss(exec_id, float(len(search.rows())))
        search.until(lambda one, batch=batch: one["complete"] == 2 * batch + 2)
        for process in live.services.algorithms.suggester.processes:
            os.kill(process, signal.SIGKILL)
    assert search.over()["progress"] == "8/8"
    found = live.call("GET", "/hypersearch/s/importances").json()["importances"]
    assert set(found) <= {"rate"}


def test_a_search_may_begin_with_the_results_of_another_one(search: Searching, live: Live) -> None:
    search.begin(maxJobNum=6, maxParalleJobNum=6, algoParams=[{"name": "RandomSeed", "value": "1"}])
    for exec_id in search.running(6):
        search.loss(exec_id, search.live.row(exec_id).workload.program.parameters["rate"])  # type: ignore[index,arg-type]
    search.over()
    params = [{"name": "RandomSeed", "value": "5"}, {"name": "WarmUp", "value": "3"}]
    for name, more in (("warm", {"warmStart": "s"}), ("cold", {})):
        search.begin(name=name, algorithm="TPE", maxJobNum=3, algoParams=params, **more)
        search.running(2, name)
    assert live.call("DELETE", "/hypersearch/s").status == 204  # the copy stays
    for name in ("warm", "cold"):
        for exec_id in search.running(2, name):
            search.loss(exec_id, 1.0)
        shown = search.until(lambda one: (one["running"], one["complete"]) == (1, 2), name)
        search.loss(shown["experiments"][-1]["appId"], 1.0)
        search.over(name)
    assert [row.values for row in search.rows("warm")] != [row.values for row in search.rows("cold")]


# --- rungs that continue

RUNGS: dict[str, Any] = {
    "args": "--exec-start edtPyTorch --numWorker 2 --model-main main.py", "algorithm": "Hyperband", "resume": True,
    "maxJobNum": 4, "maxParalleJobNum": 4, "algoParams": [
        {"name": "ResourceName", "value": "epochs"}, {"name": "ResourceValue", "value": "4"},
        {"name": "eta", "value": "2"}, {"name": "RandomSeed", "value": "3"}]}


def rest(search: Searching, exec_id: str, epochs: int, value: float) -> None:
    """Let an exec report a value, and rest after this number of epochs."""
    live = search.live
    if live.row(exec_id).state != "RUNNING":
        live.run_on(exec_id, "cpu-0")
    lines = [{"generation": 1, "began": 1.0}, {"i": 0, "name": "test/loss", "source": "fabric", "unit": "step"},
             {"i": 0, "p": [[epochs, value, None]]}]
    live.paths(exec_id).curves.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert live.database.write(lambda c: execs.rest(c, exec_id, epochs))


def rungs_of(shown: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(one["state"], one["rung"], one["resource"]) for one in shown["experiments"]]


def test_the_best_experiments_go_on_with_the_same_exec(search: Searching, live: Live) -> None:
    search.begin(**RUNGS)
    ids = search.running(4)
    assert [live.row(one).rest_after for one in ids] == [1] * 4
    assert [live.row(one).workload.program.parameters["epochs"] for one in ids] == [4] * 4  # type: ignore[index]
    for exec_id, value in zip(ids, (0.4, 0.1, 0.3, 0.2), strict=True):
        rest(search, exec_id, 1, value)
    promoted = [("WAITING", 0, 1), ("RUNNING", 1, 2), ("WAITING", 0, 1), ("RUNNING", 1, 2)]
    shown = search.until(lambda one: rungs_of(one) == promoted)
    assert [one["appId"] for one in shown["experiments"]] == ids
    assert [live.row(one).rest_after for one in ids] == [1, 2, 1, 2]
    rest(search, ids[1], 2, 0.05)
    rest(search, ids[3], 2, 0.01)
    search.until(lambda one: rungs_of(one)[3] == ("RUNNING", 2, 4))
    assert live.row(ids[3]).rest_after is None  # to the end
    search.live.move(ids[3], FINISHED)
    shown = search.over()
    assert (shown["state"], states_of(shown), shown["best"]["id"]) == ("FINISHED", ["FINISHED"] * 4, 3)
    assert [one["metricVal"] for one in shown["experiments"]] == [0.4, 0.05, 0.3, 0.01]
    assert all(live.row(one).stop_requested for one in ids[:3])  # what still rests is given up
    live.move(ids[1], "KILLED", message="stopped on request")
    assert "after epoch 2" in str(live.row(ids[1]).message)


def test_resting_jobs_of_a_stopped_search_do_not_count_as_active(start: Callable[..., Live]) -> None:
    live = start(quotas=Quotas(active_execs=4))
    with searching(live) as search:
        search.begin(**RUNGS)
        ids = search.running(4)
        rest(search, ids[0], 1, 0.4)
        rest(search, ids[1], 1, 0.1)
        assert live.submit(ARGS, {"main.py": b"1"}).error == (507, "quota.active")  # a resting job may be promoted
        live.call("PUT", "/hypersearch/s")
        for one in ids[2:]:
            eventually(lambda one=one: live.row(one).stop_requested, f"{one} is to stop")
            search.kill(one)
        assert search.over()["state"] == "STOPPED" and not live.row(ids[0]).terminal
        for _ in range(4):
            live.submitted(ARGS)
        assert live.submit(ARGS, {"main.py": b"1"}).error == (507, "quota.active")


def test_a_restart_lets_resting_experiments_go_on(search: Searching, live: Live) -> None:
    search.begin(**RUNGS)
    ids = search.running(4)
    for exec_id, value in zip(ids, (0.4, 0.1, 0.3, 0.2), strict=True):
        rest(search, exec_id, 1, value)
    search.until(lambda one: rungs_of(one)[3] == ("RUNNING", 1, 2))
    assert live.call("PUT", "/hypersearch/s/force").status == 204
    assert states_of(search.get()) == ["WAITING", "KILLED", "WAITING", "KILLED"]
    assert [live.row(one).stop_requested for one in ids] == [False, True, False, True]
    live.move(ids[2], KILLED)  # its user does not want it any more
    assert live.call("PUT", "/hypersearch/s/restart").status == 200
    again = search.running(3)
    assert not set(again) & set(ids) and [live.row(one).rest_after for one in again] == [2, 1, 2]
    assert search.get()["experiments"][0]["appId"] == ids[0]
    for exec_id, epochs, value in zip(again, (2, 1, 2), (0.05, 0.3, 0.01), strict=True):
        rest(search, exec_id, epochs, value)
    shown = search.until(lambda one: rungs_of(one)[3] == ("RUNNING", 2, 4))
    assert shown["experiments"][3]["appId"] == again[2]
    assert live.row(ids[0]).rested == 1 and not live.row(ids[0]).stop_requested


def test_the_deletion_of_a_stopped_search_stops_its_resting_experiments(search: Searching, live: Live) -> None:
    search.begin(**RUNGS)
    ids = search.running(4)
    for exec_id in ids[:2]:
        rest(search, exec_id, 1, 0.5)
    search.until(lambda one: states_of(one)[:2] == ["WAITING"] * 2)
    assert live.call("PUT", "/hypersearch/s").status == 204
    search.stops(ids[2:])
    assert states_of(search.over()) == ["WAITING"] * 2 + ["KILLED"] * 2
    assert not any(live.row(one).stop_requested for one in ids[:2])
    assert live.call("DELETE", "/hypersearch/s").status == 204
    assert all(live.row(one).stop_requested for one in ids[:2])
