"""Slots of running execs over HTTP, and the executors of an exec."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError

import pytest
from live_server import Answer, Live

from dlicmd.contract import states
from local_backend.runtime.paths import worker_task
from local_backend.runtime.resizing import Resized, ResizeError
from local_backend.services.executors import MOST_LISTED

ELASTIC = "--exec-start edtPyTorch --numWorker 4 --model-main main.py"


def put(live: Live, exec_id: str, body: bytes, token: str | None = "t0ken-of-this-test") -> Answer:
    return live.call("PUT", f"/execs/{exec_id}/slots", body, {"Content-Type": "application/json"}, token=token)


def test_a_resize_is_passed_on_and_answered(live: Live) -> None:
    exec_id = live.submitted(ELASTIC)
    live.supervisor.resized = Resized(2, 4)
    answer = put(live, exec_id, b'{"slots": 4}')
    assert answer.status == 200 and answer.json() == {"id": exec_id, "before": 2, "slots": 4}
    assert live.supervisor.asked == [(exec_id, 4)]


def test_null_leaves_the_slots_to_the_scheduler(live: Live) -> None:
    exec_id = live.submitted(ELASTIC)
    live.supervisor.resized = Resized(3, 3)
    assert put(live, exec_id, b'{"slots": null}').status == 200
    assert live.supervisor.asked == [(exec_id, None)]


@pytest.mark.parametrize(
    ("problem", "error", "named"),
    [
        (ResizeError("the reason"), (409, "exec.not_resizable"), "the reason"),
        (TimeoutError(), (503, "exec.resize_timeout"), "local-1"),
        (CancelledError(), (503, "exec.resize_timeout"), "local-1"),
    ],
)
def test_a_failed_resize_is_answered_with_its_reason(
    live: Live, problem: Exception, error: tuple[int, str], named: str
) -> None:
    exec_id = live.submitted(ELASTIC)
    live.supervisor.resized = problem
    answer = put(live, exec_id, b'{"slots": 9}')
    assert answer.error == error and named in answer.text


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b'{"slots": -1}', b'{"slots": "2"}', b'{"slots": true}',
                                  b'{"slots": 1.5}', b'{"Slots": 2}', b"\xff"])
def test_an_invalid_body_is_refused(live: Live, body: bytes) -> None:
    exec_id = live.submitted(ELASTIC)
    answer = put(live, exec_id, body)
    assert answer.status == 400 and answer.error[1] in {"body.json", "exec.slots"}, answer
    assert live.supervisor.asked == []


def test_only_an_administrator_resizes_an_exec(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    bob = live.add_user("bob")
    exec_id = live.submitted(ELASTIC, token=bob)
    assert put(live, "local-99", b'{"slots": 1}').error == (400, "exec.not_found")
    assert put(live, exec_id, b'{"slots": 1}', token=None).error == (401, "auth.required")
    refused = put(live, exec_id, b'{"slots": 1}', token=bob)
    assert refused.error == (403, "auth.admin_only") and "bob" in refused.text
    assert put(live, exec_id, b'{"slots": 1}', token=live.add_user("carol")).error == (400, "exec.not_found")
    assert live.supervisor.asked == []


def test_an_exec_shows_its_slots_and_the_progress_of_its_program(live: Live) -> None:
    exec_id = live.submitted(ELASTIC)
    said = {"generation": 7, "resizes": 2, "deaths": 1, "workers": 0, "message": "parked\x1b[2J at\nstep 812"}
    live.say(exec_id, said)

    def shown() -> dict[str, object]:
        return dict(live.call("GET", f"/execs/{exec_id}").json())

    assert "slots" not in shown() and "message" not in shown()
    live.run_on(exec_id, "cpu-0", "cpu-3")
    expected = {"slots": 2, "generation": 7, "resizes": 2, "deaths": 1, "message": "parked [2J at step 812"}
    assert expected.items() <= shown().items()
    live.move(exec_id, states.RECOVERING)
    assert (shown()["state"], shown()["recovering"], shown()["slots"]) == ("RUNNING", True, 2)
    listed = live.call("GET", "/scheduler/engine/applications?state=RUNNING").json()
    assert [item["used_cpu"] for item in listed] == [2]
    live.move(exec_id, states.FINISHED)
    assert not {"slots", "message", "workers", "recovering"} & set(shown())
    assert (shown()["resizes"], shown()["deaths"]) == (2, 1)


@pytest.mark.parametrize("message", [3, None, "", "  ", ["x"], {"a": 1}])
def test_an_empty_or_invalid_message_is_not_shown(live: Live, message: object) -> None:
    exec_id = live.submitted(ELASTIC)
    live.say(exec_id, {"message": message})
    live.move(exec_id, states.PENDING, states.RUNNING)
    assert "message" not in live.call("GET", f"/execs/{exec_id}").json()


def test_executors_are_those_that_have_written_output(live: Live) -> None:
    exec_id = live.submitted(ELASTIC)
    paths = live.paths(exec_id)

    def listed() -> list[str]:
        (found,) = live.call("GET", f"/scheduler/applications?applicationid={exec_id}").json()
        return [executor["name"] for executor in found["task12n"]]

    assert listed() == []
    paths.captures.mkdir(exist_ok=True)
    for number in (11, 2, 3):
        for stream in ("stdout", "stderr"):
            paths.capture(worker_task(number), stream, True).write_text(f"{stream} {number}\n")
    paths.capture("task0", "stdout", True).touch()
    (paths.captures / "notes.txt").touch()
    assert listed() == ["task12n-2", "task12n-3", "task12n-11"]
    (application,) = live.call("GET", f"/scheduler/engine/applications/{exec_id}").json()
    assert len(application["task12n"]) == 3
    log = f"/scheduler/applications/{exec_id}/executor"
    assert live.call("GET", f"{log}/11/logs/stdout").text == "stdout 11\n"
    absent = live.call("GET", f"{log}/4/logs/stdout")
    assert absent.error == (400, "exec.no_executor") and exec_id in absent.text and "4" in absent.text
    assert live.call("GET", f"/execs/{exec_id}/log?logType=errlog").text == "stderr 2\nstderr 3\nstderr 11\n"


def test_only_the_newest_of_thousands_of_executors_are_listed(live: Live) -> None:
    exec_id = live.submitted(ELASTIC)
    paths = live.paths(exec_id)
    paths.captures.mkdir(exist_ok=True)
    for number in range(1, 2001):
        for stream in ("stdout", "stderr"):
            paths.capture(worker_task(number), stream, True).write_text(f"{number}\n")
    (application,) = live.call("GET", f"/scheduler/engine/applications/{exec_id}").json()
    newest = range(2001 - MOST_LISTED, 2001)
    assert [executor["name"] for executor in application["task12n"]] == [worker_task(number) for number in newest]
    assert live.call("GET", f"/scheduler/applications/{exec_id}/executor/5/logs/stdout").text == "5\n"
    errors = live.call("GET", f"/execs/{exec_id}/log?logType=errlog").text
    assert errors == "".join(f"{number}\n" for number in newest)
