"""The verbs `ls`, `get`, `why` and `top` as commands, and on a terminal of 80 x 24 characters."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, exec_object
from screen_desk import Screen


def jobs(server: FakeServer, count: int) -> None:
    """Give a server `count` jobs, the newest last, each with the metrics that it reported last."""
    kinds = ("RUNNING", "FINISHED", "ERROR", "KILLED", "PENDING_CRD_SCHEDULER")
    server.execs |= {f"local-{number}": exec_object(
        f"local-{number}", state=kinds[number % 5], appName=f"training of the model {number}",
        createTime=f"2023-10-27T16:{number // 60:02}:{number % 60:02}Z", startTime="2023-10-27T18:00:00Z",
        endTime="2023-10-27T18:00:08Z", message="the reason" if number % 5 == 2 else "",
        lastMetrics={"loss": {"value": number / 100, "step": 10}, "acc": {"value": number / 50, "step": 10}},
    ) for number in range(1, count + 1)}


def ids(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()[1:]]


def test_ls_prints_the_newest_first_and_takes_any_spelling_of_a_state(desk: Desk, local: FakeServer) -> None:
    jobs(local, 12)
    done = desk.run("ls")
    assert done.code == 0 and ids(done.out) == [f"local-{number}" for number in range(12, 0, -1)]
    failed = [f"local-{number}" for number in (12, 8, 7, 3, 2)]
    assert ids(desk.run("ls", "--state", "error,Killed").out) == failed
    assert ids(desk.run("ls", "--limit", "2").out) == ["local-12", "local-11"]
    assert ids(desk.run("ls", "--state", "pending").out) == ["local-9", "local-4"]
    assert json.loads(desk.run("ls", "--limit", "1", "-o", "json").out)[0]["createTime"] == "2023-10-27T16:00:12Z"
    assert desk.run("ls", "--since", "1h").out.splitlines() == ["no such jobs"]
    asked = [seen.query for seen in local.requests("GET", "/execs/")]
    assert asked[2] == {"sort_by": ["id:desc"], "limit": ["2"]}


def test_ls_sorts_by_columns_and_by_the_best_value_of_a_metric(desk: Desk, local: FakeServer) -> None:
    jobs(local, 3)
    assert ids(desk.run("ls", "--sort", "loss").out) == ["local-1", "local-2", "local-3"]
    best = desk.run("ls", "--sort", "acc")
    assert ids(best.out) == ["local-3", "local-2", "local-1"] and "acc" in best.out.splitlines()[0]
    assert ids(desk.run("ls", "--sort", "-acc").out) == ["local-1", "local-2", "local-3"]
    assert ids(desk.run("ls", "--sort", "id").out) == ["local-1", "local-2", "local-3"]


def test_ls_prints_the_columns_of_its_list_and_metrics_if_they_are_selected(desk: Desk, local: FakeServer) -> None:
    jobs(local, 2)
    local.execs["local-1"] |= {"lastMetrics": {}, "startTime": None, "endTime": None}
    done = desk.run("ls", "-o", "custom-columns=id,took,metric,at,note,user,Loss,acc,state,appName")
    assert done.err == ""
    first, second = (re.split(r"  +", line) for line in done.out.splitlines()[1:])
    assert first == ["local-2", "8s", "loss 0.02", "step 10", "the reason", "alice", "0.02", "0.04", "ERROR",
                     "training of the model 2"]
    assert second[0] == "local-1" and "n/a" in second
    assert desk.run("ls", "-o", "custom-columns=id,started").out.splitlines()[1].split()[1] == "10-27"
    assert "no row has the column beauty" in desk.run("ls", "-o", "custom-columns=id,beauty").err


def test_names_of_metrics_are_compared_without_their_case(desk: Desk, local: FakeServer) -> None:
    jobs(local, 3)
    local.execs["local-2"]["lastMetrics"] = {"Loss": {"value": 0.001, "step": 10}}
    for name in ("loss", "LOSS"):
        found = desk.run("ls", "--sort", name).out
        assert ids(found) == ["local-2", "local-1", "local-3"] and "0.001" in found.splitlines()[1]


@pytest.mark.parametrize(("words", "allowed"), [(("--state", "done"), "FINISHED"), (("--sort", "beauty"), "started"),
                                                (("--since", "soon"), "2h")])
def test_a_refusal_of_a_value_says_what_is_allowed(
    desk: Desk, local: FakeServer, words: tuple[str, str], allowed: str
) -> None:
    jobs(local, 1)
    done = desk.run("ls", *words)
    assert done.code == 2 and done.out == "" and words[1] in done.err and allowed in done.err


def test_ls_without_jobs_says_how_to_submit_one(desk: Desk, local: FakeServer) -> None:
    done = desk.run("ls")
    assert done.code == 0 and "dlicmd run train.py" in done.out


def test_ls_on_a_terminal_shows_one_screen_with_colors(desk: Desk, local: FakeServer) -> None:
    jobs(local, 206)
    shown = Screen(desk, "ls")
    assert shown.ended() == 0
    assert len(shown.lines) == 22 and shown.lines[1].startswith("local-206") and "186 more" in shown.lines[-1]
    assert "training of the" in shown.lines[1] and "loss 2.06" in shown.lines[1] and "8s" in shown.lines[1]
    assert b"\x1b[32m" in shown.written and b"\x1b[31m" in shown.written
    plain = Screen(desk, "ls", NO_COLOR="1")
    assert plain.ended() == 0 and b"\x1b[3" not in plain.written


def test_get_prints_a_page_and_data_for_programs(desk: Desk, local: FakeServer, tmp_path: Path) -> None:
    jobs(local, 2)
    local.replies["GET", f"{BASE}/execs/local-2/log"] = Reply(200, b"early\nValueError: bad\n")
    done = desk.run("get", "local-2")
    assert done.code == 0
    assert all(text in done.out for text in ("ERROR", "the reason", "ValueError: bad", "logs local-2"))
    assert json.loads(desk.run("get", "local-2", "-o", "json").out)["id"] == "local-2"
    assert json.loads(desk.run("--exec-get", "local-2").out)["id"] == "local-2", "the long option prints JSON"
    shown = Screen(desk, "get", "local-2")
    assert shown.ended() == 0 and "next: dlicmd logs local-2" in shown.text


@pytest.mark.parametrize(("number", "state", "next_one"), [(5, "RUNNING", "follow"), (1, "FINISHED", "result"),
                                                           (2, "ERROR", "logs"), (3, "KILLED", "logs")])
def test_why_reads_well_for_every_state(
    desk: Desk, local: FakeServer, number: int, state: str, next_one: str
) -> None:
    jobs(local, 5)
    found = local.execs[f"local-{number}"]
    found["state"] = state
    done = desk.run("why", f"local-{number}")
    assert done.code == 0 and done.err == ""
    assert state in done.out.splitlines()[0] and f"dlicmd {next_one} local-{number}" in done.out


def test_why_of_a_job_that_never_ran_leads_to_another_command(desk: Desk, local: FakeServer) -> None:
    jobs(local, 1)
    local.execs["local-1"] |= {"state": "ERROR", "reason": "UNSUPPORTED", "message": "no such framework"}
    done = desk.run("why", "local-1")
    assert "no such framework" in done.out
    assert "dlicmd why" not in done.out and "dlicmd get local-1" in done.out


def test_why_says_what_to_do_without_words_for_programs(desk: Desk, local: FakeServer) -> None:
    jobs(local, 5)
    local.conf["DLICMD_EXTENSIONS"] += ",why"
    why = {"id": "local-4", "state": "PENDING_CRD_SCHEDULER", "message": "waiting for 2 CPU slots", "reason": "SLOTS",
           "advice": "wait"}
    local.replies["GET", f"{BASE}/execs/local-4/why"] = Reply(200, json.dumps(why).encode())
    done = desk.run("why", "local-4")
    assert "waiting for 2 CPU slots" in done.out and "wait: the job starts without any action" in done.out
    assert "SLOTS" not in done.out
    assert json.loads(desk.run("why", "local-4", "-o", "json").out)["reason"] == "SLOTS"


def test_why_answers_before_the_first_decision_of_the_scheduler(desk: Desk, local: FakeServer) -> None:
    jobs(local, 5)
    local.conf["DLICMD_EXTENSIONS"] += ",why"
    why = {"id": "local-4", "state": "PENDING_CRD_SCHEDULER"}
    local.replies["GET", f"{BASE}/execs/local-4/why"] = Reply(200, json.dumps(why).encode())
    done = desk.run("why", "local-4")
    assert "local-4 is PENDING: the scheduler" in done.out and "dlicmd follow local-4" in done.out


def test_long_options_show_no_lists_and_objects(desk: Desk, local: FakeServer) -> None:
    jobs(local, 1)
    local.execs["local-1"]["arguments"] = ["--epochs", "2"]
    [shown] = json.loads(desk.run("ls", "-o", "json").out)
    assert {"lastMetrics", "arguments"} <= shown.keys()
    assert {"lastMetrics", "arguments"} <= json.loads(desk.run("get", "1", "-o", "json").out).keys()
    for words in (["--exec-get-all"], ["--exec-get", "local-1"]):
        found = json.loads(desk.run(*words, "-o", "json").out)
        [one] = found if isinstance(found, list) else [found]
        assert not {"lastMetrics", "arguments"} & one.keys()
        assert "lastMetrics" not in desk.run(*words).out
