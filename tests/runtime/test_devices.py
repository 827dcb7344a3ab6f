"""GPUs, MIG slices and GPU failures, tested with a fake NVML that reads its GPUs from a file."""

from __future__ import annotations

import pytest
from puppets import strings
from runtime_support import bench
from support import eventually

from dlicmd.contract.states import FINISHED, PENDING
from local_backend.scheduler.slots import gpu_slots

WAIT = (
    "import os, time\nopen('devices', 'w').write(os.environ['CUDA_VISIBLE_DEVICES'] or '-')\n"
    "while not os.path.exists('go'):\n    time.sleep(0.02)\n"
)
TWO = [{"uuid": "GPU-a"}, {"uuid": "GPU-b"}]
CUT = {"uuid": "GPU-c", "mig": [
    {"uuid": "MIG-1", "name": "NVIDIA H200 MIG 1g.18gb"}, {"uuid": "MIG-2", "name": "NVIDIA H200 MIG 3g.71gb"},
]}


def go(one, job):
    (one.paths(job).code(one.row(job).workload) / "go").touch()


def test_gpus_and_mig_slices_become_slots(there, monkeypatch):
    there([*TWO, CUT])
    assert [(slot.id, slot.kind, slot.device) for slot in gpu_slots()] == [
        ("gpu-0", "gpu", "GPU-a"), ("gpu-1", "gpu", "GPU-b"), ("gpu-2-mig-0", "1g.18gb", "MIG-1"),
        ("gpu-2-mig-1", "3g.71gb", "MIG-2"),
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-2,1")
    assert [slot.device for slot in gpu_slots()] == ["MIG-2", "GPU-b"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert [slot.device for slot in gpu_slots()] == ["MIG-1", "MIG-2"]


def test_a_job_gets_a_mig_slice_of_the_requested_profile(there, tmp_path):
    there([CUT])
    with bench(tmp_path / "home", slots=None) as one:
        jobs = {"MIG-2": one.submit(WAIT, mig_profile="3g.71gb"), "MIG-1": one.submit(WAIT, mig_profile="slice")}
        for device, job in jobs.items():
            assert one.wait_for_file(job, "devices") == device
            go(one, job)
        never = one.wait(one.submit(WAIT, mig_profile="7g.141gb"))
        assert never.reason == "NEVER_SCHEDULABLE"
        assert never.message is not None and "1 MIG 7g.141gb slot" in never.message and "mig_profile" in never.message
        assert [one.wait(job).state for job in jobs.values()] == [FINISHED] * 2


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"lost": True}, "the GPU does not answer: GPU is lost"),
        ({"used": 0.97}, "97% of its memory is used by other processes"),
        ({"rows": [0, 1, 1, 0]}, "its memory has errors, and the GPU needs a reset"),
        ({"rows": [0, 1, 0, 1]}, "its memory has errors that cannot be repaired"),
        ({"xid": 79}, "Xid error 79"),
    ],
)
def test_a_faulty_gpu_gets_no_jobs_until_the_fault_is_over(there, tmp_path, fault, why):
    there([{"uuid": "GPU-a"}])
    with bench(tmp_path / "home", slots=None, health_every=0.05) as one:
        there([{"uuid": "GPU-a", **fault}])
        eventually(lambda: one.supervisor.status()["slots"]["drained"] == {"gpu-0": why}, why)
        job = one.submit(WAIT)
        sentence = f"waiting for 1 GPU slot; out of service: gpu-0 ({why})"
        eventually(lambda: one.waits_for(job) == sentence, "the job is pending with the reason")
        eventually(lambda: one.row(job).state == PENDING, "the job is pending")
        assert one.supervisor.reason(job).code == "DRAINED"
        if "xid" in fault:
            return  # A health check cannot clear an Xid error.
        there([{"uuid": "GPU-a"}])
        assert one.wait_for_file(job, "devices") == "GPU-a"
        go(one, job)
        assert one.wait(job).state == FINISHED


def test_only_new_memory_errors_take_a_gpu_out_of_service(there, tmp_path):
    there([{"uuid": "GPU-a", "ecc": 7, "xid": 31}])
    with bench(tmp_path / "home", slots=None, health_every=0.05) as one:
        job = one.submit(WAIT)
        assert one.wait_for_file(job, "devices") == "GPU-a"
        there([{"uuid": "GPU-a", "ecc": 9, "used": 1.0}])
        eventually(lambda: "gpu-0 is out of service: 2 " in one.launcher_log(job), "the launcher log names the errors")
        go(one, job)
        assert one.wait(job).state == FINISHED, "a job that cannot be moved must keep its faulty GPU"


def test_an_elastic_job_leaves_a_lost_gpu(there, tmp_path):
    there(TWO)
    with strings() as held, bench(tmp_path / "home", slots=None, health_every=0.05) as one:
        job = held.submit(one)
        driver = held.driver()
        driver.hello()
        one.wait_running(job)
        there([TWO[0], {**TWO[1], "lost": True}])
        assert driver.allocation() == ["gpu-0"]
        there(TWO)
        assert driver.allocation() == ["gpu-0", "gpu-1"]
        driver.close()
        one.wait(job)


def test_a_gpu_that_is_lost_at_the_start_is_not_a_slot(there):
    there([{"uuid": "GPU-a", "lost": True}, {"uuid": "GPU-b"}])
    assert [slot.id for slot in gpu_slots()] == ["gpu-1"]
