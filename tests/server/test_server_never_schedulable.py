"""Submissions that can never run on the machine of the server."""

from __future__ import annotations

import json

import pytest
from live_server import Answer, Live, quoted

from dlicmd.contract import wire
from local_backend.runtime.occupancy import SlotPlace
from local_backend.scheduler.model import GPU, Slot

MAIN = "--model-main main.py"
SINGLE, MANY, ELASTIC = (f"--exec-start {name} {MAIN}" for name in ("PyTorch", "distPyTorch", "edtPyTorch"))
STRICT = {wire.PREFER: wire.STRICT}
NEVER = (400, "submission.never_schedulable")


def asked(live: Live, args: str, strict: bool = True, **data: object) -> Answer:
    return live.submit(args, {"main.py": b"1"}, json.dumps(data) if data else None, headers=STRICT if strict else {})


def checked(live: Live, args: str) -> Answer:
    """Ask the server whether it would refuse a submission."""
    return live.call("POST", f"/execs/check?args={quoted(args)}")


@pytest.mark.parametrize("args", [f"{SINGLE} --workerDeviceType gpu", f"{SINGLE} --gpuPerWorker 1",
                                  f"{ELASTIC} --workerDeviceType gpu --workerDeviceNum 0.5"])
def test_gpus_that_the_machine_lacks_are_refused_only_to_strict_clients(live: Live, args: str) -> None:
    assert asked(live, args).error == NEVER and live.nothing_left()
    assert checked(live, args).error == NEVER
    assert asked(live, args, strict=False).status == 200, "scripts of WMLA run on CPU slots, as they always did"
    allowed = asked(live, f"{args} --allow-cpu")
    assert allowed.status == 200 and "CPU" in allowed.json()["warning"]


def test_gpus_of_a_hardware_spec_count_too(live: Live) -> None:
    spec = {"nodes": {"gpu": {"num_gpu": "1"}}}
    assert asked(live, SINGLE, hardwareSpec=spec).error == NEVER
    assert asked(live, SINGLE, strict=False, hardwareSpec=spec).status == 200


@pytest.mark.parametrize("args", [f"{SINGLE} --workerDeviceNum 1", f"{SINGLE} --workerDeviceType cpu", SINGLE])
def test_a_device_without_a_type_may_be_a_cpu(live: Live, args: str) -> None:
    found = asked(live, args)
    assert found.status == 200 and "warning" not in found.json()


def test_gpus_are_accepted_on_a_machine_that_has_them(live: Live) -> None:
    live.supervisor.held = [SlotPlace(Slot("gpu-0", GPU))]
    found = asked(live, f"{SINGLE} --workerDeviceType gpu --allow-cpu")
    assert found.status == 200 and "warning" not in found.json()


@pytest.mark.parametrize("words", ["--numWorker 3", "--numWorker 2 --workerDeviceNum 2",
                                   "--numWorker 1 --msd-task12n-node-selector zone=nowhere"])
def test_a_fixed_size_job_that_fits_no_machine_is_refused(live: Live, words: str) -> None:
    assert asked(live, f"{MANY} {words}").error == NEVER
    assert asked(live, f"{MANY} {words}", strict=False).status == 200


def test_an_elastic_job_with_more_workers_than_slots_is_accepted_with_a_warning(live: Live) -> None:
    found = asked(live, f"{ELASTIC} --numWorker 64")
    assert found.status == 200 and all(word in found.json()["warning"] for word in ("64", "2 CPU slots"))
    assert "warning" not in asked(live, f"{ELASTIC} --numWorker 2").json()
    assert asked(live, f"{ELASTIC} --numWorker 64 --msd-attr minWorkers=3").error == NEVER


@pytest.mark.parametrize(("args", "code"), [
    (f"--exec-start Nothing {MAIN}", "submission.framework"), (f"{SINGLE} --numWorker 0", "submission.command"),
    (f"{SINGLE} --cs-datastore-meta type=fs,data_path=missing", "submission.data_source"),
    ("", "submission.command"),
])
def test_a_check_refuses_what_a_submission_refuses(live: Live, args: str, code: str) -> None:
    assert checked(live, args).error == (400, code)
    assert live.nothing_left()


def test_a_check_stores_nothing(live: Live) -> None:
    assert checked(live, SINGLE).status == 204 and live.nothing_left()
    assert live.call("GET", "/execs").json() == []
