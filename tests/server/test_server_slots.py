"""Slots of running execs over HTTP, and the executors of an exec."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import CancelledError

import pytest
from live_server import Live

from dlicmd.contract import states
from local_backend.runtime.paths import worker_task
from local_backend.runtime.resizing import Resized, ResizeError
from local_backend.services.executors import MOST_LISTED

ELASTIC = "--exec-start edtPyTorch --numWorker 4 --model-main main.py"
#: Response to a resize that the server did not process in time.
LATE = "Error 503: The server did not process the request in time; the slots of local-1 are unchanged.\n"


def put(live: Live, exec_id: str, body: bytes, token: str | None = "t0ken-of-this-test") -> tuple[int, str]:
    answer = live.call("PUT", f"/execs/{exec_id}/slots", body, {"Content-Type": "application/json"}, token=token)
    return answer.status, answer.text


def test_a_resize_is_passed_on_and_answered(live: Live) -> None:
    exec_id = live.submitted(ELASTIC)
    live.supervisor.resized = Resized(2, 4)
    status, text = put(live, exec_id, b'{"slots": 4}')
    assert status == 200 and json.loads(text) == {"id": exec_id, "before": 2, "slots": 4}
    assert live.supervisor.asked == [(exec_id, 4)]


def test_null_leaves_the_slots_to_the_scheduler(live: Live) -> None:
    exec_id = live.submitted(ELASTIC)
    live.supervisor.resized = Resized(3, 3)
    assert put(live, exec_id, b'{"slots": null}')[0] == 200
    assert live.supervisor.asked == [(exec_id, None)]


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (ResizeError("Exec local-1 cannot have 9 slots"), (409, "Error 409: Exec local-1 cannot have 9 slots.\n")),
        (TimeoutError(), (503, LATE)),
        (CancelledError(), (503, LATE)),
    ],
)
def test_a_failed_resize_is_answered_with_its_reason(live: Live, problem: Exception, expected: tuple[int, str]) -> None:
    exec_id = live.submitted(ELASTIC)
    live.supervisor.resized = problem
    assert put(live, exec_id, b'{"slots": 9}') == expected


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b'{"slots": -1}', b'{"slots": "2"}', b'{"slots": true}',
                                  b'{"slots": 1.5}', b'{"Slots": 2}', b"\xff"])
def test_an_invalid_body_is_refused(live: Live, body: bytes) -> None:
    exec_id = live.submitted(ELASTIC)
    status, text = put(live, exec_id, body)
    assert status == 400 and text.startswith("Error 400: ") and text.count("\n") == 1
    assert live.supervisor.asked == []


def test_only_an_administrator_resizes_an_exec(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    bob = live.add_user("bob")
    exec_id = live.submitted(ELASTIC, token=bob)
    assert put(live, "local-99", b'{"slots": 1}') == (400, "Error 400: Exec 'local-99' is not found.\n")
    assert put(live, exec_id, b'{"slots": 1}', token=None)[0] == 401
    status, text = put(live, exec_id, b'{"slots": 1}', token=bob)
    sentence = "Only an administrator fixes the slots of an exec; bob is not an administrator"
    assert status == 403 and text == f"Error 403: {sentence}.\n"
    assert put(live, exec_id, b'{"slots": 1}', token=live.add_user("carol"))[0] == 400
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
    assert (shown()["state"], shown()["slots"]) == ("RECOVERING", 2)
    listed = live.call("GET", "/scheduler/engine/applications?state=RECOVERING").json()
    assert [item["used_cpu"] for item in listed] == [2]
    live.move(exec_id, states.FINISHED)
    assert not {"slots", "message", "workers"} & set(shown())
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
    assert live.call("GET", f"{log}/4/logs/stdout").text == f"Error 400: Exec {exec_id} has no executor 4.\n"
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
