"""`dlicmd tag`, `note`, `favorite`, and `ls` with words and tags, at a real server."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import commands
import pytest
from live_server import Live
from support import PATIENCE

from dlicmd.contract.exits import Exit
from dlicmd.contract.states import FINISHED, PENDING, RUNNING

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dlicmd(live: Live, tmp_path: Path) -> Command:
    """Runs `dlicmd` as the owner of the server."""
    environment = {**os.environ, "HOME": str(tmp_path), "DLICMD_HOME": str(tmp_path / "client"), "COLUMNS": "120",
                   "DLICMD_TOKEN": live.token}
    address = ("--rest-host", "127.0.0.1", "--rest-port", str(live.port), "--http")

    def run(*words: str) -> tuple[int, str, str]:
        code, out, err = commands.run("dlicmd.cli", (*words, *address), environment, tmp_path, PATIENCE)
        return code, out.decode(), err.decode()

    return run


def submit(live: Live, name: str, *program: str) -> str:
    return live.submitted(f"--exec-start PyTorch --model-main main.py --appName {name} -- {' '.join(program)}")


def test_labels_are_added_shown_and_removed(live: Live, dlicmd: Command) -> None:
    name = submit(live, "one")
    assert dlicmd("tag", "last", "best", "new")[:2] == (0, f"{name}  tags: best, new\n")
    assert dlicmd("tag", "1", "new", "--remove")[:2] == (0, f"{name}  tags: best\n")
    assert dlicmd("note", name, "lower rate\nsame seed")[:2] == (0, f"{name}  tags: best; note: lower rate same seed\n")
    assert dlicmd("favorite", name)[1] == f"{name}  tags: best; note: lower rate same seed; favorite\n"
    assert dlicmd("tag", name)[1] == dlicmd("note", name)[1] == dlicmd("favorite", name)[1]
    shown = json.loads(dlicmd("note", name, "-o", "json")[1])
    assert shown == [{"id": name, "tags": ["best"], "note": "lower rate\nsame seed", "favorite": True}]
    page = dlicmd("get", name)[1]
    assert "tags       best, favorite\n" in page and "note       lower rate same seed\n" in page
    assert json.loads(dlicmd("get", name, "-o", "json")[1])["tags"] == ["best"]
    assert json.loads(dlicmd("ls", "-o", "json")[1])[0]["note"] == "lower rate\nsame seed"
    assert dlicmd("note", name, "--remove")[1] == f"{name}  tags: best; favorite\n"
    assert dlicmd("--exec-favorite", name, "--remove")[1] == f"{name}  tags: best\n"


def test_jobs_are_found_by_words_and_tags(live: Live, dlicmd: Command) -> None:
    first, second, third = (submit(live, name, "--lr", rate) for name, rate in (
        ("one", "0.1"), ("two", "0.1"), ("three", "0.2")))
    dlicmd("tag", second, "best")
    dlicmd("tag", third, "best")

    def found(*words: str) -> list[str]:
        return [one["id"] for one in json.loads(dlicmd("ls", *words, "-o", "json")[1])]

    assert found("--find", "lr=0.1") == [second, first] and found("--tag", "best") == [third, second]
    assert found("--find", "lr=0.1", "--tag", "best") == [second] and found("--tag", "none") == []
    assert dlicmd("ls", "--tag", "none")[1] == "no such jobs\n"
    assert "best" in dlicmd("ls")[1]
    code, _, said = dlicmd("ls", "--find", "state:nonsense")
    assert code == Exit.USAGE and "nonsense" in said


def test_jobs_are_sorted_by_values_and_show_them(live: Live, dlicmd: Command) -> None:
    """Also of parameters whose names are headings of the table."""
    for rate, mode, f1 in (("0.1", "fast", 0.5), ("0.02", "3", 0.75), ("3e-1", "slow", None)):
        run = submit(live, "one", "--lr", rate, "--state", mode)
        if f1 is not None:
            live.move(run, PENDING, RUNNING)
            live.move(run, FINISHED, progress=json.dumps({"lastMetrics": {"val_f1": {"value": f1, "step": 1}}}))

    submit(live, "bare")

    def ids(sort: str) -> list[str]:
        return [one["id"][-1] for one in json.loads(dlicmd("ls", "--sort", sort, "-o", "json")[1])]

    assert ids("val_f1") == ["2", "1", "4", "3"] and ids("-metric.val_f1") == ["1", "2", "4", "3"]
    assert ids("lr") == ["2", "1", "3", "4"] and ids("-param.LR") == ["3", "1", "2", "4"]
    assert ids("param.state") == ["2", "1", "3", "4"] and ids("-param.state") == ["2", "3", "1", "4"]
    _, out, said = dlicmd("ls", "--sort", "val_f1", "--column", "lr", "--column", "param.state", "--column", "none")
    assert "none" in said
    lines = out.splitlines()
    cells = [line[lines[0].index("param.lr"):].split() for line in lines]
    assert [one[:3] for one in cells[:3]] == [
        ["param.lr", "param.state", "val_f1"], ["0.02", "3", "0.75"], ["0.1", "fast", "0.5"]]
    assert cells[3] == ["1", "PyTorch"] and cells[4][:2] == ["0.3", "slow"]
    assert dlicmd("ls", "-o", "custom-columns=id,lr,val_f1")[1].split()[:9] == [
        "id", "lr", "val_f1", "local-4", "n/a", "n/a", "local-3", "0.3", "n/a"]
    code, _, said = dlicmd("ls", "--sort", "none")
    assert code == Exit.USAGE and "val_f1" in said and "param.lr" in said
    found = [one.get("parameters", {}).get("lr") for one in json.loads(dlicmd("ls", "-o", "json")[1])]
    assert found == [None, 0.3, 0.02, 0.1]
    recorded = json.loads(dlicmd("--exec-get", "local-1", "-o", "json")[1])
    assert not {"metrics", "parameters", "lastMetrics"} & recorded.keys(), "scripts of WMLA expect scalars"
    assert json.loads(dlicmd("get", "local-1", "-o", "json")[1])["metrics"] == {"val_f1": 0.5}


def test_what_cannot_be_labelled_is_refused(live: Live, dlicmd: Command) -> None:
    name = submit(live, "one")
    code, _, said = dlicmd("tag", name, "a b")
    assert code != 0 and "'a b' is not a tag" in said
    assert dlicmd("tag", "local-99", "x")[0] == dlicmd("favorite", name, "local-99")[0] == Exit.NO_SUCH_ID
    assert dlicmd("tag", name, "--remove")[0] == dlicmd("note", name, "x", "--remove")[0] == Exit.USAGE
    assert dlicmd("tag", name)[1] == f"{name}  tags: none\n"
