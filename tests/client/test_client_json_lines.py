"""`-o jsonl` for tools that read lines."""

from __future__ import annotations

import json

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, exec_object


@pytest.mark.parametrize("form", [["-o", "jsonl"], ["-ojsonl"], ["--output=jsonl"]], ids=" ".join)
def test_a_list_becomes_one_line_per_object(desk: Desk, local: FakeServer, form: list[str]) -> None:
    local.execs |= {f"w-{number}": exec_object(f"w-{number}", note="two\nlines \x1b[2J") for number in range(3)}
    done = desk.run("--exec-get-all", *form)
    assert done.code == 0, done
    assert [json.loads(line) for line in done.out.splitlines()] == list(local.execs.values())
    assert "\x1b" not in done.out and done.err == ""


def test_an_empty_list_prints_nothing(desk: Desk, local: FakeServer) -> None:
    done = desk.run("--exec-get-all", "-o", "jsonl")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_an_object_becomes_one_line(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1", state="FINISHED")
    local.replies["GET", f"{BASE}/resplans/resplantree"] = Reply(200, b'{"id": "cpd", "childTreeDto": [{"id": "a"}]}')
    for words in (["--exec-get", "w-1"], ["--rp-get-all"], ["--config-show"], ["--wait", "w-1"]):
        done = desk.run(*words, "-o", "jsonl")
        assert done.code == 0, done
        lines = [json.loads(line) for line in done.out.splitlines()]
        assert all(isinstance(line, dict) for line in lines)
        assert len(lines) == 1 or words == ["--config-show"]


def test_a_submission_prints_one_line(desk: Desk, local: FakeServer) -> None:
    done = desk.run("--exec-start", "PyTorch", "--user-cmd", "-o", "jsonl", "--", "true")
    assert done.out == '{"execId": "wmla-1", "appId": "wmla-1"}\n'
