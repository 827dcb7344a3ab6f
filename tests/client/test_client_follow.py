"""Follow and wait: the output, the exit codes, and that only the end of the job ends the command."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, Seen, exec_object
from hypothesis import given
from hypothesis import strategies as st
from support import eventually

from dlicmd.cli.show.views import fitted, how_it_goes, last_words, progress_text, where_it_is
from dlicmd.sdk.follow import added_lines


def news(state: str, *lines: tuple[str, str], cursor: str = "c", **more: Any) -> dict[str, Any]:
    """Return one answer of the follow call; lines are (stream, text)."""
    return {
        "exec": exec_object("w-1", state=state, **more), "cursor": cursor,
        "lines": [{"task": "task0", "stream": stream, "text": text} for stream, text in lines],
    }


@pytest.fixture
def followed(local: FakeServer) -> FakeServer:
    local.execs["w-1"] = exec_object("w-1")
    local.news = [
        news("PENDING_CRD_SCHEDULER", cursor="1", message="waits for 1 more slot"),
        news("RUNNING", ("stdout", "hello"), ("stderr", "warning: ü"), cursor="2/&=", workers=2, epoch=1, epochs=3,
             step=4, steps=12, loss=0.5, samplesPerSecond=1234.5, secondsLeft=61, accuracy=True),
        news("FINISHED", ("stdout", "last words"), cursor="3"),
        news("FINISHED", cursor="3", startTime="2023-10-27T16:27:40Z", endTime="2023-10-27T16:29:45Z"),
    ]
    return local


def test_follow_prints_output_and_status_lines(desk: Desk, followed: FakeServer) -> None:
    done = desk.run("--follow", "w-1")
    assert done.code == 0, done
    assert done.out == "hello\nlast words\n"
    assert done.err.splitlines() == [
        "[PENDING  (waits for 1 more slot)]",
        "[RUNNING  2 workers  epoch 1/3  step 4/12  1m1s left  1234 samples/s  train loss 0.5]",
        "warning: ü",
        "[FINISHED]",
        "dlicmd: w-1 FINISHED after 2m5s; fetch its result with: dlicmd --exec-trainresult w-1",
    ]
    cursors = [seen.query.get("cursor") for seen in followed.requests("GET", "/follow")]
    assert cursors == [None, ["1"], ["2/&="], ["3"]]


def test_follow_prints_json_on_standard_output_and_logs_on_stderr(desk: Desk, followed: FakeServer) -> None:
    done = desk.run("--follow", "w-1", "-o", "json")
    assert done.code == 0 and json.loads(done.out)["state"] == "FINISHED"
    assert "hello" not in done.out and "hello\n" in done.err


def test_a_submission_can_be_followed(desk: Desk, followed: FakeServer) -> None:
    story = [news("FINISHED", ("stdout", "out"), cursor="1"), news("FINISHED", cursor="1")]
    followed.news = list(story)
    done = desk.run("--exec-start", "PyTorch", "--user-cmd", "--follow", "--", "x")
    assert done.code == 0
    assert done.out.splitlines()[-5:] == ["{", '  "execId": "wmla-2",', '  "appId": "wmla-2"', "}", "out"]
    followed.news = list(story)
    done = desk.run("--exec-start", "PyTorch", "--user-cmd", "--follow", "-o", "json", "--", "x")
    assert json.loads(done.out)["state"] == "FINISHED" and "submitted wmla-3" in done.err and "out\n" in done.err


@pytest.mark.parametrize(
    ("found", "words", "code", "said"),
    [
        ({"state": "FINISHED"}, [], 0, ""),
        ({"state": "KILLED"}, [], 4, "KILLED"),
        ({"state": "ERROR", "message": "ValueError: \x1b[31mno", "exitCode": 42}, [], 3, "ValueError: no"),
        ({"state": "ERROR", "exitCode": 42}, ["--pass-exit-code"], 42, "ERROR"),
        ({"state": "ERROR", "exitCode": 0}, ["--pass-exit-code"], 3, "ERROR"),
        ({"state": "ERROR"}, ["--pass-exit-code"], 3, "ERROR"),
        ({"state": "FINISHED", "exitCode": 0}, ["--pass-exit-code"], 0, ""),
        ({"state": "ERROR", "reason": "NEVER_SCHEDULABLE", "message": "3 slots, there are 2"}, [], 10, "there are 2"),
        ({"state": "PENDING_CRD_SCHEDULER", "reason": "NEVER_SCHEDULABLE"}, [], 10, ""),
    ],
)
def test_wait_and_follow_return_the_exit_code_of_the_outcome(
    desk: Desk, local: FakeServer, *, found: dict[str, Any], words: list[str], code: int, said: str
) -> None:
    local.execs["w-1"] = exec_object("w-1", **found)
    local.news = [{"exec": local.execs["w-1"], "lines": [], "cursor": ""}]
    for command in ("--wait", "--follow"):
        done = desk.run(command, "w-1", *words)
        assert done.code == code and said in done.err and "\x1b" not in done.err, done
        assert done.out == ""
    assert not desk.run("--wait", "w-1").err or code


def test_wait_and_follow_end_after_the_wait_timeout(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    local.news = [{"exec": local.execs["w-1"], "lines": [], "cursor": ""}]
    for command in ("--wait", "--follow"):
        done = desk.run(command, "w-1", "--wait-timeout", "1")
        assert done.code == 7 and "dlicmd --follow w-1" in done.err and "1 s" in done.err


@pytest.mark.parametrize("command", ["--follow", "--wait"])
def test_an_interrupt_detaches_from_the_job(desk: Desk, local: FakeServer, command: str) -> None:
    local.execs["w-1"] = exec_object("w-1")
    local.news = [news("RUNNING", ("stdout", "hello")), news("RUNNING")]
    with desk.start(command, "w-1") as process:
        eventually(lambda: len(local.seen) > 2, "dlicmd asks for the job several times")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    last = err.decode().splitlines()[-1]
    assert "dlicmd --follow w-1" in last and "dlicmd --exec-get w-1" in last
    assert not local.requests("POST")


def test_an_interrupt_before_the_submission_submits_nothing(desk: Desk, local: FakeServer) -> None:
    import threading

    release = threading.Event()

    def slow(_seen: Seen) -> Reply:
        release.wait(60)
        return Reply(200, b"{}")

    local.replies["GET", f"{BASE}/conf"] = slow
    with desk.start("--exec-start", "PyTorch", "--user-cmd", "--", "x") as process:
        eventually(lambda: local.seen, "dlicmd sends a request")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    release.set()
    assert (process.returncode, out, err) == (130, b"", b"dlicmd: interrupted\n")


def test_follow_polls_a_server_without_the_follow_extension(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    fake.execs["w-1"] = exec_object("w-1")
    steps = iter([("PENDING_CRD_SCHEDULER", ""), ("RUNNING", "one\ntw"), ("RUNNING", "one\ntwo\n"),
                  ("FINISHED", "one\ntwo\nthree")])

    def advance(_seen: Seen) -> Reply:
        fake.execs["w-1"]["state"], fake.logs["w-1"] = next(steps)
        return Reply(200, json.dumps(fake.execs["w-1"]).encode())

    fake.replies["GET", f"{BASE}/execs/w-1"] = advance
    done = desk.run("--follow", "w-1", *remote)
    assert done.code == 0 and done.out == "one\ntwo\nthree\n"
    assert not fake.requests("GET", "/follow")


def test_follow_continues_after_a_server_returns(desk: Desk, followed: FakeServer) -> None:
    answers = iter([Reply(503, b"starting"), None, ConnectionResetError()])

    def shaky(_seen: Seen) -> Reply:
        answer = next(answers, None)
        if isinstance(answer, Exception):
            raise answer
        return answer or Reply(200, json.dumps(
            followed.news.pop(0) if len(followed.news) > 1 else followed.news[0]).encode())

    followed.replies["GET", f"{BASE}/execs/w-1/follow"] = shaky
    done = desk.run("--follow", "w-1")
    assert done.code == 0 and done.out == "hello\nlast words\n" and "trying again" in done.err


@pytest.mark.parametrize("answer", [b"{}", b"[]", b'{"exec": 1, "lines": []}', b'{"exec": {}, "lines": 3}'])
def test_an_invalid_follow_answer_is_reported(desk: Desk, local: FakeServer, answer: bytes) -> None:
    local.execs["w-1"] = exec_object("w-1")
    local.replies["GET", f"{BASE}/execs/w-1/follow"] = Reply(200, answer)
    done = desk.run("--follow", "w-1")
    assert done.code == 1 and len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"state": "FINISHED", "hasResult": False}, "w-1 FINISHED"),
        ({"state": "FINISHED", "hasResult": True},
         "w-1 FINISHED; fetch its result with: dlicmd --exec-trainresult w-1"),
        ({"state": "ERROR", "exitCode": 17}, "w-1 ERROR: exit code 17 (dlicmd --exec-trainlogs w-1)"),
        ({"state": "ERROR", "exitCode": 17, "message": "170 files"},
         "w-1 ERROR: exit code 17; 170 files (dlicmd --exec-trainlogs w-1)"),
        ({"state": "ERROR", "exitCode": 17, "message": "ended with 17."},
         "w-1 ERROR: ended with 17. (dlicmd --exec-trainlogs w-1)"),
        ({"state": "ERROR", "reason": "PROGRAM_FAILED", "message": "KeyError: 'RANK'"},
         "w-1 ERROR: KeyError: 'RANK' (dlicmd --exec-trainlogs w-1); next: dlicmd run train.py --as ddp --workers 2, "
         "or dlicmd run -- torchrun --standalone --nproc-per-node=2 train.py"),
        ({"state": "ERROR", "exitCode": 1, "message": "no"}, "w-1 ERROR: no (dlicmd --exec-trainlogs w-1)"),
        ({"state": "ERROR", "reason": "NEVER_SCHEDULABLE", "message": "too big"}, "w-1 ERROR: too big"),
        ({"state": "ERROR", "reason": "PENDING_TIMEOUT", "message": "waited"}, "w-1 ERROR: waited"),
        ({"state": "KILLED"}, "w-1 KILLED"),
    ],
)
def test_the_final_message_states_the_outcome_and_the_next_command(found: dict[str, Any], expected: str) -> None:
    assert last_words({"id": "w-1"} | found, "w-1") == expected


def test_hints_contain_the_server_options(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    where = f"--rest-host 127.0.0.1 --rest-port {fake.port} --http"
    fake.execs["w-1"] = exec_object("w-1", state="FINISHED")
    said = desk.run("--follow", "w-1", *remote).err
    assert said.endswith(f"dlicmd --exec-trainresult w-1 {where}\n")
    fake.execs["w-1"]["state"] = "RUNNING"
    assert desk.run("--wait", "w-1", "--wait-timeout", "1", *remote).err.endswith(f"dlicmd --follow w-1 {where}\n")
    assert f"dlicmd --exec-get-all {where}" in desk.run("--exec-get", "x", *remote).err
    assert desk.run("--exec-get", "x", *remote[:-2]).err.endswith(f"dlicmd --logon {where}\n")
    denied = desk.run("--exec-get", "x", *remote[:-1], "wrong")
    assert denied.err.endswith(f"dlicmd --logon {where}\n") and "wrong" not in denied.err


RUNNING = {"state": "RUNNING", "workers": 2, "epoch": 3, "epochs": 10, "step": 40, "steps": 120, "secondsLeft": 12,
           "samplesPerSecond": 812.4, "loss": 0.031, "accuracy": 0.98}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (RUNNING, "RUNNING  2 workers  epoch 3/10  step 40/120  12s left  812.4 samples/s  train loss 0.031"
                  "  train accuracy 0.98"),
        ({"state": "RUNNING", "workers": 0}, "RUNNING  starting"),
        ({"state": "RUNNING", "workers": 0, "step": 5, "steps": 9}, "RUNNING  step 5/9"),
        ({"state": "RUNNING", "workers": 1, "step": 9, "steps": 9, "secondsLeft": 0}, "RUNNING  finishing  step 9/9"),
        ({"state": "FINISHED", "step": 9, "steps": 9, "loss": 1}, "FINISHED  step 9/9  train loss 1"),
        ({"state": "RUNNING"}, "RUNNING"),
        ({"state": "RUNNING", "workers": 3, "step": 5, "loss": 1, "resizes": 1, "deaths": 2},
         "RUNNING  3 workers  step 5  train loss 1  1 resize  2 deaths survived"),
        ({"state": "RUNNING", "workers": 0, "step": 812, "resizes": 0, "message": "parked: waits for a slot"},
         "RUNNING  step 812  (parked: waits for a slot)"),
        ({"state": "RECOVERING", "step": 812, "message": "reads its snapshot"},
         "RECOVERING  step 812  (reads its snapshot)"),
        ({"state": ""}, "SUBMITTED"),
        ({"state": "RUNNING", "lastMetrics": {"loss": {"value": 0.04651, "step": 230}, "val/acc": {"value": 0.9,
          "step": 230}}}, "RUNNING  step 230  loss 0.04651  val/acc 0.9"),
        ({"state": "RUNNING", "step": 7, "loss": 3, "samplesPerSecond": 12, "lastMetrics": {
            "loss": {"value": 0.5, "step": 6}, "f1": {"value": 1, "step": 2}, "bad": {"value": "x"}, "worse": 3}},
         "RUNNING  step 7  12 samples/s  loss 0.5  f1 1"),
        ({"state": "RUNNING", "lastMetrics": {"loss": {"value": 0.5, "step": 3, "stepUnit": "epoch"}}},
         "RUNNING  epoch 3  loss 0.5"),
        ({"state": "RUNNING", "lastMetrics": {"loss": {"value": 0.5, "step": 3, "stepUnit": "epoch", "steps": 9}}},
         "RUNNING  epoch 3/9  loss 0.5"),
        ({"state": "RUNNING", "lastMetrics": {"loss": {"value": 0.5, "step": 17, "stepUnit": "line"}}},
         "RUNNING  loss 0.5"),
        ({"state": "RUNNING", "lastMetrics": {"loss": {"value": 0.5, "step": 17, "stepUnit": "line", "left": 2}}},
         "RUNNING  loss 0.5, then 2 not finite"),
    ],
)
def test_the_status_line_shows_the_progress(found: dict[str, Any], expected: str) -> None:
    assert progress_text(found) == expected


def test_a_narrow_terminal_omits_the_less_important_parts() -> None:
    for width, expected in ((60, "RUNNING  2 workers  epoch 3/10  step 40/120  12s left"),
                            (50, "RUNNING  2 workers  step 40/120  12s left"), (1, "RUNNING  step 40/120  12s left")):
        assert fitted(where_it_is(RUNNING), width) == expected
    assert fitted(how_it_goes(RUNNING), 40) == "812.4 samples/s  train loss 0.031"
    assert fitted(how_it_goes(RUNNING), 20) == "train loss 0.031"
    assert fitted([], 1) == ""


LOG = st.lists(st.sampled_from(["a", "b", "c", "", "step 1"]), max_size=8)


@given(LOG, LOG, LOG)
def test_added_log_lines_are_found_anywhere(first: list[str], second: list[str], added: list[str]) -> None:
    before = "".join(f"{line}\n" for line in first + second)
    for lines in (first + second + added, first + added + second):
        after = "".join(f"{line}\n" for line in lines)
        assert sorted(added_lines(before, after)) == sorted(added)
    assert added_lines(before, before) == []


def test_the_live_view_writes_no_foreign_control_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    import rich.console

    from dlicmd.cli.show import live

    screen = io.StringIO()
    console = rich.console.Console(file=screen, force_terminal=True, width=100, highlight=False)
    monkeypatch.setattr(live, "Console", lambda **_: console)
    view = live.LiveView("w-1")
    view.line("plain [bold]text[/bold] :smile:", "task0", "stdout")
    view.line("\x1b]52;c;ZXZpbA==\x07\x1b[2Jevil\x9b31m\rmore\x1bPq\x1b\\", "task0", "stderr")
    view.state({"state": "RUNNING", "step": 3, "steps": 4, "message": "\x1b]0;title\x07"})
    view.state({"state": "FINISHED", "step": 4, "steps": 4, "loss": 0.5})
    view.close()
    view.close()
    shown = screen.getvalue()
    assert shown.count("[FINISHED  step 4/4  train loss 0.5]") == 1 and " elapsed" in shown
    assert "plain [bold]text[/bold] :smile:" in shown and "evil" in shown and "more" in shown
    for bad in ("\x1b]", "\x1b[2J", "\x9b", "\x07", "\x1bP", "52;c"):
        assert bad not in shown


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_live_view_shows_the_whole_pending_message(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    import io

    import rich.console

    from dlicmd.cli.show import live

    console = rich.console.Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False)
    monkeypatch.setattr(live, "Console", lambda **_: console)
    view = live.LiveView("local-12")
    message = "fetching s3://a-long-name/of/a.tar: https://s3.example.com does not answer: it refuses connections"
    view.state({"state": "PENDING_CRD_SCHEDULER", "message": f"{message}\n"})
    view.close()
    with console.capture() as captured:
        console.print(view._picture())
    first, *below, last = captured.get().splitlines()
    assert "PENDING" in first and "Ctrl-C" in last and (below == []) == (width == 200)
    shown = " ".join("".join(re.sub(r"\x1b\[[0-9;]*m", "", line) for line in (first, *below)).split())
    assert message.replace(" ", "") in shown.replace(" ", "")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_live_view_fits_the_terminal_width(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    import io

    import rich.console

    from dlicmd.cli.show import live

    console = rich.console.Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False)
    monkeypatch.setattr(live, "Console", lambda **_: console)
    view = live.LiveView("local-12")
    view.state(RUNNING)
    view.close()
    with console.capture() as captured:
        console.print(view._picture())
    first, second = captured.get().splitlines()
    assert "step 40/120" in first and (width < 60 or "12s left" in first)
    assert ("elapsed" in first) == (width > 70) and ("\u2501" in first) == (width > 100)
    assert ("train loss 0.031" in second) == (width >= 40) and "Ctrl-C" in second


def test_a_wait_timeout_prints_the_exec_as_json(desk: Desk, local: FakeServer) -> None:
    done = desk.run(
        "--exec-start", "PyTorch", "--user-cmd", "--wait", "--wait-timeout", "1", "-o", "json", "--", "sleep", "9")
    assert done.code == 7 and json.loads(done.out) == local.execs["wmla-1"], done
    done = desk.run("--wait", "nothing", "-o", "json")
    assert (done.code, done.out) == (6, "")


def test_wait_timeout_without_wait_is_reported(desk: Desk, local: FakeServer) -> None:
    done = desk.run("--exec-start", "PyTorch", "--user-cmd", "--wait-timeout", "1", "--", "true")
    assert done.code == 0 and "--wait-timeout" in done.err
