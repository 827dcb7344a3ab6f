"""Following and waiting: what is seen, how it ends, and that nothing but the job's end ends it."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, Seen, exec_object
from hypothesis import given
from hypothesis import strategies as st
from support import eventually

from dlicmd.follow import added_lines


def news(state: str, *lines: tuple[str, str], cursor: str = "c", **more: Any) -> dict[str, Any]:
    """One answer of the follow call; lines are (stream, text)."""
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


def test_plain_output(desk: Desk, followed: FakeServer) -> None:
    done = desk.run("--follow", "w-1")
    assert done.code == 0, done
    assert done.out == "hello\nlast words\n"
    assert done.err.splitlines() == [
        "[PENDING_PJ  (waits for 1 more slot)]",
        "[RUNNING  2 workers  epoch 1/3  step 4/12  1m1s left  1,234 samples/s  loss 0.5000]",
        "warning: ü",
        "[FINISHED]",
        "dlicmd: w-1 FINISHED after 2m5s; fetch its result with: dlicmd --exec-trainresult w-1",
    ]
    cursors = [seen.query.get("cursor") for seen in followed.requests("GET", "/follow")]
    assert cursors == [None, ["1"], ["2/&="], ["3"]]


def test_data_on_standard_output(desk: Desk, followed: FakeServer) -> None:
    done = desk.run("--follow", "w-1", "-o", "json")
    assert done.code == 0 and json.loads(done.out)["state"] == "FINISHED"
    assert "hello" not in done.out and "hello\n" in done.err


def test_submit_and_follow(desk: Desk, followed: FakeServer) -> None:
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
def test_exit_codes(
    desk: Desk, local: FakeServer, *, found: dict[str, Any], words: list[str], code: int, said: str
) -> None:
    local.execs["w-1"] = exec_object("w-1", **found)
    local.news = [{"exec": local.execs["w-1"], "lines": [], "cursor": ""}]
    for command in ("--wait", "--follow"):
        done = desk.run(command, "w-1", *words)
        assert done.code == code and said in done.err and "\x1b" not in done.err, done
        assert done.out == ""
    assert not desk.run("--wait", "w-1").err or code


def test_waiting_has_an_end(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    local.news = [{"exec": local.execs["w-1"], "lines": [], "cursor": ""}]
    for command in ("--wait", "--follow"):
        done = desk.run(command, "w-1", "--wait-timeout", "1")
        assert done.code == 7 and "dlicmd --follow w-1" in done.err and "1 s" in done.err


@pytest.mark.parametrize("command", ["--follow", "--wait"])
def test_interrupting_detaches(desk: Desk, local: FakeServer, command: str) -> None:
    local.execs["w-1"] = exec_object("w-1")
    local.news = [news("RUNNING", ("stdout", "hello")), news("RUNNING")]
    with desk.start(command, "w-1") as process:
        eventually(lambda: len(local.seen) > 2, "it waits")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.decode().splitlines()[-1] == (
        "dlicmd: detached; w-1 goes on. Come back with: dlicmd --follow w-1, dlicmd --exec-get w-1")
    assert not local.requests("POST")


def test_interrupting_before_anything_was_submitted(desk: Desk, local: FakeServer) -> None:
    import threading

    release = threading.Event()

    def slow(_seen: Seen) -> Reply:
        release.wait(60)
        return Reply(200, b"{}")

    local.replies["GET", f"{BASE}/conf"] = slow
    with desk.start("--exec-start", "PyTorch", "--user-cmd", "--", "x") as process:
        eventually(lambda: local.seen, "it asks")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    release.set()
    assert (process.returncode, out, err) == (130, b"", b"dlicmd: interrupted\n")


def test_another_server_is_asked_again_and_again(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
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


def test_a_server_that_comes_back(desk: Desk, followed: FakeServer) -> None:
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
def test_an_answer_that_is_none(desk: Desk, local: FakeServer, answer: bytes) -> None:
    local.execs["w-1"] = exec_object("w-1")
    local.replies["GET", f"{BASE}/execs/w-1/follow"] = Reply(200, answer)
    done = desk.run("--follow", "w-1")
    assert done.code == 1 and len(done.err.splitlines()) == 1


LOG = st.lists(st.sampled_from(["a", "b", "c", "", "step 1"]), max_size=8)


@given(LOG, LOG, LOG)
def test_lines_added_anywhere_are_found(first: list[str], second: list[str], added: list[str]) -> None:
    before = "".join(f"{line}\n" for line in first + second)
    for lines in (first + second + added, first + added + second):
        after = "".join(f"{line}\n" for line in lines)
        assert sorted(added_lines(before, after)) == sorted(added)
    assert added_lines(before, before) == []


def test_the_live_view_is_inert(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    import rich.console

    from dlicmd import live

    screen = io.StringIO()
    console = rich.console.Console(file=screen, force_terminal=True, width=100, highlight=False)
    monkeypatch.setattr(live, "Console", lambda **_: console)
    view = live.LiveView("w-1")
    view.line("plain [bold]text[/bold] :smile:", "task0", "stdout")
    view.line("\x1b]52;c;ZXZpbA==\x07\x1b[2Jevil\x9b31m\rmore\x1bPq\x1b\\", "task0", "stderr")
    view.state({"state": "RUNNING", "step": 3, "steps": 4, "message": "\x1b]0;title\x07"})
    view.close()
    shown = screen.getvalue()
    assert "plain [bold]text[/bold] :smile:" in shown and "evil" in shown and "more" in shown
    for bad in ("\x1b]", "\x1b[2J", "\x9b", "\x07", "\x1bP", "52;c"):
        assert bad not in shown
