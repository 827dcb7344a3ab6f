"""`diff` of any number of jobs with their metrics: one table, sorted, as data and as a file."""

from __future__ import annotations

import csv
import json
import re
from typing import Any

import pytest
from client_desk import Desk
from fake_server import FakeServer, exec_object

from dlicmd.cli.show.comparison import Compared, Extremes, differing
from dlicmd.cli.show.series import Point
from dlicmd.cli.show.table import column_width

#: Job → its last loss; the best loss is half of it. w-5 has no metrics.
LOSSES = {"w-1": 0.4, "w-2": 0.2, "w-3": 0.8, "w-4": 0.1}


@pytest.fixture
def sweep(local: FakeServer) -> FakeServer:
    """A server with 5 jobs, 4 of them with metrics."""
    local.conf["DLICMD_EXTENSIONS"] += ",curves,metrics,code"
    for number, name in enumerate((*LOSSES, "w-5"), start=1):
        local.execs[name] = exec_object(
            name, state="ERROR" if name == "w-5" else "FINISHED", appName=f"sweep-{number}", loss=9.0, accuracy=9.0,
            args=f"--exec-start PyTorch --appName sweep-{number} --model-main main.py -- --lr 0.{number} --seed 1",
            startTime="2023-10-27T16:27:40Z", endTime=f"2023-10-27T16:27:{60 - number}Z")
    for name, loss in LOSSES.items():
        local.curves[name] = [curve("loss", [[1, loss / 2], [2, loss]]), curve("val/acc", [[1, 1 - loss]])]
    return local


def curve(name: str, points: list[Any], **more: Any) -> dict[str, Any]:
    """Return a curve as a server sends it."""
    return {"name": name, "source": "printed", "unit": "", "stepUnit": "step", "points": points} | more


def cells(text: str) -> list[list[str]]:
    """Return the cells of each line of a table."""
    return [re.split(r"  +", line) for line in text.splitlines()]


def test_many_jobs_have_a_row_each_with_metrics_and_differing_values(desk: Desk, sweep: FakeServer) -> None:
    done = desk.run("diff", *LOSSES, "w-5")
    assert (done.code, done.err) == (0, "")
    head, *lines = cells(done.out)
    assert head == ["id", "name", "loss", "best loss", "val/acc", "--lr", "duration", "state"]
    assert lines[0] == ["w-1", "sweep-1", "0.4", "0.2", "0.6", "0.1", "19s", "FINISHED"]
    assert lines[4] == ["w-5", "sweep-5", "n/a", "n/a", "n/a", "0.5", "15s", "ERROR"]
    assert not sweep.requests("GET", "/code") and not sweep.requests("GET", "/metrics")


def test_2_jobs_have_a_column_each_and_their_code_below(desk: Desk, sweep: FakeServer) -> None:
    sweep.code["w-1"] = {"files": [{"path": "a.py", "bytes": 1, "text": "1"}], "complete": True}
    done = desk.run("diff", "w-1", "w-2")
    table, code = done.out.split("\n\n", 1)
    assert cells(table) == [
        ["name", "A: w-1", "B: w-2"], ["name", "sweep-1", "sweep-2"], ["program --lr", "0.1", "0.2"],
        ["duration", "19s", "18s"], ["loss", "0.4 (step 2)", "0.2 (step 2)"],
        ["best loss", "0.2 (step 1)", "0.1 (step 1)"], ["val/acc", "0.6 (step 1)", "0.8 (step 1)"]]
    assert code.startswith("removed a.py")
    rows = json.loads(desk.run("--exec-diff", "w-1", "w-2", "-o", "json").out)
    assert set(rows) == {"rows", "code"} and {"name": "loss", "a": 0.4, "b": 0.2} in rows["rows"]


@pytest.mark.parametrize(("by", "order"), [
    ("loss", "42135"), ("-loss", "31245"), ("acc", "42135"), ("best*", "42135"), ("duration", "54321"),
    ("-duration", "12345"), ("val/*", "42135"),
])
def test_jobs_are_sorted_by_a_value_the_best_first(desk: Desk, sweep: FakeServer, by: str, order: str) -> None:
    found = json.loads(desk.run("diff", *LOSSES, "w-5", "--sort", by, "-o", "json").out)
    assert "".join(job["id"][-1] for job in found["jobs"]) == order
    shown = cells(desk.run("diff", *LOSSES, "w-5", "--sort", by).out)
    assert "".join(line[0][-1] for line in shown[1:]) == order


def test_metrics_whose_names_differ_in_case_share_a_column(desk: Desk, sweep: FakeServer) -> None:
    sweep.curves["w-3"] = [curve("LOSS", [[1, 0.05]]), curve("val/Acc", [[1, 0.2]])]
    head, *lines = cells(desk.run("diff", *LOSSES, "--sort", "LOSS").out)
    assert head[1:5] == ["name", "loss", "best loss", "val/acc"]
    assert [line[0] for line in lines] == ["w-3", "w-4", "w-2", "w-1"] and lines[0][2] == "0.05 (step 1)"
    sweep.curves["w-3"].append(curve("loss", [[1, 0.7]]))
    assert {"LOSS", "loss"} < set(cells(desk.run("diff", *LOSSES).out)[0]), "one job may have both"


def test_values_of_many_jobs_name_their_steps_if_these_differ(desk: Desk, sweep: FakeServer) -> None:
    sweep.curves["w-3"] = [curve("loss", [[3, 0.05]], stepUnit="epoch"), curve("val/acc", [[1, 0.2]])]
    head, *lines = cells(desk.run("diff", *LOSSES, "w-5").out)
    assert head[2:5] == ["loss", "best loss", "val/acc"]
    assert [line[2] for line in lines] == ["0.4 (step 2)", "0.2 (step 2)", "0.05 (epoch 3)", "0.1 (step 2)", "n/a"]
    assert [line[4] for line in lines[:2]] == ["0.6", "0.8"]
    found = json.loads(desk.run("diff", *LOSSES, "-o", "json").out)["jobs"][2]["metrics"]["loss"]
    assert (found["step"], found["stepUnit"]) == (3, "epoch")


def test_the_column_to_sort_by_is_the_first(desk: Desk, sweep: FakeServer) -> None:
    assert cells(desk.run("diff", *LOSSES, "--sort", "acc").out)[0][2] == "val/acc"


def test_an_unknown_value_to_sort_by_is_reported(desk: Desk, sweep: FakeServer) -> None:
    done = desk.run("diff", "w-1", "w-2", "--sort", "f1", "-o", "json")
    assert (done.code, done.out, done.error) == (2, "", "client.usage")
    assert "'f1'" in done.err and "loss, best loss, val/acc" in done.err and "numWorker" not in done.err


def test_jobs_are_printed_as_data(desk: Desk, sweep: FakeServer) -> None:
    found = json.loads(desk.run("diff", *LOSSES, "-o", "json").out)
    assert list(found) == ["jobs"] and len(found["jobs"]) == 4
    job = found["jobs"][0]
    assert (job["id"], job["seconds"], job["values"]["program --lr"]) == ("w-1", 19.0, "0.1")
    assert job["metrics"] == {
        "loss": {"last": 0.4, "step": 2, "best": 0.2, "bestStep": 1, "stepUnit": "step"},
        "val/acc": {"last": 0.6, "step": 1, "best": 0.6, "bestStep": 1, "stepUnit": "step"}}
    out = desk.run("diff", *LOSSES, "-o", "custom-columns=id,best loss").out
    assert cells(out)[:2] == [["id", "best loss"], ["w-1", "0.2"]]


def test_jobs_are_exported(desk: Desk, sweep: FakeServer) -> None:
    done = desk.run("diff", *LOSSES, "w-5", "--sort", "loss", "--export", "jobs.csv")
    assert done.code == 0 and "5 jobs" in done.out
    with (desk.folder / "jobs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["w-4", "w-2", "w-1", "w-3", "w-5"]
    assert (rows[0]["seconds"], rows[0]["loss"], rows[0]["best loss"], rows[4]["loss"]) == ("16.0", "0.1", "0.05", "")
    told = json.loads(desk.run("diff", *LOSSES, "--export", "jobs.csv", "-o", "json").out)
    assert told == {"path": "jobs.csv", "rows": 4}


def test_a_spreadsheet_computes_no_text_of_an_export(desk: Desk, sweep: FakeServer) -> None:
    names = ["=HYPERLINK(0)", "@SUM(1)", "-1+2", "+1|cmd"]
    for name, job in zip(names, sweep.execs.values(), strict=False):
        job["args"] = f"--exec-start PyTorch -- '--lr={name}' --scale -1.5e-3 --flag --other"
    desk.run("diff", *LOSSES, "w-5", "--export", "jobs.csv")
    with (desk.folder / "jobs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    texts = [text for row in rows for text in [*row, *row.values()]]
    assert {f"'{name}" for name in names} <= set(texts), texts
    assert not any(text.startswith(("=", "+", "@", "\t")) for text in texts)
    assert {row["program --scale"] for row in rows} == {"-1.5e-3", ""}


def test_jobs_are_exported_as_parquet(desk: Desk, sweep: FakeServer) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    sweep.execs["w-1"]["exitCode"], sweep.execs["w-2"]["exitCode"] = "x", 3
    assert desk.run("diff", *LOSSES, "w-5", "--export", "jobs.parquet").code == 0
    rows = parquet.read_table(desk.folder / "jobs.parquet").to_pylist()
    assert (rows[0]["loss"], rows[4]["loss"], rows[0]["program --lr"]) == (0.4, None, "0.1")
    assert [row["exitCode"] for row in rows[:3]] == ["x", "3", None]


def test_a_wide_table_fits_80_columns(desk: Desk, sweep: FakeServer) -> None:
    for number, name in enumerate(LOSSES):
        sweep.curves[name] += [curve(f"损失/metric-{metric}", [[1, number * metric]]) for metric in range(1, 10)]
    lines = desk.on_a_terminal("diff", *LOSSES).rstrip("\n").split("\n")
    assert max(map(column_width, lines)) <= 80 and len(lines) <= 24
    heads = [line for line in cells("\n".join(lines)) if line[0] == "id"]
    assert len(heads) > 1 and sum("metric" in name for head in heads for name in head) == 4
    assert {line[0] for line in cells("\n".join(lines))} == {"id", "", *LOSSES}


def test_names_of_a_program_have_no_effect_on_a_terminal(desk: Desk, sweep: FakeServer) -> None:
    bad = "\x1b[2Ja\n\u202eb"
    for number, name in enumerate(LOSSES):
        sweep.execs[name]["args"] = f"--exec-start PyTorch --model-main main.py -- '--{bad}' {number}"
        sweep.curves[name] = [curve(bad, [[1, number]])]
    for names in (list(LOSSES), ["w-1", "w-2"]):
        shown = desk.on_a_terminal("diff", *names)
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", shown), ascii(shown)


def test_best_values_are_shown_only_if_they_are_not_the_last() -> None:
    point, other = Point(1, 0.5), Point(2, 0.25)
    a = Compared("a", {"state": "X"}, {"m": Extremes(point, point)})
    b = Compared("b", {"state": "X", "n": 1}, {"m": Extremes(other, other)})
    assert differing([a, b]) == {"n": [None, 1], "m": [0.5, 0.25]}
    assert differing([a, b._replace(metrics={"m": Extremes(other, point)})]) == {
        "n": [None, 1], "m": [0.5, 0.25]}
    assert differing([a, a]) == {}
