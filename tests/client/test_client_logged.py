"""Losses on servers that give no curves: from logs, or from recorded metrics."""

from __future__ import annotations

import json

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, exec_object
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from dlicmd.contract.trainlog import Losses, losses, merged, recorded

#: Contract, 7: "ELog text line".
ELOG = "[2023-10-27 16:27:29] Train,\tTimestamp: 1700000000000,\tGlobal steps: {},\tIteration: 1,\tLoss: {},\t" \
       "Accuracy: 0.5\n"
ELOG_TEST = "[2023-10-27 16:27:30] Test,\tTimestamp: 1700000000001,\tLoss: {},\tAccuracy: 0.5\n"
#: Contract, 7: "EDT engine lines in the executor log".
ENGINE = "*Task <1> SubProcess*: Timestamp 17, Iteration 1\nbatches :{0} 9.5\nIteration {0}: tag train_accuracy, " \
         "simple_value 0.1\nIteration {0}: tag train_loss, simple_value {1}\n"


def record(group: str, step: object, loss: object) -> str:
    """Return a line of evaluation-metrics.txt (contract, 7)."""
    return json.dumps({
        "meta": {"training_id": "t", "time": 1, "rindex": 1}, "grouplabel": group,
        "etimes": {"iteration": {"type": 2, "value": step}, "time_stamp": {"value": "x"}},
        "values": {"loss": {"type": 3, "value": loss}}}) + "\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (ELOG.format(1, 2.5) + "noise\n" + ELOG.format(2, 1.5) + ELOG_TEST.format(1.25), ({1: 2.5, 2: 1.5}, {2: 1.25})),
        (ENGINE.format(2, 0.5) + "Iteration 0: tag test_loss, simple_value 0.75\n" + ENGINE.format(3, 0.25),
         ({2: 0.5, 3: 0.25}, {2: 0.75})),
        ("batches :7 0.5\nbatches :8 1e-3", ({7: 0.5, 8: 0.001}, {})),
        (record("train", "4", "0.5") + record("test", "5", "0.75") + record("other", "6", "1"), ({4: 0.5}, {5: 0.75})),
        (ELOG.format(2, 1.5) + ELOG.format(1, 2.5) + ELOG.format(2, 1.0), ({1: 2.5, 2: 1.0}, {})),
        (record("train", None, "0.5") + record("train", "1", None) + record("test", [1], "x"), ({0: 0.5}, {}, 1)),
        (ELOG.format(1, "nan") + ELOG.format(2, "inf") + ELOG.format(3, "1e200") + "batches :x 1", ({}, {}, 3)),
        ('{"meta" [\n{"meta": ' + "[" * 5000 + "\nTrain,\nIteration 1: tag train_loss", ({}, {})),
    ],
)
def test_losses_are_read_from_logs(text: str, found: tuple) -> None:
    assert losses(text) == Losses(*found)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.one_of(st.text(max_size=30), st.sampled_from([ELOG, ELOG_TEST, ENGINE, '{"meta":{}}', '{"meta":']))))
def test_any_text_can_be_read(parts: list[str]) -> None:
    assert isinstance(losses("\n".join(parts)), Losses)


def test_losses_of_workers_are_averaged() -> None:
    logs = [Losses({1: 1.0, 2: 2.0}, {2: 4.0}, 1), Losses({2: 4.0, 0: 7.0}, {}, 2)]
    assert merged(logs) == Losses({0: 7.0, 1: 1.0, 2: 3.0}, {2: 4.0}, 3) and list(merged(logs).train) == [0, 1, 2]


def points(desk: Desk) -> list[tuple[str, float, float]]:
    """Return the points of the exec w-1 as --exec-plot prints them: series, step, loss."""
    found = json.loads(desk.run("--exec-plot", "w-1", "-o", "json").out)
    assert all(point["id"] == "w-1" and point["value"] == point["loss"] for point in found)
    return [(point["series"], point["step"], point["loss"]) for point in found]


def test_the_points_are_printed_as_data(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    local.logs["w-1"] = ELOG.format(1, 0.5) + ELOG.format(2, "nan") + ELOG_TEST.format(0.75)
    assert points(desk) == [("train/loss", 1, 0.5), ("test/loss", 2, 0.75)]
    done = desk.run("--exec-plot", "w-1", "-o", "custom-columns=step,loss")
    assert done.out.split() == ["step", "loss", "1", "0.5", "2", "0.75"]
    assert done.err.count("\n") == 1 and " 1 value of w-1" in done.err


def test_logs_of_the_processes_are_read_without_a_train_log(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    local.replies["GET", f"{BASE}/execs/w-1/log"] = Reply(400, b"Error 400: no log.\n")
    for worker, loss in ((1, 0.5), (2, 1.5)):
        path = f"{BASE}/scheduler/applications/w-1/executor/{worker}/logs/stdout"
        local.replies["GET", path] = Reply(200, ENGINE.format(3, loss).encode())
    local.replies["GET", f"{BASE}/scheduler/applications/w-1/driver/logs/stdout"] = Reply(500, b"gone")
    assert points(desk) == [("train/loss", 3, 1.0)]


def test_train_losses_of_workers_take_precedence_for_an_elastic_job(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1", elastic=True)
    local.logs["w-1"] = ELOG.format(1, 0.01) + ELOG_TEST.format(0.75)
    path = f"{BASE}/scheduler/applications/w-1/executor/2/logs/stdout"
    local.replies["GET", path] = Reply(200, (ENGINE.format(3, 0.5) + ELOG_TEST.format(0.8)).encode())
    assert points(desk) == [("train/loss", 3, 0.5), ("test/loss", 1, 0.75)]
    del local.replies["GET", path]
    assert points(desk) == [("train/loss", 1, 0.01), ("test/loss", 1, 0.75)]


def test_recorded_metrics_take_precedence_over_logs(desk: Desk, local: FakeServer) -> None:
    local.conf["DLICMD_EXTENSIONS"] += ",metrics"
    local.execs["w-1"] = exec_object("w-1")
    local.logs["w-1"] = ELOG.format(1, 9.5)
    local.metrics["w-1"] = record("train", "1", "0.5") + record("train", "2", "x") + record("test", "1", "0.75")
    assert points(desk) == [("train/loss", 1, 0.5), ("test/loss", 1, 0.75)]
    assert " 1 value of w-1" in desk.run("--exec-plot", "w-1").err
    local.metrics["w-1"] = record("train", "1", "nan") + record("other", "1", "3") + "{}\n"
    assert points(desk) == [("train/loss", 1, 9.5)]
    local.logs["w-1"] = ""
    done = desk.run("--exec-plot", "w-1", "-o", "json")
    assert (done.code, done.error) == (1, "client.failed") and " 1 value," in done.err


def test_records_of_several_processes_are_averaged(desk: Desk, local: FakeServer) -> None:
    local.conf["DLICMD_EXTENSIONS"] += ",metrics"
    local.execs["w-1"] = exec_object("w-1")
    again = record("train", "1", "7") + record("train", "1", "1")  # restarted: the last record counts
    local.metrics["w-1"] = again + record("train", "2", "2") + "\n" + record("train", "1", "3")
    assert points(desk) == [("train/loss", 1, 2.0), ("train/loss", 2, 2.0)]


def test_an_elastic_job_uses_records_if_its_logs_have_no_losses(desk: Desk, local: FakeServer) -> None:
    local.conf["DLICMD_EXTENSIONS"] += ",metrics"
    local.execs["w-1"] = exec_object("w-1", elastic=True)
    local.metrics["w-1"] = record("train", "1", "0.5")
    local.logs["w-1"] = ELOG.format(1, 9.5)
    assert points(desk) == [("train/loss", 1, 9.5)]
    local.logs["w-1"] = ""
    assert points(desk) == [("train/loss", 1, 0.5)]


def test_records_are_read_in_any_order_of_keys() -> None:
    assert recorded([{"values": {"loss": {"value": "0.5"}}, "grouplabel": "train"}, {}, 7]) == Losses({0: 0.5}, {})


@pytest.mark.parametrize(
    ("log", "said"), [("hello\n", "no losses"), (ELOG.format(1, "nan"), " 1 value,")])
def test_missing_losses_are_reported(desk: Desk, local: FakeServer, log: str, said: str) -> None:
    local.execs["w-1"] = exec_object("w-1")
    local.logs["w-1"] = log
    done = desk.run("--exec-plot", "w-1")
    assert (done.code, done.out) == (1, "") and said in done.err and len(done.err.splitlines()) == 1
    assert desk.run("--exec-plot", "w-2").code == 6
