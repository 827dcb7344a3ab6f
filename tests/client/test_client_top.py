"""`--top` shows slots, running jobs and the queue; `--rp-usage` shows slot-hours."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
from typing import Any

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply
from hypothesis import given
from hypothesis import strategies as st
from screen_desk import DLICMD, Screen

from dlicmd.cli.show.top import headline, sections
from dlicmd.cli.show.top_live import Top
from dlicmd.sdk.messages import one_line

SLOTS = f"{BASE}/scheduler/slots"
HOLDINGS = f"{BASE}/scheduler/holdings"
ANN = {"id": "local-1", "user": "ann", "consumer": "/local/training", "share": 1.0}
VIEW: dict[str, Any] = {
    "slots": [
        {"id": "gpu-0", "kind": "gpu", "profile": "", "state": "used", "utilisation": 0.93, "holders": [ANN]},
        {"id": "gpu-1", "kind": "gpu", "profile": "1g.10gb", "state": "drained", "reason": "too \x1b[5mhot",
         "utilisation": 0.07},
        {"id": "gpu-2", "kind": "gpu", "state": "used", "utilisation": 0.5, "holders": [
            ANN | {"share": 0.5}, {"id": "local-2", "user": "bob", "consumer": "/local/x", "share": 0.25}]},
        *({"id": f"cpu-{n}", "kind": "cpu", "state": "free", "holders": []} for n in range(4)),
    ],
    "queue": [{"id": "local-7", "user": "bob", "consumer": "/local/training", "priority": 5000, "slots": 2,
               "queuePosition": 1, "reason": "SLOTS", "message": "lacks 2 slots",
               "expectedStart": "2023-10-27T16:27:29Z"},
              {"id": "local-8", "reason": "SLOTS"}],
    "running": [{"id": "local-1", "user": "ann", "appName": "digits", "slots": 2, "workers": 2, "epoch": 3,
                 "epochs": 10, "step": 40, "steps": 120, "loss": "0.1234", "secondsLeft": 61}],
}


def value(found: Any) -> Reply:
    """Return a JSON answer."""
    return Reply(200, json.dumps(found).encode())


@pytest.fixture
def busy(local: FakeServer) -> FakeServer:
    local.conf["DLICMD_EXTENSIONS"] += ",slot-view,holdings"
    local.replies["GET", SLOTS] = value(VIEW)
    return local


def rows(text: str) -> list[list[str]]:
    """Return the cells of each line of a table."""
    return [re.split(r"  +", line) for line in text.splitlines()]


def test_top_prints_once_outside_a_terminal(desk: Desk, busy: FakeServer) -> None:
    done = desk.run("--top")
    assert done.code == 0 and done.err == "" and "\x1b" not in done.out
    first, slots, running, queue = done.out.rstrip("\n").split("\n\n")
    assert first == "7 slots: 4 free, 2 used, 1 drained; 50% busy; 1 running, 2 pending"
    assert rows(slots) == [
        ["slot", "kind", "state", "busy", "user", "job", "consumer"],
        ["gpu-0", "gpu", "used", "93%", "ann", "local-1", "/local/training"],
        ["gpu-1", "gpu 1g.10gb", "drained: too hot", "7%"],
        ["gpu-2", "gpu", "used", "50%", "ann, bob", "local-1 (50%), local-2 (25%)", "/local/training, /local/x"],
        ["cpu-0 .. cpu-3", "cpu", "free"],
    ]
    assert rows(running)[1] == ["local-1", "ann", "digits", "2", "step 40/120", "train loss 0.1234", "epoch 3/10",
                                "1m1s left"]
    assert rows(queue)[1] == ["local-7", "1", "bob", "/local/training", "5000", "2", "10-27 16:27", "lacks 2 slots"]
    assert rows(queue)[2] == ["local-8", "SLOTS"]
    assert len(busy.requests("GET", "/slots")) == 1


def test_top_prints_json_and_columns(desk: Desk, busy: FakeServer) -> None:
    assert json.loads(desk.run("--top", "-o", "json").out) == VIEW
    chosen = desk.run("--top", "-o", "custom-columns=id,state,nothing")
    assert rows(chosen.out)[1] == ["gpu-0", "used", "n/a"] and "nothing" in chosen.err
    assert desk.run("--top", "-o", "table").out == desk.run("--top").out


@pytest.mark.parametrize(("command", "said"), [("--top", "does not report its slots"),
                                              ("--rp-usage", "does not record")])
def test_a_server_without_the_extension_is_reported(desk: Desk, local: FakeServer, command: str, said: str) -> None:
    done = desk.run(command)
    assert done.code == 1 and done.out == "" and said in done.err and len(done.err.splitlines()) == 1
    assert [seen.path for seen in local.seen] == [f"{BASE}/conf"]


@pytest.mark.parametrize("found", [{}, {"slots": None, "queue": 3, "running": [None, 4]}, {"slots": [{}, None]},
                                   {"running": [{"step": 1e308, "secondsLeft": float("inf"), "state": 5}]},
                                   {"slots": [{"utilisation": 7, "holders": [{"share": "x"}, 1], "state": ["used"]}]}])
def test_answers_without_fields_are_printed(desk: Desk, busy: FakeServer, found: dict[str, Any]) -> None:
    busy.replies["GET", SLOTS] = value(found)
    done = desk.run("--top")
    assert done.code == 0 and done.err == "" and re.match(r"\d slots?", done.out), done


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8), lambda inner:
    st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "share", "user"]), inner), max_leaves=6)
ITEMS = st.lists(st.dictionaries(st.sampled_from(sorted({key for name in VIEW for item in VIEW[name] for key in item})),
                                 JSON_VALUES), max_size=4)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(VIEW, ITEMS)))
def test_any_json_from_a_server_makes_a_view(view: dict[str, Any]) -> None:
    assert headline(view) == one_line(headline(view)), "the headline must be 1 line without control characters"
    for section in sections(view):
        assert all(isinstance(row[name], str) for row in section.rows for name in section.columns)


MANY = VIEW | {"running": [
    {"id": f"local-{number}", "user": "ann", "appName": f"job number {number} with a long name", "slots": 1,
     "workers": 1, "step": number, "steps": 120, "loss": 0.1234} for number in range(1, 61)]}
RESTORED = b"\x1b[?25h\x1b[?1049l"


def test_top_on_a_terminal_shows_one_line_per_job_and_scrolls(desk: Desk, busy: FakeServer) -> None:
    busy.replies["GET", SLOTS] = value(MANY)
    shown = Screen(desk, "--top")
    shown.until("lines 1-")
    assert len(shown.lines) == 24 and shown.lines[0].startswith("7 slots: ") and "q quit" in shown.lines[-1]
    (line,) = (line for line in shown.lines if "local-3 " in line)
    assert "job number 3" in line and "step 3/120" in line
    shown.press("\x1b[6~")
    shown.until("local-20 ")
    shown.press("\x1b[B\x1b[B\x1b[A")
    shown.until("lines 24-")
    shown.press("\x1b[F")
    shown.until("local-8")
    assert "local-7" in shown.text, "the queue is below the running jobs"
    shown.press("\x1b[H")
    shown.until("gpu-0")
    shown.press("q")
    assert shown.ended() == 0 and shown.written.endswith(RESTORED) and b"\x1b[5m" not in shown.written


def test_at_80_columns_the_numbers_of_jobs_and_the_reasons_to_wait_are_in_view() -> None:
    name = "a name of thirty characters..."
    job = {"id": "local-12", "user": "somebody", "appName": name, "slots": 1, "workers": 1, "state": "RUNNING"}
    waits = {"id": "local-13", "user": "somebody", "appName": name, "slots": 1, "priority": 5000, "queuePosition": 1,
             "consumer": "/local/training/of/a/team", "expectedStart": "2023-10-27T16:27:29Z",
             "message": "waiting for 1 CPU slot: 2 of 2 are used"}
    running = [job | {"step": 1200, "steps": 36000, "epoch": 3, "epochs": 90, "secondsLeft": 61, "lastMetrics": {
        "loss": {"value": 0.1234, "step": 1200}}}, job | {"workers": 2}, job | {"state": "RECOVERING"}]
    found = Top(VIEW | {"running": running, "queue": [waits]}).lines(80, 40)
    assert max(map(len, found)) <= 80
    many, grown, recovering = (line for line in found if line.startswith("local-12"))
    assert "step 1200/36000  loss 0.1234" in many and "RUNNING" not in many and "worker" not in many
    assert "2 workers" in grown and "RECOVERING" in recovering
    (reason,) = (line for line in found if line.startswith("local-13"))
    assert "waiting for 1 CPU slot: 2 of 2" in reason
    alone = Top(VIEW | {"queue": [waits]}).lines(160, 40)
    assert not any("of/a/team" in line for line in alone), "1 consumer tells no job from another"
    found = Top(VIEW | {"queue": [waits, waits | {"consumer": "/local/other"}]}).lines(160, 40)
    assert {"/local/training/of/a/team", "/local/other"} <= {line.split()[-1] for line in found if line}


def test_top_filters_by_typed_text(desk: Desk, busy: FakeServer) -> None:
    busy.replies["GET", SLOTS] = value(MANY)
    shown = Screen(desk, "--top")
    shown.until("q quit")
    shown.press("/number 42x\x7f\r")
    shown.until(lambda: "local-42" in shown.text and "local-1 " not in shown.text and "q quit" in shown.text)
    assert "filter: number 42" in shown.lines[-1] and "gpu-0" not in shown.text
    shown.press("/nowhere\r")
    shown.until("nothing contains 'nowhere'")
    shown.press("\x1b")
    shown.until("gpu-0")
    shown.press("q")
    assert shown.ended() == 0


def test_top_follows_the_size_of_the_terminal_and_survives_a_failing_server(desk: Desk, busy: FakeServer) -> None:
    answers = iter([value(MANY), Reply(503, b"restarting")])
    busy.replies["GET", SLOTS] = lambda _: next(answers, value(VIEW | {"slots": VIEW["slots"][:1]}))
    shown = Screen(desk, "--top")
    shown.until("7 slots")
    shown.resize(60, 10)
    shown.until(lambda: "q quit" in shown.lines[-1] and len(shown.lines) == 10)
    shown.until("trying again")
    shown.until("1 slot:")
    shown.press("\x03")
    assert shown.ended() == 0 and shown.written.endswith(RESTORED)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_restores_the_terminal(desk: Desk, busy: FakeServer, number: signal.Signals) -> None:
    shown = Screen(desk, "--top")
    shown.until("q quit")
    shown.process.kill(number)
    assert shown.ended() == 128 + number and shown.written.endswith(RESTORED)


def test_an_error_restores_the_terminal_and_is_reported(desk: Desk, busy: FakeServer) -> None:
    answers = iter([value(VIEW)])
    busy.replies["GET", SLOTS] = lambda _: next(answers, Reply(401, b"Error 401: no"))
    shown = Screen(desk, "--top")
    assert shown.ended() == 9
    assert RESTORED in shown.written and b"Log on again" in shown.written.partition(RESTORED)[2]


def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(desk: Desk, busy: FakeServer) -> None:
    shown = Screen(desk, program=("bash", "--norc", "--noprofile", "-i"), PS1="ready>")
    shown.until("ready>")
    shown.press(f"{shlex.join(DLICMD)} --top\r")
    shown.until("q quit")
    before = len(shown.written)
    shown.press("\x1a")
    shown.until(lambda: b"ready>" in shown.written[before:])
    assert RESTORED in shown.written[before:].partition(b"Stopped")[0]
    before = len(shown.written)
    shown.press("fg\r")
    shown.until(lambda: b"q quit" in shown.written[before:])
    assert b"\x1b[?1049h" in shown.written[before:]
    shown.press("q")
    shown.until(lambda: shown.written.endswith(b"ready>"))
    shown.press("exit\r")
    assert shown.ended() == 0


def test_top_without_keys_ends_with_ctrl_c(desk: Desk, busy: FakeServer) -> None:
    desk.environment |= {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    ours, theirs = pty.openpty()
    with desk.start("--top", stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while b"7 slots" not in shown:
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        while chunk := _read(ours):
            shown += chunk
        assert process.wait() == 0, "Ctrl-C must end --top with exit code 0"
    os.close(ours)
    assert shown.endswith(RESTORED) and "█" in shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the last program has closed the terminal
        return b""


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(VIEW, ITEMS)), st.integers(40, 200), st.integers(3, 60),
       st.lists(st.sampled_from([*"qj /x", "down", "page down", "page up", "end", "home", "escape", "enter"])))
def test_any_keys_leave_a_picture_that_fits(view: dict[str, Any], width: int, height: int, keys: list[str]) -> None:
    top = Top(view)
    for key in [*keys, "j"]:
        top.press(key)
        found = top.lines(width, height)
        assert len(found) <= height and all("\n" not in line and "\x1b" not in line for line in found)


USAGE = {"from": "2023-10-01T00:00:00Z", "to": "2023-10-02T00:00:00Z", "by": "consumer", "slotSeconds": 7200, "rows": [
    {"key": "/local/training", "slotSeconds": 5400.0, "share": 0.75},
    {"key": "/local/\x1b[1mx", "slotSeconds": "1800", "share": 0.25}, {}, None]}


def test_rp_usage_prints_slot_hours(desk: Desk, busy: FakeServer) -> None:
    busy.replies["GET", HOLDINGS] = value(USAGE)
    done = desk.run("--rp-usage")
    assert done.code == 0 and done.err == ""
    assert done.out.splitlines()[0] == "From 2023-10-01T00:00:00Z To 2023-10-02T00:00:00Z: 2.00 slot-hours"
    assert rows(done.out)[1:] == [["consumer", "slot-hours", "share"], ["/local/training", "1.50", "75.0%"],
                                  ["/local/x", "0.50", "25.0%"], ["n/a", "n/a", "n/a"]]
    assert busy.seen[-1].target == HOLDINGS
    assert json.loads(desk.run("--rp-usage", "-o", "json").out) == USAGE
    assert desk.run("--rp-usage", "-o", "custom-columns=key").out.splitlines() == [
        "key", "/local/training", "/local/x", "n/a"]


def test_rp_usage_sends_the_query_to_the_server(desk: Desk, busy: FakeServer) -> None:
    holding = {"execId": "local-1", "user": "ann", "consumer": "/local/training", "slot": "gpu-0", "kind": "gpu",
               "share": 1.0, "from": "2023-10-01T00:00:00Z"}
    busy.replies["GET", HOLDINGS] = value({"by": "holding", "rows": [holding]})
    done = desk.run("--rp-usage", "--query-args", "from=2023-10-01T00:00:00+02:00&to=1696200000&by=holding#x")
    assert busy.seen[-1].target == f"{HOLDINGS}?from=2023-10-01T00:00:00+02:00&to=1696200000&by=holding%23x"
    assert rows(done.out)[1:] == [
        ["execId", "user", "consumer", "slot", "kind", "share", "from", "to"],
        ["local-1", "ann", "/local/training", "gpu-0", "gpu", "1.0", "2023-10-01T00:00:00Z", "n/a"]]
    busy.replies["GET", HOLDINGS] = Reply(400, b"Error 400: by: there is no such sum\n")
    refused = desk.run("--rp-usage", "--query-args", "by=moon")
    assert refused.code == 2 and "there is no such sum" in refused.err
