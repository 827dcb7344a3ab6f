"""Application objects and ParallelJobs: every field that clients read, with the type that their arithmetic needs."""

from __future__ import annotations

import time
from typing import Any

import pytest
from live_server import Live

from dlicmd.contract.states import ERROR, FINISHED, PENDING, RECOVERING, RUNNING
from local_backend.api.objects import APPLICATION_FIELDS, SPARK_FIELDS
from local_backend.runtime.occupancy import SlotPlace
from local_backend.scheduler.model import GPU, Reason, Slot
from local_backend.store import execs

ELASTIC = "--exec-start edtPyTorch --model-main main.py --numWorker 4 --workerMemory 2g"
APPLICATIONS = "/scheduler/engine/applications"
#: Contract, section 2.2: field → type.
TYPES = {
    "id": str, "state": str, "type": str, "tag": str, "consumer": str, "submit_user": str, "name": str,
    "priority": int, "submit_time": int, "start_time": int, "end_time": int, "task12n_resreq": str,
    "task12n_num": int, "used_gpu": int, "used_mem": int, "used_cpu": int, "task12n": list, "kernels": list,
    "is_packing": bool,
}


def application(live: Live, exec_id: str) -> dict[str, Any]:
    (found,) = live.call("GET", f"{APPLICATIONS}/{exec_id}").json()
    return found


def on_gpus(live: Live) -> None:
    live.supervisor.held = [SlotPlace(Slot(f"gpu-{number}", GPU)) for number in range(4)]


def requests(live: Live, exec_id: str) -> list[dict[str, str]]:
    job = live.call("GET", f"/scheduler/kubernetesobjects?type=paralleljob&name={exec_id}").json()
    containers = [group["spec"]["template"]["spec"]["containers"][0] for group in job["spec"]["taskGroups"]]
    return [container["resources"]["requests"] for container in containers]


def test_every_field_has_its_type_in_every_state(live: Live) -> None:
    exec_id = live.submitted(ELASTIC)

    def check() -> None:
        found = application(live, exec_id)
        assert {name: type(found[name]) for name in TYPES} == TYPES
        assert found["task0"] and set(found) <= APPLICATION_FIELDS
        for request in (found["task0_resreq"], found["task12n_resreq"]):
            assert all(item.count("=") == 1 for item in request.split(","))

    check()
    live.run_on(exec_id, "cpu-0", "cpu-1", "cpu-2")
    check()
    live.move(exec_id, FINISHED)
    check()


def test_used_resources_are_those_of_the_present_workers(live: Live) -> None:
    exec_id = live.submitted(ELASTIC)
    live.run_on(exec_id, "cpu-0", "cpu-1", "cpu-2")
    found = application(live, exec_id)
    assert (found["used_cpu"], found["used_gpu"], found["used_mem"], found["task12n_num"]) == (3, 0, 6144, 4)
    live.move(exec_id, FINISHED)
    found = application(live, exec_id)
    assert (found["used_cpu"], found["used_gpu"], found["used_mem"]) == (0, 0, 0)


def test_a_request_is_for_gpus_if_the_machine_has_any_unless_it_says_cpu(live: Live) -> None:
    on_gpus(live)
    some, none = live.submitted(f"{ELASTIC} --workerDeviceNum 2"), live.submitted(f"{ELASTIC} --workerDeviceType cpu")
    assert application(live, some)["task12n_resreq"] == "ncpus=1,ngpus=2,mem=2048"
    assert application(live, none)["task12n_resreq"] == "ncpus=1,ngpus=0,mem=2048"
    memory, none_asked = {"memory": "2048.000000Mi"}, {"memory": "0.000000Mi"}
    assert requests(live, some) == [
        {**none_asked, "cpu": "1", "nvidia.com/gpu": "0"}, {**memory, "cpu": "1", "nvidia.com/gpu": "2"},
    ]
    assert requests(live, none)[1]["nvidia.com/gpu"] == "0"


def test_a_request_is_for_cores_on_a_machine_without_gpus(live: Live) -> None:
    exec_id = live.submitted("--exec-start PyTorch --model-main main.py --workerDeviceNum 2 --workerDeviceType gpu")
    assert application(live, exec_id)["task12n_resreq"] == "ncpus=2,ngpus=0,mem=0"
    assert requests(live, exec_id) == [{"memory": "0.000000Mi", "cpu": "2", "nvidia.com/gpu": "0"}]


def test_a_waiting_application_has_the_message_of_its_exec(live: Live) -> None:
    exec_id = live.submitted()
    live.supervisor.reasons[exec_id] = Reason("SLOTS", "waiting for 1 CPU slot; 0 of 2 CPU slots are free", 1, 60.0)
    shown = live.call("GET", f"/execs/{exec_id}").json()
    assert shown["message"].endswith("position 1 in the queue, not before 1970-01-01T00:01:00Z")
    (detail,) = live.call("GET", f"/scheduler/applications?applicationid={exec_id}").json()
    for found in (application(live, exec_id), detail):
        assert (found["message"], found["reason"]) == (shown["message"], "SLOTS")
    live.supervisor.reasons.clear()
    live.database.write(lambda c: execs.note(c, exec_id, message="cannot start the job now, trying again: no space"))
    found = application(live, exec_id)
    assert found["message"] == "cannot start the job now, trying again: no space" and "reason" not in found


def test_an_application_has_a_message_only_if_it_ended_or_is_parked(live: Live) -> None:
    exec_id = live.submitted()
    live.move(exec_id, PENDING, ERROR, message="something", reason="LOST")
    found = application(live, exec_id)
    assert (found["message"], found["reason"]) == ("something", "LOST")
    runs, parked = live.submitted(), live.submitted(ELASTIC)
    live.run_on(runs, "cpu-0")
    live.run_on(parked)
    for name in (runs, parked):
        live.say(name, {"message": "parked at step 7"})
    assert "message" not in application(live, runs)
    assert application(live, parked)["message"] == "parked at step 7"
    assert live.call("GET", f"/execs/{parked}/why").json()["message"] == "parked at step 7"


@pytest.mark.parametrize("path", [APPLICATIONS, "/scheduler/applications"])
def test_applications_are_sorted_by_any_field_even_if_some_lack_it(live: Live, path: str) -> None:
    elastic, single = live.submitted(ELASTIC), live.submitted()
    live.supervisor.reasons[single] = Reason("SLOTS", "waiting", 1)
    fields = APPLICATION_FIELDS if path == APPLICATIONS else APPLICATION_FIELDS | SPARK_FIELDS

    def sorted_by(query: str) -> list[str]:
        return [found["id"] for found in live.call("GET", f"{path}?sort={query}").json()]

    for name in fields:
        assert sorted(sorted_by(name)) == [elastic, single], name
    assert sorted_by("task0_resreq") == sorted_by("task0") == [single, elastic], "jobs without the field must be first"
    assert sorted_by("reason") == sorted_by("used_mem") == sorted_by("pack_id") == [elastic, single]
    down = "-" if path == APPLICATIONS else ""
    assert sorted_by(f"{down}task12n_num{'' if down else '&order=desc'}") == [elastic, single]
    for wrong in ("nothing", "-", "__class__"):
        answer = live.call("GET", f"{path}?sort={wrong}")
        assert answer.error == (400, "query.sort"), wrong
    assert sorted_by("") == sorted_by("submit_time")


def test_an_unknown_sort_field_is_refused_on_an_empty_list(live: Live) -> None:
    assert live.call("GET", f"{APPLICATIONS}?sort=nothing").status == 400
    assert live.call("GET", f"{APPLICATIONS}?sort=-used_gpu").json() == []


def test_a_requeued_job_has_no_start_time(live: Live) -> None:
    exec_id = live.submitted()
    live.run_on(exec_id, "cpu-0")

    def status() -> dict[str, str]:
        path = f"/scheduler/kubernetesobjects?type=paralleljob&name={exec_id}"
        return live.call("GET", path).json()["status"]

    assert status()["jobStatus"] == "Running" and status()["jobStartTime"].endswith("Z")
    live.move(exec_id, PENDING, message="queued again")
    assert status()["jobStatus"] == "Pending"
    assert status()["jobPendingReason"] == "queued again" and "jobStartTime" not in status()


def test_the_run_time_counts_until_now_or_until_the_end(live: Live) -> None:
    exec_id, waiting = live.submitted(ELASTIC), live.submitted(ELASTIC)

    def minutes(which: str) -> float:
        (found,) = live.call("GET", f"/scheduler/applications?applicationid={which}").json()
        assert type(found["apprunduration"]) is float
        return found["apprunduration"]

    began = time.time() - 5400
    live.run_on(exec_id, "cpu-0")
    live.move(exec_id, RECOVERING)
    live.move(exec_id, RUNNING, start_time=began)
    assert minutes(exec_id) >= 90 and minutes(waiting) == 0
    live.move(exec_id, FINISHED, end_time=began + 90)
    assert minutes(exec_id) == 1.5
