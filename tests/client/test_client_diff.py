"""The differences between two execs, as --exec-diff prints them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from client_desk import Desk
from fake_server import FakeServer, exec_object

ARGS = "--exec-start PyTorch --model-main main.py --msd-env A=1 --msd-env 'B=x y' --numWorker 1 -- --lr 0.1 -v data"
OTHER = "--exec-start edtPyTorch --model-main main.py --msd-env A=1 --workerMemory 8g --numWorker 2 " \
        "-- --lr=-0.2 data more --fast --seed 1"


@pytest.fixture(autouse=True)
def _tells(local: FakeServer) -> None:
    """Let the server offer metrics and code."""
    local.conf["DLICMD_EXTENSIONS"] += ",metrics,code"


def rows(out: str) -> dict[str, list[str]]:
    """Return a printed table: the first cell of each row mapped to the other cells."""
    cells = [re.split(r"  +", line) for line in out.splitlines()]
    return {line[0]: line[1:] for line in cells}


def test_only_differences_are_shown(desk: Desk, local: FakeServer) -> None:
    times = {"startTime": "2023-10-27T16:27:40Z", "endTime": "2023-10-27T16:29:45Z"}
    local.execs["w-1"] = exec_object("w-1", state="FINISHED", args=ARGS, loss=0.5, accuracy=0.9, step=40, exitCode=0,
                                     **times)
    local.execs["w-2"] = exec_object(
        "w-2", state="ERROR", args=OTHER, framework="edtPyTorch", numWorker=2, loss=0.25, accuracy=0.9, epoch=3,
        samplesPerSecond=812.5, exitCode=3, startTime=times["startTime"], endTime="2023-10-27T16:27:50Z")
    done = desk.run("--exec-diff", "w-1", "w-2")
    assert (done.code, done.err) == (0, "")
    assert rows(done.out) == {
        "name": ["A: w-1", "B: w-2"], "state": ["FINISHED", "ERROR"], "framework": ["PyTorch", "edtPyTorch"],
        "workers": ["1", "2"], "--msd-env": ["A=1 'B=x y'", "A=1"], "--workerMemory": ["n/a", "8g"],
        "program --lr": ["0.1", "-0.2"], "program -v": ["data", "n/a"], "program": ["n/a", "data more"],
        "program --fast": ["n/a", "true"], "program --seed": ["n/a", "1"], "duration": ["2m5s", "10s"],
        "exit code": ["0", "3"], "loss": ["0.5", "0.25"], "step": ["40", "n/a"], "epoch": ["n/a", "3"],
        "samples/s": ["n/a", "812.5"],
    }


@pytest.mark.parametrize(("a", "b", "shown"), [
    (0.1 + 0.2, 0.25, ["0.3", "0.25"]), (0.1 + 0.2, 0.3, ["0.30000000000000004", "0.3"]),
    (0.123456, 0.12346, ["0.123456", "0.12346"]), (81234.567, 1e-7 / 3, ["81235", "3.333e-08"]),
    (123456789, 123456788.6, ["123456789", "123456788.6"]), (1e300, None, ["1e+300", "n/a"]),
])
def test_rounded_numbers_keep_their_difference(
    desk: Desk, local: FakeServer, a: float, b: float | None, shown: list[str],
) -> None:
    local.execs |= {"w-1": exec_object("w-1", loss=a), "w-2": exec_object("w-2", loss=b)}
    assert rows(desk.run("--exec-diff", "w-1", "w-2").out)["loss"] == shown
    [row] = json.loads(desk.run("--exec-diff", "w-1", "w-2", "-o", "json").out)["rows"]
    assert row == {"name": "loss", "a": a, "b": b}, "the JSON output must be exact"


def test_differences_are_printed_as_json(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1", loss=0.5)
    local.execs["w-2"] = exec_object("w-2", args="--exec-start PyTorch --model-main main.py --fast ")
    found = json.loads(desk.run("--exec-diff", "w-1", "w-2", "-o", "json").out)
    assert found == {"rows": [
        {"name": "loss", "a": 0.5, "b": None}, {"name": "program --fast", "a": None, "b": True}], "code": []}
    assert desk.run("--exec-diff", "w-1", "w-2", "-o", "custom-columns=name,b").out.split() == [
        "name", "b", "loss", "n/a", "program", "--fast", "true"]
    assert json.loads(desk.run("--exec-diff", "w-1", "w-1", "-o", "json").out) == {"rows": [], "code": []}


def test_equal_execs_do_not_differ(desk: Desk, local: FakeServer) -> None:
    local.execs.update({name: exec_object(name) for name in ("w-1", "w-2")})
    assert desk.run("--exec-diff", "w-1", "w-2").out == "w-1 and w-2 do not differ\n"


@pytest.mark.parametrize("args", [7, None, "", "--numWorker x", "no command", "'", "--exec-start A --demo --\x1b[31m"])
def test_invalid_args_are_compared_without_an_error(desk: Desk, local: FakeServer, args: object) -> None:
    local.execs["w-1"] = exec_object("w-1", args=args, loss="\x1b[31mlow\n", state={"deep": [1]})
    local.execs["w-2"] = exec_object("w-2", numWorker=[3])
    done = desk.run("--exec-diff", "w-1", "w-2")
    assert (done.code, done.err) == (0, "") and "\x1b" not in done.out and rows(done.out)["loss"] == ["low", "n/a"]


def test_an_unknown_exec_is_reported(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    done = desk.run("--exec-diff", "w-1", "w-2", "-o", "json")
    assert (done.code, done.out, done.error) == (6, "", "exec.not_found") and "'w-2'" in done.err
    done = desk.run("--exec-diff", "w-1")
    assert done.code == 2 and "--exec-diff ID ID" in done.err


def record(group: str, **values: float | str) -> str:
    """Return a line of evaluation-metrics.txt (contract, 7)."""
    typed = {name: {"value": value} if isinstance(value, str) else
             {"type": 2 if isinstance(value, int) else 3, "value": str(value)} for name, value in values.items()}
    return json.dumps({"meta": {"rindex": 1}, "grouplabel": group, "etimes": {}, "values": typed}) + "\n"


def code(**texts: str) -> dict[str, Any]:
    """Return the answer of a server about code files (`train` means train.py)."""
    return {"complete": True, "files": [
        {"path": f"{name}.py", "bytes": len(text), "sha256": f"of {text}", "text": text}
        for name, text in texts.items()]}


def two(local: FakeServer) -> None:
    local.execs.update({name: exec_object(name) for name in ("w-1", "w-2")})


def test_the_last_metrics_are_compared(desk: Desk, local: FakeServer) -> None:
    two(local)
    local.metrics["w-1"] = record("train", loss=9.0) + record("train", loss=0.5, seen=10) + record("test", accuracy=0.9)
    local.metrics["w-2"] = (record("train", loss=1.0, seen=10) + "\n" + record("train", loss=2.0, seen=10)
                            + "noise\n[]\n" + record("test", accuracy=0.9, note="x\x1b[31my") + record("", loss="nan"))
    done = desk.run("--exec-diff", "w-1", "w-2")
    assert (done.code, done.err) == (0, "")
    assert rows(done.out) == {"name": ["A: w-1", "B: w-2"], "train loss": ["0.5", "1.5"], "test note": ["n/a", "xy"],
                              "loss": ["n/a", "nan"]}
    found = json.loads(desk.run("--exec-diff", "w-1", "w-2", "-o", "json").out)["rows"]
    assert {"name": "train loss", "a": 0.5, "b": 1.5} in found


def test_files_are_compared(desk: Desk, local: FakeServer) -> None:
    two(local)
    local.code["w-1"] = code(same="1\n", old="x\n", train="a\nloss = 1\nb\n", end="no end")
    local.code["w-2"] = code(same="1\n", new="y\n", train="a\nloss = 3\nb\n", end="no end\n")
    local.code["w-2"]["files"].append({"path": "w.bin", "bytes": 3, "sha256": "f"})
    done = desk.run("--exec-diff", "w-1", "w-2")
    assert (done.code, done.err) == (0, "")
    said, diff = done.out.split("\n\n")
    assert said.splitlines() == [
        "changed end.py", "added   new.py", "removed old.py", "changed train.py", "added   w.bin"]
    assert diff.endswith("--- a/train.py\n+++ b/train.py\n@@ -1,3 +1,3 @@\n a\n-loss = 1\n+loss = 3\n b\n")
    assert "-no end\n\\ No newline at end of file\n+no end\n---" in diff
    found = json.loads(desk.run("--exec-diff", "w-1", "w-2", "-o", "json").out)
    assert found["rows"] == []
    assert [(one["path"], one["change"], "diff" in one) for one in found["code"]] == [
        ("end.py", "changed", True), ("new.py", "added", True), ("old.py", "removed", True),
        ("train.py", "changed", True), ("w.bin", "added", False)]
    assert found["code"][1]["diff"] == "--- a/new.py\n+++ b/new.py\n@@ -0,0 +1 @@\n+y\n"


def test_the_table_precedes_the_files(desk: Desk, local: FakeServer) -> None:
    two(local)
    local.execs["w-2"]["state"] = "ERROR"
    local.code["w-2"] = code(new="y\n")
    parts = desk.run("--exec-diff", "w-1", "w-2").out.split("\n\n")
    assert [part.split()[0] for part in parts] == ["name", "added", "---"]


def test_long_diffs_are_cut_in_text_but_complete_in_json(desk: Desk, local: FakeServer) -> None:
    two(local)
    local.code["w-1"] = code(long="".join(f"{number}\n" for number in range(1000)), huge="\n" * 6000)
    local.code["w-2"] = code(huge="x" + "\n" * 6000)
    out = desk.run("--exec-diff", "w-1", "w-2").out.splitlines()
    assert len(out) == 2 + 1 + 400 + 1 and out[-1] == "... 603 more lines; -o json prints all"
    huge, long = json.loads(desk.run("--exec-diff", "w-1", "w-2", "-o", "json").out)["code"]
    assert "diff" not in huge and len(long["diff"].splitlines()) == 1003


def test_file_contents_cannot_control_the_terminal(desk: Desk, local: FakeServer) -> None:
    two(local)
    local.code["w-1"] = code(**{"a\x1b[2Jb\n": "\x1b]0;title\x07x\r+fake\n"})
    done = desk.run("--exec-diff", "w-1", "w-2")
    assert "\x1b" not in done.out and done.out.startswith("removed ab .py\n") and done.out.endswith("\n-x+fake\n")


def test_files_without_content_are_compared_as_far_as_possible(desk: Desk, local: FakeServer) -> None:
    two(local)
    local.code["w-1"] = {"complete": False, "files": [{"path": "a", "bytes": 5}, {"path": "b", "bytes": 5}, 7]}
    local.code["w-2"] = {"files": [{"path": "a", "bytes": 5, "sha256": "x"}, {"path": "b", "bytes": 6}, {"path": []}]}
    done = desk.run("--exec-diff", "w-1", "w-2")
    assert done.code == 0 and "changed b" in done.out and "changed a" not in done.out
    incomplete, large = done.err.splitlines()
    assert "w-1" in incomplete and large.endswith(": a")


def test_metrics_and_code_are_not_requested_from_a_plain_server(desk: Desk, local: FakeServer) -> None:
    two(local)
    local.conf["DLICMD_EXTENSIONS"] = "argv"
    local.metrics["w-1"], local.code["w-1"] = record("train", loss=1), code(train="1")
    done = desk.run("--exec-diff", "w-1", "w-2", "-o", "json")
    assert json.loads(done.out) == {"rows": []}
    assert done.err.count("\n") == 1 and "code" in done.err
    assert not local.requests("GET", "/metrics") and not local.requests("GET", "/code")
