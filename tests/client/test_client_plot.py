"""Metrics of jobs as curves: `plot` draws them, prints their points, and writes them to a file."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from client_desk import Desk
from fake_server import FakeServer, exec_object
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import examples

from dlicmd.cli.show.chart import chart
from dlicmd.cli.show.panels import drawn
from dlicmd.cli.show.series import Point, Series, read
from dlicmd.cli.show.table import column_width

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
LINES = st.lists(st.lists(st.tuples(FLOATS, FLOATS), max_size=30), min_size=1, max_size=8).filter(any)
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
COLOR = re.compile("\x1b\\[[0-9;]*m")


@pytest.fixture
def two(local: FakeServer) -> FakeServer:
    """A server with curves of two jobs."""
    local.conf["DLICMD_EXTENSIONS"] += ",curves,code"
    local.execs |= {name: exec_object(name, state="FINISHED", appName=f"of {name}") for name in ("w-1", "w-2")}
    local.curves["w-1"] = [
        curve("lr", [[0, 0.1], [1, 0.01]]),
        curve("train/loss", [[step, 1 / (step + 1), 1.7e9 + step] for step in range(200)], left=2),
        curve("val_acc", [[1, 0.5, None], [2, 0.75, None]], stepUnit="epoch"),
    ]
    local.curves["w-2"] = [curve("train/loss", [[5, 3.0], [5, 2.0], [3, 1.0], [7, "x"], 7, [8]])]
    return local


def curve(name: str, points: list[Any], **more: Any) -> dict[str, Any]:
    """Return a curve as a server sends it."""
    return {"name": name, "source": "printed", "unit": "", "stepUnit": "step", "points": points} | more


def data(desk: Desk, *words: str) -> Any:
    """Return what a command prints as JSON."""
    return json.loads(desk.run(*words, "-o", "json").out)


def test_a_chart_has_a_character_for_each_line() -> None:
    assert chart([[(0, 4.0), (10, 0.0)], [(5, 4.0)]], 15, 5, "step", braille=False) == [
        "4 |**    o",
        "  |  ***",
        "2 |     **",
        "  |       ***",
        "0 |          **",
        "  +------------",
        "   0  step   10",
    ]


def test_a_chart_in_braille_has_a_line_of_dots_and_a_mark_for_a_single_point() -> None:
    assert chart([[(0, 4.0), (10, 0.0)]], 11, 4) == [
        "    4 ┤⠑⢄", "      │  ⠑⢄", "1.333 ┤    ⠑⢄", "    0 ┤      ⠑⢄", "      └────────", "       0     10"]
    assert chart([[(7, 1.5)]], 14, 3, "epoch") == ["    │", "1.5 ┤    o", "    │", "    └─────────", "      epoch 7"]


def test_a_line_of_steps_keeps_each_value_until_the_next_one() -> None:
    rows = chart([[(0, 0.0), (4, 0.0), (8, 1.0)]], 12, 3, braille=False, stepped=True)[:3]
    bodies = [row.split("|")[1] for row in rows]
    assert bodies[0].strip() == bodies[1].strip() == "*"
    assert bodies[0].index("*") == bodies[1].index("*") == len(bodies[2]) - 1
    assert bodies[2] == "*" * len(bodies[2])


def test_the_first_line_is_seen_where_lines_meet() -> None:
    lines = [[(0, 1.0), (1, 2.0)], [(0, 1.0), (1, 2.0)]]
    assert "o" not in "".join(chart(lines, 20, 5, braille=False)[:5])
    rows = chart(lines, 20, 5, painted=lambda text, line: f"<{line}>{text}")
    assert "<0>" in "".join(rows) and "<1>" not in "".join(rows)


@settings(max_examples=examples(300), deadline=None)
@given(LINES, st.integers(30, 200), st.integers(2, 40), st.booleans())
def test_a_chart_of_any_numbers_fits(
    lines: list[list[tuple[float, float]]], width: int, height: int, braille: bool,
) -> None:
    rows = chart(lines, width, height, "step", braille=braille)
    assert len(rows) == height + 2 and max(map(len, rows[:-2])) <= width, rows


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.builds(
    Series, st.text(max_size=12), st.text(max_size=20),
    st.lists(st.builds(Point, FLOATS, FLOATS), min_size=1, max_size=9, unique_by=lambda point: point.step),
    st.text(max_size=30)), min_size=1, max_size=20), st.booleans())
def test_any_series_can_be_drawn(series: list[Series], colored: bool) -> None:
    with (mock.patch.dict(os.environ, {"COLUMNS": "80", "TERM": "xterm", "NO_COLOR": ""}),
          mock.patch("sys.stdout.isatty", return_value=colored)):
        text = drawn(series, 80, 24)
    lines = COLOR.sub("", text).split("\n")
    assert not CONTROL.search("".join(lines))
    assert sum(line.lstrip()[:1] in ("└", "+") for line in lines) >= 1
    assert all(column_width(line) <= 80 for line in lines if "│" in line or "┤" in line)


@given(st.lists(st.lists(st.integers() | FLOATS | st.none() | st.text(max_size=3), max_size=4) | st.integers()))
@example([[0, "0\x1f"]])
def test_points_of_any_server_are_read_in_the_order_of_steps(points: list[Any]) -> None:
    steps = [point.step for point in read(points)]
    assert steps == sorted(set(steps))


def test_the_losses_of_a_job_are_drawn_by_default(desk: Desk, two: FakeServer) -> None:
    shown = desk.on_a_terminal("plot", "w-1")
    lines = COLOR.sub("", shown).rstrip("\n").split("\n")
    assert len(lines) <= 23 and max(map(len, lines)) <= 80
    assert lines[0] == "train/loss" and lines[1].startswith("     1 ┤")
    assert lines[-3].split() == ["0", "step", "199"]
    assert [line.split() for line in lines[-2:]] == [
        ["job", "name", "metric", "last", "step", "best", "best", "step"],
        ["⣿", "w-1", "of", "w-1", "train/loss", "0.005", "199", "0.005", "199"]]
    assert desk.run("plot", "w-1").err == "dlicmd: left out 2 values of w-1: not a finite number\n"


def test_several_jobs_share_a_chart_with_a_color_each(desk: Desk, two: FakeServer) -> None:
    shown = desk.on_a_terminal("plot", "w-1", "w-2")
    colors = {line.split("m")[0] + "m" for line in shown.rstrip("\n").split("\n")[-2:]}
    assert len(colors) == 2 and all(shown.count(color) > 1 for color in colors)
    assert COLOR.sub("", shown).rstrip("\n").split("\n")[-1].split()[-4:] == ["2", "5", "1", "3"]
    plain = desk.run("plot", "w-1", "w-2").out
    assert "\x1b" not in plain and "⣿" not in plain and [line[0] for line in plain.splitlines()[-2:]] == ["*", "o"]


def test_metrics_of_another_kind_or_unit_have_a_chart_of_their_own(desk: Desk, two: FakeServer) -> None:
    lines = COLOR.sub("", desk.on_a_terminal("plot", "w-1", "--metric", "val*", "--metric", "loss")).split("\n")
    assert lines[0] == "val_acc" and "train/loss" in lines and lines.count("") == 2 and len(lines) <= 24
    [axis] = [line.split() for line in lines if "epoch" in line.split()[1:2]]
    assert axis == ["1", "epoch", "2"]


def test_output_without_unicode_gets_a_chart_in_ascii(desk: Desk, two: FakeServer) -> None:
    desk.environment |= {"PYTHONIOENCODING": "ascii"}
    assert desk.run("plot", "w-1").out.isascii()


def test_the_points_are_printed_as_data(desk: Desk, two: FakeServer) -> None:
    points = data(desk, "--exec-plot", "w-1")
    assert len(points) == 200 and points[1] == {
        "id": "w-1", "series": "train/loss", "step": 1, "value": 0.5, "loss": 0.5, "time": "2023-11-14T22:13:21.000Z"}
    assert data(desk, "plot", "w-2", "w-1", "--metric", "loss")[:2] == [
        {"id": "w-2", "series": "train/loss", "step": 3, "value": 1.0, "loss": 1.0},
        {"id": "w-2", "series": "train/loss", "step": 5, "value": 2.0, "loss": 2.0}]
    done = desk.run("plot", "w-1", "--metric", "*acc", "-o", "custom-columns=series,step,value")
    assert done.out.split() == ["series", "step", "value", "val_acc", "1", "0.5", "val_acc", "2", "0.75"]


def test_only_the_metrics_to_draw_are_fetched_if_their_names_are_known(desk: Desk, two: FakeServer) -> None:
    two.execs["w-1"]["lastMetrics"] = {name: {"value": 1, "step": 1} for name in ("train/loss", "lr", "val_acc")}
    desk.run("plot", "w-1")
    assert two.requests("GET", "/curves")[-1].query == {"metric": ["train/loss"]}
    desk.run("plot", "w-1", "--metric", "l*", "--metric", "VAL_ACC")
    assert two.requests("GET", "/curves")[-1].query == {"metric": ["lr", "val_acc"]}
    two.execs["w-1"]["lastMetrics"] |= {str(number): {} for number in range(5)}
    desk.run("plot", "w-1")
    assert two.requests("GET", "/curves")[-1].query == {}


@pytest.mark.parametrize(("words", "said"), [
    (["w-3"], "dlicmd.log(loss=loss.item(), step=step)"), (["w-1", "--metric", "f1"], "known: lr, train/loss, val_acc"),
    (["w-4"], "1 value,"), (["w-3", "w-4"], "dlicmd.log("),
])
def test_missing_metrics_are_reported(desk: Desk, two: FakeServer, words: list[str], said: str) -> None:
    two.execs |= {name: exec_object(name, state="RUNNING") for name in ("w-3", "w-4")}
    two.curves["w-4"] = [curve("loss", [], left=1)]
    done = desk.run("plot", *words)
    assert (done.code, done.out) == (1, "") and said in done.err and done.err.count("\n") == 1
    for one in ("w-3", "w-4"):
        two.execs[one]["state"] = "FINISHED"
    assert "yet" not in desk.run("plot", *words).err


def test_a_job_without_the_metric_is_left_out_and_reported(desk: Desk, two: FakeServer) -> None:
    two.execs["w-3"] = exec_object("w-3")
    done = desk.run("plot", "w-1", "w-2", "w-3", "--metric", "val_acc", "--metric", "f1", "-o", "json")
    assert done.code == 0 and {point["id"] for point in json.loads(done.out)} == {"w-1"}
    of_two, of_three, of_f1 = done.err.splitlines()
    assert "w-2" in of_two and "train/loss" in of_two and "w-3" in of_three and "'f1'" in of_f1


def test_a_job_without_losses_shows_its_first_metric(desk: Desk, two: FakeServer) -> None:
    two.curves["w-1"] = [curve("reward", [[1, 0.5]]), curve("lr", [[1, 1]])]
    assert [point["series"] for point in data(desk, "plot", "w-1")] == ["reward"]
    assert "loss" not in data(desk, "plot", "w-1")[0]


def test_the_cpu_and_the_memory_in_use_are_plotted(desk: Desk, two: FakeServer) -> None:
    refused = desk.run("plot", "w-1", "--resources")
    assert refused.code != 0 and "does not record" in refused.err
    two.conf["DLICMD_EXTENSIONS"] += ",resources"
    two.resources["w-1"] = [curve(name, [[3, 1.5], [13, 2.5]], stepUnit="second") for name in (
        "cpu", "cpu worker 1", "memory")]
    assert [row["series"] for row in data(desk, "plot", "w-1", "--resources")] == ["cpu"] * 2 + ["memory"] * 2
    assert "no job has" not in desk.run("plot", "w-1", "--resources").err, "about a GPU"
    worker = data(desk, "plot", "w-1", "--resources", "--metric", "cpu worker 1")
    assert [(row["series"], row["step"], row["value"]) for row in worker] == [
        ("cpu worker 1", 3, 1.5), ("cpu worker 1", 13, 2.5)]
    lacking = desk.run("plot", "w-2", "--resources")
    assert lacking.code != 0 and "no CPU and memory" in lacking.err


def test_jobs_with_equal_parameters_share_a_mean(desk: Desk, two: FakeServer) -> None:
    two.execs["w-3"] = exec_object("w-3", state="FINISHED", appName="other")
    two.curves["w-3"] = [curve("train/loss", [[3, 9.0], [5, 9.0]])]
    two.curves["w-1"] = [curve("train/loss", [[3, 5.0], [4, 6.0]])]
    for name, rate in (("w-1", "0.10"), ("w-2", 0.1), ("w-3", "fast")):
        two.execs[name]["parameters"] = {"lr": rate}
    words = ("plot", "w-1", "w-2", "w-3", "--group", "lr")
    columns = ("id", "step", "value", "low", "high", "jobs")
    points = [[row[column] for column in columns] for row in data(desk, *words)]
    assert points == [
        ["lr=0.1", 3, 3.0, 1.0, 5.0, 2], ["lr=0.1", 4, 3.75, 1.5, 6.0, 2], ["lr=0.1", 5, 2.0, 2.0, 2.0, 1],
        ["lr=fast", 3, 9.0, 9.0, 9.0, 1], ["lr=fast", 5, 9.0, 9.0, 9.0, 1]]
    assert [line.split()[1:4] for line in desk.run(*words).out.splitlines()[-2:]] == [
        ["lr=0.1", "2", "jobs"], ["lr=fast", "1", "job"]]
    named = data(desk, *words, "--group", "name")
    assert {row["id"] for row in named} == {"lr=0.1, name=of w-1", "lr=0.1, name=of w-2", "lr=fast, name=other"}
    assert desk.run(*words, "--export", "points.csv").code == 0
    assert (desk.folder / "points.csv").read_text().splitlines()[0].endswith("source,low,high,jobs")
    done = desk.run("plot", "w-1", "--group", "batch")
    assert done.code == 1 and "no job has a parameter 'batch'" in done.err


def test_an_unknown_job_is_reported(desk: Desk, two: FakeServer) -> None:
    done = desk.run("plot", "w-1", "w-9", "-o", "json")
    assert (done.code, done.out, done.error) == (6, "", "exec.not_found")


def test_points_are_exported_as_csv(desk: Desk, two: FakeServer) -> None:
    done = desk.run("plot", "w-1", "w-2", "--export", "points.csv")
    assert done.code == 0 and "202 points" in done.out
    with (desk.folder / "points.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 202 and rows[1] == {
        "id": "w-1", "name": "of w-1", "series": "train/loss", "step": "1", "step_unit": "step", "value": "0.5",
        "unit": "", "time": "2023-11-14T22:13:21.000Z", "source": "printed"}
    assert rows[-1]["time"] == "" and list(desk.folder.glob("*.tmp")) == []
    told = data(desk, "plot", "w-2", "--export", "points.csv")
    assert told == {"path": "points.csv", "rows": 2} and (desk.folder / "points.csv").read_text().count("\n") == 3


def test_points_are_exported_as_parquet(desk: Desk, two: FakeServer) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert desk.run("plot", "w-1", "w-2", "--export", "points.parquet").code == 0
    table = parquet.read_table(desk.folder / "points.parquet").to_pylist()
    assert len(table) == 202 and table[1]["value"] == 0.5 and table[-1] == {
        "id": "w-2", "name": "of w-2", "series": "train/loss", "step": 5.0, "step_unit": "step", "value": 2.0,
        "unit": None, "time": None, "source": "printed"}


@pytest.mark.parametrize("name", ["points.txt", "points", "missing/points.csv", "", ".csv/"])
def test_an_export_that_cannot_be_written_is_refused_before_a_fetch(desk: Desk, two: FakeServer, name: str) -> None:
    done = desk.run("plot", "w-1", "--export", name, "-o", "json")
    assert (done.code, done.error) == (2, "client.usage") and "--export" in done.err
    assert not two.requests("GET", "/curves")


def test_parquet_without_its_library_is_refused_with_the_remedy(desk: Desk, two: FakeServer, tmp_path: Path) -> None:
    call = "import sys; sys.modules['pyarrow'] = None\nfrom dlicmd.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", call, "plot", "w-1", "--export", "p.parquet"], env=desk.environment,
                          cwd=desk.folder, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 2 and "pip install pyarrow" in done.stderr and ".csv" in done.stderr
    assert not two.requests("GET", "/curves") and not (desk.folder / "p.parquet").exists()


def test_names_of_a_program_have_no_effect_on_a_terminal(desk: Desk, two: FakeServer) -> None:
    bad = "a\x1b[2Jb/c\n\u202e损失" + "m" * 200
    two.execs["w-1"]["appName"] = bad
    two.curves["w-1"] = [curve(bad, [[1, 1.0], [2, 2.0]], unit=bad, stepUnit=bad)]
    shown = COLOR.sub("", desk.on_a_terminal("plot", "w-1", "--metric", "*"))
    assert not CONTROL.search(shown.replace("\n", "")) and "ab/c 损失" in shown
    assert max(map(column_width, shown.split("\n"))) <= 80
