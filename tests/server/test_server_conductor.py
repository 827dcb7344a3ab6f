"""The Conductor calls that notebooks of the first product generation make: the applications while an elastic job grows
and shrinks, and their logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live_server import Answer, Live, quoted
from test_server_slots_view import GPUS, FakeNvml, nvml

from local_backend.api.objects import INSTANCE_ID
from local_backend.runtime.occupancy import Holder, SlotPlace

__all__ = ["nvml"]
SINGLE = "--exec-start distPyTorch --numWorker 2 --model-main main.py"
WORDS = "--exec-start edtPyTorch --model-main main.py --edt-options maxWorkers=2"


def running(live: Live, query: str = "state=RUNNING") -> list[dict[str, Any]]:
    instance = live.call("GET", "/scheduler/instances").json()[0]["uuid"]
    path = f"/platform/rest/conductor/v1/instances/{instance}/applications?{query}"
    answer = live.call("GET", path, base="")
    assert answer.status == 200
    found = answer.json()
    assert isinstance(found, list)
    return found


def test_an_application_shows_its_gpus_their_memory_and_their_use(live: Live, nvml: FakeNvml) -> None:
    exec_id, other = live.submitted(WORDS), live.submitted(WORDS)
    held = (Holder(exec_id),)
    live.supervisor.held = [SlotPlace(GPUS[0], held), SlotPlace(GPUS[1]), SlotPlace(GPUS[2], held)]
    assert running(live) == []
    live.run_on(exec_id, "gpu-0", "gpu-2")
    (shown,) = running(live)
    assert shown["driver"] == {"id": exec_id, "state": "RUNNING", "host": "127.0.0.1"}
    assert (shown["applicationid"], shown["slots"], shown["gpuslots"]) == (exec_id, 2, 2)
    assert shown["gpumemused"] == {"total": 3 << 10}, "the third GPU reports no memory"
    assert shown["gpudevutil"] == {"total": 186.0}
    (waiting,) = running(live, f"applicationid={other}")
    assert [waiting[name] for name in ("gpuslots", "gpumemused", "gpudevutil")] == [0, {"total": 0}, {"total": 0}]


def test_a_lost_gpu_counts_as_a_slot_without_memory_and_use(live: Live, nvml: FakeNvml) -> None:
    exec_id = live.submitted(WORDS)
    live.supervisor.held = [SlotPlace(GPUS[1], (Holder(exec_id),))]
    live.run_on(exec_id, "gpu-1")
    (shown,) = running(live)
    assert (shown["gpuslots"], shown["gpumemused"], shown["gpudevutil"]) == (1, {"total": 0}, {"total": 0})


def test_a_machine_without_gpus_has_only_slots(live: Live) -> None:
    exec_id = live.submitted(WORDS)
    live.run_on(exec_id, "cpu-0", "cpu-1")
    (shown,) = running(live, "state=RUNNING&start=&length=")
    assert (shown["slots"], shown["gpuslots"], shown["gpudevutil"]) == (2, 0, {"total": 0})


@pytest.mark.parametrize("name", ["dli-edt", "a" * 300])
def test_another_instance_group_is_not_found(live: Live, name: str) -> None:
    path = f"/platform/rest/conductor/v1/instances/{quoted(name)}/applications"
    answer = live.call("GET", path, base="")
    assert answer.error == (400, "instance.not_found")


def downloaded(live: Live, exec_id: str, rest: str, instance: str = INSTANCE_ID, **more: Any) -> Answer:
    path = f"/platform/rest/conductor/v1/instances/{instance}/applications/{exec_id}/{rest}/download"
    return live.call("GET", path, base="", **more)


@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/json, text/plain"])
def test_logs_can_be_downloaded_as_text(live: Live, accept: str) -> None:
    elastic, single = live.submitted(WORDS), live.submitted(SINGLE)
    for task in ("task0", "task12n-3"):
        for stream in ("stdout", "stderr"):
            _write(live.paths(elastic).capture(task, stream, True), f"{task} {stream}\n")
    _write(live.paths(single).capture("task12n-2", "stdout", False), "a\n\nb")
    _write(live.paths(single).capture("task12n-1", "stderr", False), "e\n")
    for exec_id, rest, text in (
        (elastic, "logs/stdout", "task0 stdout\n"), (elastic, "logs/stderr", "task0 stderr\n"),
        (elastic, "3/logs/stderr", "task12n-3 stderr\n"), (single, "1/logs/stdout", ""),
        (single, "logs/stderr", "*Task <1> SubProcess*: e\n"),
        (single, "2/logs/stdout", "*Task <2> SubProcess*: a\n*Task <2> SubProcess*: \n*Task <2> SubProcess*: b"),
    ):
        answer = downloaded(live, exec_id, rest, headers={"Accept": accept})
        assert (answer.status, answer.text) == (200, text), (exec_id, rest)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"


def test_the_ids_of_a_list_name_the_logs(live: Live) -> None:
    exec_id = live.submitted(WORDS)
    _write(live.paths(exec_id).capture("task0", "stdout", True), "driver\n")
    _write(live.paths(exec_id).capture("task12n-11", "stdout", True), "executor\n")
    (shown,) = running(live, f"applicationid={exec_id}")
    assert downloaded(live, shown["driverid"], "logs/stdout").text == "driver\n"
    assert downloaded(live, shown["driver"]["id"], "logs/stdout", shown["sparkinstancegroupid"]).text == "driver\n"
    assert [downloaded(live, exec_id, f"{one['id']}/logs/stdout").text for one in shown["executors"]] == ["executor\n"]


@pytest.mark.parametrize(("rest", "code"), [
    ("3/logs/stdout", "exec.no_executor"), ("0/logs/stdout", "query.number"),
    ("x/logs/stdout", "query.number"), ("1/logs/passwd", "query.log"), ("logs/..%2fjob.json", "http.no_such_path"),
])
def test_a_log_that_does_not_exist_is_refused(live: Live, rest: str, code: str) -> None:
    assert downloaded(live, live.submitted(SINGLE), rest).error[1] == code


def test_logs_of_another_user_instance_or_exec_are_refused(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    bob, carol = live.add_user("bob"), live.add_user("carol")
    exec_id = live.submitted(WORDS, token=bob)
    _write(live.paths(exec_id).capture("task0", "stdout", True), "secret\n")
    assert downloaded(live, exec_id, "logs/stdout", token=bob).status == 200
    assert downloaded(live, exec_id, "logs/stdout").status == 200, "administrators see all logs"
    assert downloaded(live, exec_id, "logs/stdout", token=None).error == (401, "auth.required")
    for name, rest in ((exec_id, "logs/stdout"), (exec_id, "1/logs/stdout"), ("local-99", "logs/stdout")):
        assert downloaded(live, name, rest, token=carol).error == (400, "exec.not_found")
        assert downloaded(live, name, rest, "dli-edt", token=bob).error == (400, "instance.not_found")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
