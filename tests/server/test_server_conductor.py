"""The Conductor calls that notebooks of the first product generation make while an elastic job grows and shrinks."""

from __future__ import annotations

from typing import Any

import pytest
from live_server import Live, quoted
from test_server_slots_view import GPUS, FakeNvml, nvml

from local_backend.runtime.occupancy import Holder, SlotPlace

__all__ = ["nvml"]
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
    live.supervisor.machine = [SlotPlace(GPUS[0], held), SlotPlace(GPUS[1]), SlotPlace(GPUS[2], held)]
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
    live.supervisor.machine = [SlotPlace(GPUS[1], (Holder(exec_id),))]
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
