"""Searches: requests, objects, states, limits, restarts, and the metrics of experiments."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from live_server import PASSWORD, Live, basic, multipart
from searching import ARGS, Searching, definition, model, searching, states_of

from dlicmd.contract import wire
from local_backend.errors import Invalid
from local_backend.hypersearch import objective
from local_backend.settings import Quotas
from local_backend.store import execs

STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


@pytest.fixture
def search(live: Live) -> Iterator[Searching]:
    with searching(live) as found:
        yield found


def test_a_search_runs_in_batches_and_shows_the_recorded_keys(search: Searching, live: Live) -> None:
    name = search.begin(maxJobNum=4, maxParalleJobNum=2)
    assert "best" not in search.get(name)
    first = search.running(2)
    live.run_on(first[0], "cpu-0")
    assert search.until(lambda one: states_of(one) == ["RUNNING", "SUBMITTED"])["progress"] == "0/4"
    live.paths(first[0]).objective.write_text('[{"step": 1, "loss": 3.5}]')
    live.move(first[0], "FINISHED")
    shown = search.until(lambda one: one["complete"] == 1)
    assert shown["running"] == 1 and len(shown["experiments"]) == 2  # the batch has not ended
    brief = live.call("GET", "/hypersearch/s?experiments=none").json()
    assert "experiments" not in brief and brief["best"]["metricVal"] == 3.5
    search.loss(first[1], 2.5)
    second = search.running(2)
    assert [one["appId"] for one in search.get()["experiments"]] == first + second
    search.fail(second[0])
    search.loss(second[1], 2.5)
    shown = search.over()
    assert (shown["state"], shown["running"], shown["complete"], shown["failed"], shown["progress"]) == (
        "FINISHED", 0, 4, 1, "4/4")
    assert [one["metricVal"] for one in shown["experiments"]] == [3.5, 2.5, 9999.99, 2.5]
    assert shown["best"]["id"] == 1  # of equal ones, the lowest id
    assert STAMP.fullmatch(shown["createtime"]) and re.fullmatch(r"00:0\d:\d\d", shown["duration"])
    assert shown["creator"] == live.settings.user and shown["hpoName"] == name
    assert len(live.database.read(lambda c: execs.earlier_runs(c, live.row(second[1]), 9))) == 3
    for one in shown["experiments"]:
        assert STAMP.fullmatch(one["startTime"]) and STAMP.fullmatch(one["endTime"])
        (value,) = one["hyperParams"]
        assert list(value) == ["name", "dataType", "userDefined", "fixedVal"]
        assert (value["name"], value["dataType"], value["userDefined"]) == ("rate", "double", False)
        assert value["fixedVal"] == repr(float(value["fixedVal"]))
    assert shown["algoDef"]["maxJobNum"] == 4 and shown["hyperParams"][0]["type"] == "range"
    assert shown["hyperParams"][0]["minIntVal"] == 0 and "discreteDbVal" not in shown["hyperParams"][0]


def test_experiments_are_execs_with_their_values(search: Searching, live: Live) -> None:
    search.begin(args=f"{ARGS} --rate {{rate}} --epochs 2", maxJobNum=1)
    (exec_id,) = search.running(1)
    (shown,) = search.get()["experiments"]
    value = shown["hyperParams"][0]["fixedVal"]
    spec = live.row(exec_id).workload
    assert spec.program.arguments == ("--rate", value, "--epochs", "2")
    assert json.loads(live.paths(exec_id).config(spec).read_text()) == {"rate": float(value)}
    assert spec.experiment is not None and (spec.experiment.search, spec.experiment.id) == ("s", 0)
    (found,) = live.call("GET", "/execs?search=s").json()
    assert (found["id"], found["search"], found["experiment"]) == (exec_id, "s", 0)
    assert live.call("GET", "/execs?search=other").json() == []
    assert found["appName"] == "s 0"
    search.begin(name="t", args="--exec-start PyTorch --appName mine --model-main main.py")
    assert live.row(search.running(2, "t")[1]).app_name == "mine"
    other = live.submitted()
    assert "search" not in live.call("GET", f"/execs/{other}").json()


def test_the_code_is_stored_once_and_goes_with_the_last_use(search: Searching, live: Live) -> None:
    search.begin(maxJobNum=2)
    ids = search.running(2)
    assert len(list(live.settings.paths.bundles.iterdir())) == 1
    for exec_id in ids:
        search.loss(exec_id, 1.0)
    search.over()
    for exec_id in ids:
        live.forget(exec_id)
    assert len(list(live.settings.paths.bundles.iterdir())) == 1
    assert live.call("DELETE", "/hypersearch/s").status == 204
    assert live.nothing_left()


# --- the requests that WMLA's clients sent

HYPERBAND = definition(
    "WMLA-HPO-state", algorithm="Hyperband", maxJobNum=8, maxParalleJobNum=4, hyperbandEta=3.0,
    algoParams=[{"name": "ResourceName", "value": "epochs"}, {"name": "ResourceValue", "value": "81"}],
    space=[{"name": "learning_rate", "type": "Range", "dataType": "DOUBLE", "minDbVal": 0.001, "maxDbVal": 0.1,
            "step": "0.002", "userDefined": False}])
LISTED = {
    "hpoName": "custom", "modelSpec": {"sigName": "dli", "args": ARGS},
    "algoDef": {"algorithm": "ExperimentGridSearch", "maxJobNum": 2, "maxParalleJobNum": 1,
                "objectiveMetric": "loss", "objective": "minimize"},
    "experiments": [
        {"id": 1, "hyperParams": [{"name": "learning_rate", "dataType": "DOUBLE", "fixedVal": "0.001"},
                                  {"name": "optimizer", "dataType": "STR", "fixedVal": "Adam"}]},
        {"id": 2, "hyperParams": [{"name": "learning_rate", "dataType": "DOUBLE", "fixedVal": "0.01"}]}],
}
WITH_DIRECTORY = ("--exec-start PyTorch --cs-datastore-meta type=fs \\\n   --python-version 3.6 \\\n "
                  "--workerDeviceNum 1   --model-main main.py --model-dir pytorch_hpo --debug-level debug")


def test_a_python_literal_with_a_packed_folder_is_accepted(search: Searching, live: Live) -> None:
    asked = definition(None, args=WITH_DIRECTORY, maxRunTime=60, space=[
        {"name": "rate", "type": "Range", "dataType": "DOUBLE", "minDbVal": 0.001, "maxDbVal": 0.1, "power": None}])
    answer = search.post(repr(asked), {"tmpabc.modelDir.tar": model(main="print(1)\n")})
    assert answer.status == 200, answer.text
    name = answer.json()["uid"]
    assert re.fullmatch(rf"{live.settings.user}-hpo-\d+", name)
    assert answer.json() == {"uid": name, "href": f"{wire.BASE}/hypersearch/{name}"}
    ids = search.running(2, name)
    assert live.row(ids[0]).workload.program.model_dir == "pytorch_hpo"
    assert (live.paths(ids[0]).submitted / "pytorch_hpo" / "config.json").is_file()


def test_one_file_in_a_part_with_its_own_name_is_accepted(search: Searching) -> None:
    asked = definition(args="--exec-start PyTorch  --workerDeviceNum 1 --model-main X.py --batch-size 64 --epochs 2")
    assert search.post(asked, {"X.py": b"print(1)\n"}, part="X.py").status == 200
    search.running(2)


def test_the_definition_may_come_twice(search: Searching, live: Live) -> None:
    text = json.dumps(definition()).encode()
    body, kind = multipart([("data", None, text), ("data", "data", text), ("file", "main.py", b"print(1)\n")])
    assert live.call("POST", "/hypersearch", body, {"Content-Type": kind}).status == 200
    search.running(2)


def test_the_recorded_hyperband_runs_its_first_bracket(search: Searching) -> None:
    assert search.post(HYPERBAND).status == 200
    for exec_id in search.running(4, "WMLA-HPO-state"):
        search.loss(exec_id, 1.0)
    for exec_id in search.running(4, "WMLA-HPO-state"):
        search.loss(exec_id, 1.0)
    shown = search.over("WMLA-HPO-state")
    assert len(shown["experiments"]) == 8
    for one in shown["experiments"]:
        assert one["hyperParams"][-1] == {"name": "epochs", "dataType": "str", "userDefined": False, "fixedVal": "1"}


def test_listed_experiments_keep_their_ids_and_values(search: Searching, live: Live) -> None:
    assert search.post(LISTED).status == 200
    (first,) = search.running(1, "custom")
    assert live.row(first).workload.sig_name == "dli"
    assert live.row(first).workload.program.parameters == {"learning_rate": 0.001, "optimizer": "Adam"}
    search.loss(first, 2.0)
    (second,) = search.until(lambda one: one["running"] == 1 and one["complete"] == 1, "custom")["experiments"][1:]
    assert second["id"] == 2 and live.row(second["appId"]).workload.program.parameters == {"learning_rate": 0.01}
    assert second["hyperParams"][0]["type"] == "fix"
    search.loss(second["appId"], 1.0)
    assert search.over("custom")["best"]["id"] == 2


def test_clients_may_use_every_kind_of_credentials_and_send_bodies_with_get(search: Searching, live: Live) -> None:
    search.begin()
    body = b'{"username": "a", "password": "b"}'
    for headers, token in (({"X-Auth-Token": live.token}, None), (basic(live.settings.user, PASSWORD), None)):
        answer = live.call("GET", "/hypersearch", body, {**headers, "Content-Length": str(len(body))}, token=token)
        assert [one["hpoName"] for one in answer.json()] == ["s"]
    assert live.call("GET", "/hypersearch/s", token=None).error == (401, "auth.required")


@pytest.mark.parametrize(("asked", "files", "error"), [
    ("{", None, (400, "search.definition")),
    (definition(algorithm="Guess"), None, (400, "search.algorithm")),
    ({**definition(), "experiments": LISTED["experiments"]}, None, (400, "search.space")),
    (definition("a/b"), None, (400, "search.definition")),
    (definition("algorithm"), None, (400, "search.definition")),
    (definition(args="--exec-start Nothing"), None, (400, "submission.framework")),
    (definition(args="--exec-start tensorflow --model-main main.py"), None, (400, "submission.framework")),
    (definition(args="--exec-start PyTorch --model-main other.py"), None, (400, "submission.no_program")),
    (definition(), {}, (400, "submission.no_program")),
    (definition(algorithm="TPE", warmStart="nothing"), None, (404, "search.not_found")),
    (definition(args=f"{ARGS} --rate {{Rates}}"), None, (400, "search.definition")),
    (definition(algorithm="ASHA", resume=True, algoParams=[
        {"name": "ResourceName", "value": "epochs"}, {"name": "ResourceValue", "value": "9"}]), None,
     (400, "search.definition")),
])
def test_what_can_never_run_is_refused(
    search: Searching, live: Live, asked: Any, files: dict[str, bytes] | None, error: tuple[int, str]
) -> None:
    assert search.post(asked, files).error == error
    assert live.call("GET", "/hypersearch").json() == []
    assert live.nothing_left()


@pytest.mark.parametrize(("words", "code"), [
    ("--workerDeviceNum 100", "submission.never_schedulable"),
    ("--cs-datastore-meta type=fs,data_path=pytorch_mnist", "submission.data_source"),
])
def test_recorded_clients_get_the_recorded_answer(search: Searching, live: Live, words: str, code: str) -> None:
    asked = definition(args=f"--exec-start PyTorch {words} --model-main main.py")
    assert search.post(asked, headers={wire.PREFER: wire.STRICT}).error == (400, code)
    assert search.post(asked).status == 200
    search.running(2)


def test_names_are_unique_for_each_user(start: Any) -> None:
    live = start(embedded=False)
    with searching(live) as search:
        search.begin()
        assert search.post(definition()).error == (409, "search.exists")
        other = live.add_user("bob")
        assert search.post(definition(), token=other).status == 200
        assert live.call("GET", "/hypersearch", token=other).json()[0]["creator"] == "bob"
        assert len(live.call("GET", "/hypersearch").json()) == 2
        assert search.get()["creator"] == live.settings.user  # the own one first
        assert live.call("PUT", "/hypersearch/s", token=live.add_user("eve")).error == (404, "search.not_found")


def test_a_user_may_have_only_so_many_searches(start: Any) -> None:
    live = start(quotas=Quotas(active_searches=1))
    with searching(live) as search:
        search.begin()
        assert search.post(definition("t")).error == (507, "quota.searches")
    live = start(quotas=Quotas(stored_bytes=1))
    with searching(live) as search:
        assert search.post(definition("t")).error == (507, "quota.bytes")
    live = start(quotas=Quotas(stored_searches=1))
    with searching(live) as search:
        search.begin(maxJobNum=1)
        log = live.settings.paths.search_log("search-1")
        log.parent.mkdir()
        log.write_text("said\n")
        search.loss(search.running(1)[0], 1.0)
        search.over()
        assert search.post(definition("t")).error == (507, "quota.searches")
        assert live.call("DELETE", "/hypersearch/s").status == 204 and not log.exists()
        search.begin(name="t")


# --- the end of searches


def test_a_stop_kills_what_runs_and_a_restart_goes_on(search: Searching, live: Live) -> None:
    search.begin(maxJobNum=4, algoParams=[{"name": "RandomSeed", "value": "7"}])
    first = search.running(2)
    search.loss(first[0], 1.0)
    search.until(lambda one: one["complete"] == 1)
    assert live.call("PUT", "/hypersearch/s").status == 204
    assert live.call("DELETE", "/hypersearch/s").error == (409, "search.active")
    assert live.call("PUT", "/hypersearch/s").status == 204  # it is stopping
    search.stops(first[1:])
    shown = search.over()
    assert (shown["state"], states_of(shown), shown["progress"]) == ("STOPPED", ["FINISHED", "KILLED"], "2/4")
    refused = live.call("PUT", "/hypersearch/s")
    assert refused.error == (400, "search.ended")
    assert refused.text.strip() == "Error 400: Model tuning s is already stopped."
    assert live.call("PUT", "/hypersearch/s/restart").json()["uid"] == "s"
    (again,) = search.running(1)
    shown = search.get()
    assert again not in first and [one["id"] for one in shown["experiments"]] == [0, 1]
    assert shown["experiments"][0]["appId"] == first[0]
    search.loss(again, 2.0)
    for exec_id in search.running(2):
        search.loss(exec_id, 3.0)
    assert (search.over()["state"], search.get()["progress"]) == ("FINISHED", "4/4")
    assert live.call("PUT", "/hypersearch/s/restart").error == (400, "search.not_stopped")
    expected = [row.values for row in search.rows()]
    search.begin(name="t", maxJobNum=4, maxParalleJobNum=4, algoParams=[{"name": "RandomSeed", "value": "7"}])
    search.running(4, "t")
    assert [row.values for row in search.rows("t")] == expected


def test_a_forced_stop_ends_the_search_at_once(search: Searching, live: Live) -> None:
    search.begin()
    ids = search.running(2)
    assert live.call("PUT", "/hypersearch/s/force").status == 204
    shown = search.get()
    assert (shown["state"], states_of(shown)) == ("STOPPED", ["KILLED", "KILLED"])
    assert all(live.row(exec_id).stop_requested for exec_id in ids)
    assert live.call("DELETE", "/hypersearch").status == 204
    assert live.call("GET", "/hypersearch/s").error == (404, "search.not_found")
    assert live.call("DELETE", "/hypersearch/s").error == (404, "search.not_found")
    assert len(live.call("GET", "/execs").json()) == 2


def test_the_run_time_ends_the_batch_as_failed_and_the_search_as_finished(search: Searching) -> None:
    search.begin(maxJobNum=8, maxParalleJobNum=2, maxRunTime=1)
    first = search.running(2)
    for exec_id in first:
        search.loss(exec_id, 1.0)
    second = search.running(2)
    live = search.live
    live.database.write(lambda c: c.exec_driver_sql("UPDATE searches SET begin_time = begin_time - 60"))
    live.services.controller.wake()
    search.stops(second)
    shown = search.over()
    assert (shown["state"], shown["progress"]) == ("FINISHED", "4/4")
    assert states_of(shown) == ["FINISHED"] * 2 + ["FAILED"] * 2
    assert all(one["metricVal"] == 9999.99 and "endTime" in one for one in shown["experiments"][2:])
    assert shown["duration"] >= "00:01:00"


def test_too_many_failed_experiments_end_the_search(search: Searching) -> None:
    search.begin(maxJobNum=8, maxParalleJobNum=1, maxFailedJobNum=1)
    (one,) = search.running(1)
    search.loss(one, 1.0)
    for count in (1, 2):
        shown = search.until(lambda found, count=count: (found["running"], found["complete"]) == (1, count))
        (one,) = shown["experiments"][-1:]
        search.fail(one["appId"])
    shown = search.over()
    assert (shown["state"], shown["failed"], len(shown["experiments"])) == ("FAILED", 2, 3)


@pytest.mark.parametrize(("losses", "remark"), [([2, 2, 2], True), ([2, 2, 1], False), ([2, 2], False)])
def test_equal_values_of_different_parameters_are_remarked(
    search: Searching, losses: list[float], remark: bool
) -> None:
    """The program may not read its parameters. Two equal values may be chance."""
    search.begin(maxJobNum=len(losses), maxParalleJobNum=len(losses))
    for exec_id, loss in zip(search.running(len(losses)), losses, strict=True):
        search.loss(exec_id, loss)
    shown = search.over()
    assert shown["state"] == "FINISHED" and ("3 experiments have loss 2" in (shown.get("message") or "")) is remark


def test_a_search_without_any_result_has_failed(search: Searching) -> None:
    search.begin(objective="maximize")
    first, second = search.running(2)
    search.fail(first)
    search.kill(second)
    shown = search.over()
    assert (shown["state"], states_of(shown), shown["complete"]) == ("FAILED", ["FAILED", "KILLED"], 2)
    assert shown["experiments"][0]["metricVal"] == -9999.99 and "best" not in shown


def test_an_exec_that_its_user_deletes_leaves_a_killed_experiment(search: Searching, live: Live) -> None:
    search.begin()
    first, second = search.running(2)
    assert live.call("DELETE", f"/execs/{first}").status == 204
    search.until(lambda one: states_of(one)[0] == "KILLED")
    search.kill(first)
    live.forget(first)
    search.loss(second, 1.0)
    assert search.over()["best"]["id"] == 1


def test_a_search_waits_for_a_quota(start: Any) -> None:
    live = start(quotas=Quotas(active_execs=1))
    with searching(live) as search:
        search.begin()
        shown = search.until(lambda one: one["running"] == 1 and "message" in one)
        assert states_of(shown) == ["SUBMITTED", "NOTRUN"]
        search.loss(shown["experiments"][0]["appId"], 1.0)
        shown = search.until(lambda one: states_of(one) == ["FINISHED", "SUBMITTED"] and "message" not in one)
        search.loss(shown["experiments"][1]["appId"], 2.0)
        assert search.over()["state"] == "FINISHED"


# --- what experiments deliver


@pytest.mark.parametrize(("raw", "words"), [
    (b"{", ["JSON"]), (b'{"loss": 1}', ["list"]), (b"[]", ["loss"]), (b'[{"accuracy": 1}]', ["loss", "accuracy"]),
    (b'[{"loss": "low"}]', ["loss", "low"]), (b'[{"loss": NaN}, {"loss": Infinity}]', ["NaN"]),
    (b'[{"loss": true}]', ["loss", "True"]), (b'[{"a\\u001b\\ud800": 1}]', ["a\ufffd\ufffd"]),
    (b"[" * 100_000, ["JSON"]), (b"\xff\xfe", ["JSON"]),
    (b"[" + b" " * objective.LARGEST + b"]", ["larger"]),
])
def test_a_malformed_file_fails_its_experiment_alone(search: Searching, raw: bytes, words: list[str]) -> None:
    search.begin()
    first, second = search.running(2)
    search.finish(first, raw=raw)
    search.loss(second, 5.0)
    shown = search.over()
    assert (shown["state"], states_of(shown)) == ("FINISHED", ["FAILED", "FINISHED"])
    message = shown["experiments"][0]["message"]
    assert "val_dict_list.json" in message and all(word in message for word in words)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_the_file_must_be_a_plain_file(search: Searching, live: Live, tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('[{"loss": -1}]')
    search.begin()
    first, second = search.running(2)
    place = live.paths(first).objective
    {"link": lambda: place.symlink_to(secret), "pipe": lambda: os.mkfifo(place), "folder": place.mkdir}[kind]()
    search.finish(first)
    search.loss(second, 5.0)
    assert states_of(search.over()) == ["FAILED", "FINISHED"]


@pytest.mark.parametrize("problem", [ValueError("odd"), OSError("unreadable"), PermissionError("closed")])
def test_one_search_that_cannot_be_read_does_not_stop_the_others(
    search: Searching, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    bad, good = search.begin(maxJobNum=1), search.begin(name="t", maxJobNum=1)
    ((first,), (second,)) = search.running(1, bad), search.running(1, good)
    find = objective.find

    def broken(asked: Any, open_file: Any, exists: bool, curves: Any) -> Any:
        if exists:
            raise problem
        return find(asked, open_file, exists, curves)

    monkeypatch.setattr(objective, "find", broken)
    search.loss(first, 1.0)
    search.finish(second)
    assert search.over(good)["state"] == "FAILED"
    if type(problem) is OSError:
        assert search.get(bad)["state"] == "RUNNING"
        monkeypatch.undo()
        search.live.services.controller.wake()
        assert search.over(bad)["state"] == "FINISHED"
    else:
        assert search.over(bad)["state"] == "FAILED"


def test_a_search_goes_on_after_a_step_that_could_not_be_submitted(
    search: Searching, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside: Any = type(cast(Any, live.services.controller)._outside)
    submit, refused = outside.submit, []

    def picky(self: Any, row: Any, experiment: Any, *args: Any) -> Any:
        if experiment.id < 2:
            refused.append(experiment.id)
            raise Invalid("submission.arguments", "not these")
        return submit(self, row, experiment, *args)

    monkeypatch.setattr(outside, "submit", picky)
    search.begin(maxJobNum=3, maxParalleJobNum=2)
    (exec_id,) = search.running(1)
    search.loss(exec_id, 1.0)
    assert states_of(search.over()) == ["FAILED", "FAILED", "FINISHED"]
    assert refused == [0, 1]


def test_the_code_of_a_search_is_on_the_disk_before_it_is_accepted(
    search: Searching, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: set[tuple[int, int]] = set()
    fsync = os.fsync

    def noted(fd: int) -> None:
        found = os.fstat(fd)
        forced.add((found.st_dev, found.st_ino))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    search.begin(maxJobNum=1)
    bundles = live.settings.paths.bundles
    places = [bundles, *bundles.rglob("*")]
    assert len(places) == 3
    assert {(path.stat().st_dev, path.stat().st_ino) for path in places} <= forced


def test_without_the_file_the_curves_count(search: Searching, live: Live) -> None:
    search.begin(maxJobNum=3, maxParalleJobNum=3)
    sources = ("fabric", "dlicmd.log", "printed")
    for number, (exec_id, source) in enumerate(zip(search.running(3), sources, strict=True)):
        lines = [{"generation": 1, "began": time.time()}]
        for index, (name, values) in enumerate({"loss": [1, 0.5, 0.75], "test/loss": [4, 3 + number, 5]}.items()):
            lines += [{"i": index, "name": name, "source": source, "unit": "step"},
                      {"i": index, "p": [[step, value, None] for step, value in enumerate(values)]}]
        live.paths(exec_id).curves.write_text("".join(json.dumps(line) + "\n" for line in lines))
        search.finish(exec_id)
    shown = search.over()
    assert [one["metricVal"] for one in shown["experiments"]] == [3, 4, 9999.99]
    assert "printed loss, test/loss" in shown["experiments"][2]["message"]
    found = live.call("GET", "/hypersearch/s/experiments/1/values").json()
    assert found == {"metric": "loss", "points": [[0, 4], [1, 4], [2, 5]]}


def test_additional_metrics_are_shown(search: Searching) -> None:
    search.begin(maxJobNum=1, objective="maximize", objectiveMetric="accuracy",
                 additionalMetrics={"loss": "minimize", "speed": "whatever"})
    (one,) = search.running(1)
    search.finish(one, [{"accuracy": 0.5, "loss": 3}, {"accuracy": 0.75, "loss": 2, "speed": 9},
                        {"accuracy": 0.625, "loss": 4}])
    (shown,) = search.over()["experiments"]
    assert shown["metricVal"] == 0.75
    assert shown["metrics"] == [{"name": "loss", "min": 2, "max": 4, "latest": 4},
                                {"name": "speed", "min": 9, "max": 9, "latest": 9}]


# --- lists


def test_experiments_come_in_pages_and_in_any_order(search: Searching, live: Live) -> None:
    search.begin(maxJobNum=5, maxParalleJobNum=5)
    for exec_id, value in zip(search.running(5), (3, 1, 2, 5, 4), strict=True):
        search.loss(exec_id, value)
    search.over()
    answer = live.call("GET", "/hypersearch/s/experiments?sort=metricVal&down=true&limit=2&offset=1")
    assert [one["metricVal"] for one in answer.json()] == [4, 3] and answer.headers[wire.TOTAL.lower()] == "5"
    assert live.call("GET", "/hypersearch/s/experiments?state=FAILED").json() == []
    for query, code in (("sort=size", "query.sort"), ("state=GONE", "query.state"), ("limit=-1", "query.number")):
        assert live.call("GET", f"/hypersearch/s/experiments?{query}").error == (400, code)


def test_long_curves_keep_their_extremes() -> None:
    from local_backend.services.searches import thinned

    points = [(float(at), 0.0) for at in range(10_000)]
    points[1234], points[8765] = (1234.0, 9.0), (8765.0, -9.0)
    found = thinned(points, 100)
    assert len(found) <= 100 and points[1234] in found and points[8765] in found and found == sorted(found)


def test_searches_are_listed_by_state_and_name(search: Searching, live: Live) -> None:
    for name in ("b", "a"):
        search.begin(name=name)
    live.call("PUT", "/hypersearch/a/force")

    def listed(query: str) -> list[str]:
        return [one["hpoName"] for one in live.call("GET", f"/hypersearch?{query}").json()]

    assert listed("") == ["b", "a"] and listed("sort=hpoName") == ["a", "b"]
    assert listed("state=STOPPED") == ["a"] and listed("name=b") == ["b"] and listed("limit=1&offset=1") == ["a"]


def test_algorithms_are_listed_in_the_recorded_order(live: Live) -> None:
    found = live.call("GET", "/hypersearch/algorithm?type=BUILD_IN").json()
    assert [one["name"] for one in found][:5] == ["Random", "TPE", "Bayesian", "Hyperband", "ExperimentGridSearch"]
    assert found[0] == {"name": "Random", "type": "BUILD_IN", "remoteExec": False}
    answer = live.call("GET", "/hypersearch/algorithm/nothing")
    assert answer.status == 200 and not answer.json()


# --- the store


def test_a_search_goes_on_with_another_server(live: Live) -> None:
    with searching(live) as search:
        search.begin(maxJobNum=4)
        first = search.running(2)
    search.loss(first[0], 1.0)
    search.loss(first[1], 2.0)
    second = Live(live.settings)
    try:
        with searching(second) as search:
            search.running(2)
            assert [one["metricVal"] for one in search.get()["experiments"][:2]] == [1.0, 2.0]
            assert len(second.call("GET", "/execs?search=s").json()) == 4
    finally:
        second.close()


def test_the_first_page_of_10000_experiments_needs_no_scan(live: Live) -> None:
    def plan(connection: Any) -> str:
        query = "EXPLAIN QUERY PLAN SELECT id FROM experiments WHERE search = 1 ORDER BY id LIMIT 100"
        return str(connection.exec_driver_sql(query).all())

    assert "SEARCH" in live.database.read(plan) and "TEMP B-TREE" not in live.database.read(plan)
