"""What differs between two execs."""

from __future__ import annotations

import json
import re

import pytest
from client_desk import Desk
from fake_server import FakeServer, exec_object

ARGS = "--exec-start PyTorch --model-main main.py --msd-env A=1 --msd-env 'B=x y' --numWorker 1 -- --lr 0.1 -v data"
OTHER = "--exec-start edtPyTorch --model-main main.py --msd-env A=1 --workerMemory 8g --numWorker 2 " \
        "-- --lr=-0.2 data more --fast --seed 1"


def rows(out: str) -> dict[str, list[str]]:
    """A printed table: the first cell of each row → the others."""
    cells = [re.split(r"  +", line) for line in out.splitlines()]
    return {line[0]: line[1:] for line in cells}


def test_only_what_differs_is_shown(desk: Desk, local: FakeServer) -> None:
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
        "numWorker": ["1", "2"], "--msd-env": ["A=1 'B=x y'", "A=1"], "--workerMemory": ["n/a", "8g"],
        "program --lr": ["0.1", "-0.2"], "program -v": ["data", "n/a"], "program": ["n/a", "data more"],
        "program --fast": ["n/a", "true"], "program --seed": ["n/a", "1"], "duration": ["2m5s", "10s"],
        "exitCode": ["0", "3"], "loss": ["0.5", "0.25"], "step": ["40", "n/a"], "epoch": ["n/a", "3"],
        "samplesPerSecond": ["n/a", "812.5"],
    }


def test_as_data(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1", loss=0.5)
    local.execs["w-2"] = exec_object("w-2", args="--exec-start PyTorch --model-main main.py --fast ")
    found = json.loads(desk.run("--exec-diff", "w-1", "w-2", "-o", "json").out)
    assert found == {"rows": [
        {"name": "loss", "a": 0.5, "b": None}, {"name": "program --fast", "a": None, "b": True}]}
    assert desk.run("--exec-diff", "w-1", "w-2", "-o", "custom-columns=name,b").out.split() == [
        "name", "b", "loss", "n/a", "program", "--fast", "true"]
    assert json.loads(desk.run("--exec-diff", "w-1", "w-1", "-o", "json").out) == {"rows": []}


def test_two_that_do_not_differ(desk: Desk, local: FakeServer) -> None:
    local.execs.update({name: exec_object(name) for name in ("w-1", "w-2")})
    assert desk.run("--exec-diff", "w-1", "w-2").out == "w-1 and w-2 do not differ\n"


@pytest.mark.parametrize("args", [7, None, "", "--numWorker x", "no command", "'", "--exec-start A --demo --\x1b[31m"])
def test_args_that_make_no_sense(desk: Desk, local: FakeServer, args: object) -> None:
    local.execs["w-1"] = exec_object("w-1", args=args, loss="\x1b[31mlow\n", state={"deep": [1]})
    local.execs["w-2"] = exec_object("w-2", numWorker=[3])
    done = desk.run("--exec-diff", "w-1", "w-2")
    assert (done.code, done.err) == (0, "") and "\x1b" not in done.out and rows(done.out)["loss"] == ["low", "n/a"]


def test_an_exec_that_is_not_there(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    done = desk.run("--exec-diff", "w-1", "w-2")
    assert (done.code, done.out) == (6, "") and "no exec 'w-2'" in done.err
    done = desk.run("--exec-diff", "w-1")
    assert done.code == 2 and "--exec-diff ID ID" in done.err
