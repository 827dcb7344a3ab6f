"""The loss curve: reading losses from logs, and drawing them."""

from __future__ import annotations

import json

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, exec_object
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from dlicmd.cli.show.chart import chart
from dlicmd.contract.trainlog import Losses, losses, merged, recorded

#: Contract, 7: "ELog text line".
ELOG = "[2023-10-27 16:27:29] Train,\tTimestamp: 1700000000000,\tGlobal steps: {},\tIteration: 1,\tLoss: {},\t" \
       "Accuracy: 0.5\n"
ELOG_TEST = "[2023-10-27 16:27:30] Test,\tTimestamp: 1700000000001,\tLoss: {},\tAccuracy: 0.5\n"
#: Contract, 7: "EDT engine lines in the executor log".
ENGINE = "*Task <1> SubProcess*: Timestamp 17, Iteration 1\nbatches :{0} 9.5\nIteration {0}: tag train_accuracy, " \
         "simple_value 0.1\nIteration {0}: tag train_loss, simple_value {1}\n"
POINTS = st.dictionaries(st.integers(0, 10**15), st.floats(-1e100, 1e100), max_size=40)


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


def test_a_chart_has_a_line_and_marks() -> None:
    assert chart({0: 4.0, 10: 0.0}, {5: 4.0}, 15, 5, braille=False) == [
        "4 |**    o",
        "  |  ***",
        "2 |     **",
        "  |       ***",
        "0 |          **",
        "  +------------",
        "   0         10",
    ]
    braille = chart({0: 4.0, 10: 0.0}, {}, 11, 4)
    assert braille == [
        "    4 ┤⠑⢄", "      │  ⠑⢄", "1.333 ┤    ⠑⢄", "    0 ┤      ⠑⢄", "      └────────", "       0     10"]


@settings(max_examples=examples(300), deadline=None)
@given(POINTS, POINTS, st.integers(25, 200), st.integers(4, 40), st.booleans())
def test_a_chart_fits_its_width_and_height(
    line: dict[int, float], marks: dict[int, float], width: int, height: int, braille: bool
) -> None:
    if line or marks:
        rows = chart(line, marks, width, height, braille)
        assert len(rows) == height + 2 and max(map(len, rows[:-1])) <= width and bool(marks) == ("o" in "".join(rows))


def test_the_curve_of_a_training_is_drawn(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    local.logs["w-1"] = "".join(ELOG.format(step, 3 / step) for step in range(1, 200)) + ELOG_TEST.format(0.5)
    desk.environment |= {"COLUMNS": "60", "LINES": "12", "PYTHONIOENCODING": "utf-8"}
    done = desk.run("--exec-plot", "w-1")
    lines = done.out.splitlines()
    assert (done.code, done.err, len(lines)) == (0, "", 11) and max(map(len, lines)) <= 60
    assert lines[0].startswith("      3 ┤") and lines[7].lstrip().startswith("0.01508 ┤") and "o" in "".join(lines[:8])
    assert lines[9].split() == ["1", "199"]
    assert lines[10] == "loss over steps:  ⣿ train 0.01508  o test 0.5"
    desk.environment |= {"PYTHONIOENCODING": "ascii"}
    assert desk.run("--exec-plot", "w-1").out.isascii() and local.seen[-1].path.endswith("/log")


def test_the_points_are_printed_as_data(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    local.logs["w-1"] = ELOG.format(1, 0.5) + ELOG.format(2, "nan") + ELOG_TEST.format(0.75)
    done = desk.run("--exec-plot", "w-1", "-o", "json")
    assert json.loads(done.out) == [
        {"series": "train", "step": 1, "loss": 0.5}, {"series": "test", "step": 2, "loss": 0.75}]
    assert done.err.count("\n") == 1 and " 1 losses of w-1 " in done.err
    assert desk.run("--exec-plot", "w-1", "-o", "custom-columns=step,loss").out.split() == [
        "step", "loss", "1", "0.5", "2", "0.75"]


def test_logs_of_the_processes_are_read_without_a_train_log(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    local.replies["GET", f"{BASE}/execs/w-1/log"] = Reply(400, b"Error 400: no log.\n")
    for worker, loss in ((1, 0.5), (2, 1.5)):
        path = f"{BASE}/scheduler/applications/w-1/executor/{worker}/logs/stdout"
        local.replies["GET", path] = Reply(200, ENGINE.format(3, loss).encode())
    local.replies["GET", f"{BASE}/scheduler/applications/w-1/driver/logs/stdout"] = Reply(500, b"gone")
    done = desk.run("--exec-plot", "w-1", "-o", "json")
    assert json.loads(done.out) == [{"series": "train", "step": 3, "loss": 1.0}]
    assert done.err == ""


def test_train_losses_of_workers_take_precedence_for_an_elastic_job(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1", elastic=True)
    local.logs["w-1"] = ELOG.format(1, 0.01) + ELOG_TEST.format(0.75)
    path = f"{BASE}/scheduler/applications/w-1/executor/2/logs/stdout"
    local.replies["GET", path] = Reply(200, (ENGINE.format(3, 0.5) + ELOG_TEST.format(0.8)).encode())
    expected = [{"series": "train", "step": 3, "loss": 0.5}, {"series": "test", "step": 1, "loss": 0.75}]
    assert json.loads(desk.run("--exec-plot", "w-1", "-o", "json").out) == expected
    del local.replies["GET", path]
    expected[0] = {"series": "train", "step": 1, "loss": 0.01}
    assert json.loads(desk.run("--exec-plot", "w-1", "-o", "json").out) == expected


def test_recorded_metrics_take_precedence_over_logs(desk: Desk, local: FakeServer) -> None:
    local.conf["DLICMD_EXTENSIONS"] += ",metrics"
    local.execs["w-1"] = exec_object("w-1")
    local.logs["w-1"] = ELOG.format(1, 9.5)
    local.metrics["w-1"] = record("train", "1", "0.5") + record("train", "2", "x") + record("test", "1", "0.75")
    done = desk.run("--exec-plot", "w-1", "-o", "json")
    assert json.loads(done.out) == [
        {"series": "train", "step": 1, "loss": 0.5}, {"series": "test", "step": 1, "loss": 0.75}]
    assert " 1 losses of w-1 " in done.err
    local.metrics["w-1"] = record("train", "1", "nan") + record("other", "1", "3") + "{}\n"
    assert [point["loss"] for point in json.loads(desk.run("--exec-plot", "w-1", "-o", "json").out)] == [9.5]
    local.logs["w-1"] = ""
    done = desk.run("--exec-plot", "w-1", "-o", "json")
    assert (done.code, done.error) == (1, "client.failed") and " 1 losses " in done.err


def test_records_of_several_processes_are_averaged(desk: Desk, local: FakeServer) -> None:
    local.conf["DLICMD_EXTENSIONS"] += ",metrics"
    local.execs["w-1"] = exec_object("w-1")
    again = record("train", "1", "7") + record("train", "1", "1")  # restarted: the last record counts
    local.metrics["w-1"] = again + record("train", "2", "2") + "\n" + record("train", "1", "3")
    points = json.loads(desk.run("--exec-plot", "w-1", "-o", "json").out)
    assert [(point["step"], point["loss"]) for point in points] == [(1, 2.0), (2, 2.0)]


def test_an_elastic_job_uses_records_if_its_logs_have_no_losses(desk: Desk, local: FakeServer) -> None:
    local.conf["DLICMD_EXTENSIONS"] += ",metrics"
    local.execs["w-1"] = exec_object("w-1", elastic=True)
    local.metrics["w-1"] = record("train", "1", "0.5")
    local.logs["w-1"] = ELOG.format(1, 9.5)
    assert json.loads(desk.run("--exec-plot", "w-1", "-o", "json").out)[0]["loss"] == 9.5
    local.logs["w-1"] = ""
    assert json.loads(desk.run("--exec-plot", "w-1", "-o", "json").out)[0]["loss"] == 0.5


def test_records_are_read_in_any_order_of_keys() -> None:
    assert recorded([{"values": {"loss": {"value": "0.5"}}, "grouplabel": "train"}, {}, 7]) == Losses({0: 0.5}, {})


@pytest.mark.parametrize(
    ("log", "said"), [("hello\n", "no losses"), (ELOG.format(1, "nan"), " 1 losses ")])
def test_missing_losses_are_reported(desk: Desk, local: FakeServer, log: str, said: str) -> None:
    local.execs["w-1"] = exec_object("w-1")
    local.logs["w-1"] = log
    done = desk.run("--exec-plot", "w-1")
    assert (done.code, done.out) == (1, "") and said in done.err and len(done.err.splitlines()) == 1
    assert desk.run("--exec-plot", "w-2").code == 6
