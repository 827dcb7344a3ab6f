"""The slot view: slots with their holders, the queue, and the running jobs."""

from __future__ import annotations

import json
import math
import sys
import threading
from types import SimpleNamespace

import pytest
from live_server import Live

from dlicmd.contract.states import FINISHED, PENDING, RECOVERING, RUNNING
from local_backend.runtime.occupancy import Holder, SlotPlace
from local_backend.runtime.utilisation import Use, Utilisation
from local_backend.scheduler.model import CPU, GPU, Reason, Slot
from local_backend.scheduler.slots import cpu_slots
from local_backend.store import execs

PATH = "/scheduler/slots"
GPUS = [Slot(f"gpu-{number}", GPU, f"GPU-{number}") for number in range(3)]


class FakeNvml(SimpleNamespace):
    """NVML of a machine whose second GPU fails."""

    class NVMLError(Exception):
        pass

    started = 0

    def nvmlInit(self) -> None:
        self.started += 1

    def nvmlDeviceGetHandleByUUID(self, device: str) -> str:
        if device == "GPU-1":
            raise self.NVMLError("lost")
        return device

    def nvmlDeviceGetUtilizationRates(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(gpu=93, memory=5)

    def nvmlDeviceGetMemoryInfo(self, device: str) -> SimpleNamespace:
        if device == "GPU-2":
            raise self.NVMLError("it has no memory of its own")
        return SimpleNamespace(used=3 << 30)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_an_idle_machine_shows_free_slots(live: Live) -> None:
    assert live.call("GET", PATH).json() == {
        "slots": [
            {"id": f"cpu-{number}", "kind": "cpu", "profile": "", "state": "free", "holders": []} for number in (0, 1)
        ],
        "queue": [], "running": [],
    }


def test_slots_show_their_holders_and_utilization(live: Live, nvml: FakeNvml) -> None:
    exec_id = live.submitted()
    live.run_on(exec_id, "gpu-0")
    live.supervisor.held = [
        SlotPlace(GPUS[0], (Holder(exec_id),)), SlotPlace(GPUS[1], (Holder(exec_id, leaving=True),)),
        SlotPlace(GPUS[2], (), "it has been taken out of use"), SlotPlace(Slot("cpu-0", CPU)),
    ]
    slots = live.call("GET", PATH).json()["slots"]
    assert slots[0] == {
        "id": "gpu-0", "kind": "gpu", "profile": "", "state": "used", "utilisation": 0.93,
        "holders": [{"id": exec_id, "user": "alice", "consumer": "/local/training", "share": 1.0}],
    }
    assert [slot["state"] for slot in slots] == ["used", "leaving", "drained", "free"]
    assert [slot.get("utilisation") for slot in slots] == [0.93, None, 0.93, None]
    assert [slot.get("reason") for slot in slots] == [None, None, "it has been taken out of use", None]
    live.call("GET", PATH)
    assert nvml.started == 1


def test_a_shared_slot_is_used_while_one_holder_stays(live: Live) -> None:
    both = (Holder("local-1", leaving=True, share=0.5), Holder("local-2", share=0.5))
    live.supervisor.held = [SlotPlace(Slot("cpu-0", CPU), both)]
    (slot,) = live.call("GET", PATH).json()["slots"]
    assert slot["state"] == "used"
    assert slot["holders"] == [{"id": "local-1", "share": 0.5}, {"id": "local-2", "share": 0.5}], "both jobs have ended"


def test_cpu_slots_show_the_load_of_their_execs_since_the_call_before(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    exec_id = live.submitted()
    live.supervisor.held = [SlotPlace(slot, (Holder(exec_id),)) for slot in cpu_slots(2)]
    now = [100.0]
    monkeypatch.setattr(live.services.machine.cpu_load, "_clock", lambda: now[0])

    def load() -> list[float | None]:
        return [slot.get("utilisation") for slot in live.call("GET", PATH).json()["slots"]]

    live.supervisor.cpu = {exec_id: 5.0}
    assert load() == [None, None], "one reading is no load"
    now[0], live.supervisor.cpu = 102.0, {exec_id: 8.0, "local-99": 1.0}
    assert load() == [0.75, 0.75], "1.5 busy cores on 2 slots"
    assert load() == [0.75, 0.75], "a second call at once reads nothing"
    now[0], live.supervisor.cpu = 104.0, {exec_id: 20.0}
    assert load() == [1.0, 1.0]
    now[0] = 300.0
    assert load() == [None, None], "the last reading is too old"


def test_the_queue_is_in_order_and_has_reasons(live: Live) -> None:
    words = "--exec-start edtPyTorch --model-main main.py --numWorker 4 --msd-priority 7000"
    late, first, new = live.submitted(), live.submitted(words), live.submitted()
    live.move(late, PENDING)
    live.database.write(lambda c: execs.note(c, new, message="cannot start the job now, trying again: no space"))
    live.supervisor.reasons[late] = Reason("QUEUE", "waiting for 1 CPU slot; other jobs are before it in the queue", 2)
    live.supervisor.reasons[first] = Reason("SLOTS", "waiting for 1 CPU slot; 0 of 2 CPU slots are free", 1, 60.0)
    shown = live.call("GET", PATH).json()
    assert [row["id"] for row in shown["queue"]] == [first, late, new] and shown["running"] == []
    assert shown["queue"][0] == {
        "id": first, "user": "alice", "appName": "ElasticPyTorchTrain", "consumer": "/local/training", "priority": 7000,
        "slots": 1, "reason": "SLOTS",
        "queuePosition": 1, "expectedStart": "1970-01-01T00:01:00Z",
        "message": live.call("GET", f"/execs/{first}").json()["message"],
    }
    assert "expectedStart" not in shown["queue"][1]
    assert shown["queue"][2]["message"] == "cannot start the job now, trying again: no space"


def test_running_execs_show_their_progress(live: Live) -> None:
    running, starting, over = (live.submitted() for _ in range(3))
    last = {"loss": {"value": 0.5, "step": 7}}
    live.say(running, {"lastMetrics": last, "epoch": 2, "epochs": 9, "loss": math.nan, "workers": 1, "secret": "x"})
    live.run_on(running, "cpu-0", "cpu-1")
    live.move(running, RECOVERING)
    live.move(starting, PENDING)
    live.database.write(lambda c: execs.begin_attempt(c, starting, [], "/local/training"))
    live.run_on(over, "cpu-1")
    live.move(over, FINISHED)
    shown = live.call("GET", PATH).json()
    assert shown["running"] == [
        {"user": "alice", "id": running, "appName": "SingleNodePytorchTrain", "state": RUNNING, "slots": 2,
         "recovering": True, "workers": 1, "epoch": 2, "epochs": 9, "message": "recovering",
         "lastMetrics": last},
        {"user": "alice", "id": starting, "appName": "SingleNodePytorchTrain", "state": PENDING},
    ]
    assert shown["queue"] == []


def test_execs_of_all_users_are_shown_without_args_and_environment(live: Live) -> None:
    words = "--exec-start PyTorch --model-main main.py --submit-user bob --msd-env WHERE=hidden-place"
    words += " -- --rate hidden-rate"
    waiting, running, deleted = live.submitted(words), live.submitted(words), live.submitted(words)
    live.run_on(running, "cpu-0")
    for exec_id in (waiting, running):
        live.database.write(lambda c, name=exec_id: execs.note(c, name, creator="bob"))
    live.call("DELETE", f"/execs/{deleted}")
    answer = live.call("GET", PATH)
    shown = answer.json()
    assert [row["user"] for row in (*shown["queue"], *shown["running"])] == ["bob", "bob"]
    assert "hidden" not in answer.text and "env" not in answer.text and "args" not in json.dumps(shown)


def test_utilization_is_unknown_without_nvml(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise FakeNvml.NVMLError("no driver")

    assert Utilisation().of(["GPU-0"]) == {"GPU-0": Use(0.93, 3 << 30)}
    assert Utilisation().of([]) == {}
    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetUtilizationRates", fails)
    assert Utilisation().of(["GPU-0"]) == {}
    monkeypatch.setattr(FakeNvml, "nvmlInit", fails)
    assert Utilisation().of(["GPU-0"]) == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Utilisation().of(["GPU-0"]) == {}


def test_a_gpu_that_does_not_answer_is_not_waited_for(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, go = [], threading.Event()

    def hangs(_: object, device: str) -> SimpleNamespace:
        asked.append(device)
        go.wait()
        return SimpleNamespace(gpu=50)

    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetUtilizationRates", hangs)
    found = Utilisation()
    assert [found.of(["GPU-0"]) for _ in range(3)] == [{}, {}, {}]
    assert asked == ["GPU-0"], "more than one reading at a time"
    go.set()
    assert found._reader is not None
    found._reader.join()
    assert found.of(["GPU-0"])["GPU-0"].busy == 0.5
