"""Services: kernels on the slots of their exec, their deaths, and the number that a service wants."""

from __future__ import annotations

import json
import os
import random
import signal
from contextlib import suppress
from functools import partial

import psutil
import pytest
from kernels import end, folder, kernel, left, numbers, serve, want
from runtime_support import Bench, gone, host_bench, runner_of
from support import eventually

from dlicmd.contract import wire
from dlicmd.contract.states import ERROR, KILLED, PENDING, RUNNING

pytestmark = pytest.mark.integration


def ready(one: Bench, exec_id: str, count: int) -> None:
    """Wait until so many kernels are ready, and no other ones run."""
    eventually(lambda: (one.told(exec_id, wire.READY_KERNELS), one.told(exec_id, wire.WORKERS)) == (count, count),
               f"{count} kernels are ready")


def slots_of(one: Bench, exec_id: str) -> list[str]:
    return json.loads(one.row(exec_id).slots or "[]")


def test_a_kernel_runs_in_the_environment_of_its_model(backend: Bench) -> None:
    job = serve(backend, variables={"GREETING": "hello"})
    found, code = kernel(backend, job, 1), str(folder(backend, job))
    assert {name: found[name] for name in (
        "DLI_KERNEL_SOCKET", "DLI_KERNEL_KEY", "DLI_KERNEL_NUMBER", "REDHARE_MODEL_NAME", "REDHARE_MODEL_PATH",
        "REDHARE_MODEL_CREATOR", "TASK_JOB_ID", "PWD", "GREETING", "DLIM_MK_LOG_LEVEL", "OMP_WAIT_POLICY",
    )} == {
        "DLI_KERNEL_SOCKET": "/tmp/no-gateway.sock", "DLI_KERNEL_KEY": "secret-of-3", "DLI_KERNEL_NUMBER": "1",
        "REDHARE_MODEL_NAME": "digits", "REDHARE_MODEL_PATH": code, "REDHARE_MODEL_CREATOR": "ada",
        "TASK_JOB_ID": f"edi-digits-{job}", "PWD": code, "GREETING": "hello", "DLIM_MK_LOG_LEVEL": "INFO",
        "OMP_WAIT_POLICY": "passive",
    }
    assert found["MSD_POD_NAME"] == found["HOSTNAME"] and found["HOSTNAME"].startswith(f"edi-digits-{job}-task12n-")
    with open(found["DLI_MODEL_DESCRIPTION"], encoding="utf-8") as file:
        assert json.load(file) == {"name": "digits", "model_path": code, "weight_path": f"{code}/weights.pt",
                                   "kernel_path": f"{code}/main.py"}
    ready(backend, job, 1)


def test_a_service_needs_no_data(backend: Bench) -> None:
    job, training = serve(backend, data_dir=""), backend.submit("print('done')", data_dir="")
    ready(backend, job, 1)
    backend.wait(training)
    assert "DATA_DIR is empty" in backend.launcher_log(training)
    assert "ERROR" not in backend.launcher_log(job)


def test_a_dead_kernel_is_replaced_by_one_with_a_new_number(backend: Bench) -> None:
    job = serve(backend)
    ready(backend, job, 1)
    end(backend, job, 1)
    kernel(backend, job, 2)
    eventually(lambda: backend.told(job, wire.DEATHS) == 1, "the death is reported")
    ready(backend, job, 1)
    assert backend.row(job).state == RUNNING


def test_the_number_of_kernels_follows_what_the_service_wants(backend: Bench) -> None:
    job = serve(backend, least=0, most=2, wanted=2)
    ready(backend, job, 2)
    want(backend, job, 1)
    eventually(lambda: left(backend, job, 2), "kernel 2 leaves")
    eventually(lambda: slots_of(backend, job) == ["cpu-0"], "its slot is free")
    want(backend, job, 0)
    eventually(lambda: slots_of(backend, job) == [], "the service has no slots")
    ready(backend, job, 0)
    assert backend.row(job).state == RUNNING
    want(backend, job, 2)
    ready(backend, job, 2)
    assert numbers(backend, job) == [1, 2, 3, 4]


def test_a_service_without_requests_does_not_wait_for_slots(backend: Bench) -> None:
    job = serve(backend, least=0)
    eventually(lambda: backend.row(job).state == PENDING, "the service is known")
    other = backend.submit("print('done')")
    backend.wait(other)
    assert backend.supervisor.status()["queued"] == 0 and backend.row(job).state == PENDING  # type: ignore[attr-defined]
    want(backend, job, 1)
    ready(backend, job, 1)
    want(backend, job, None)
    eventually(lambda: slots_of(backend, job) == [], "the service has no slots")


def test_several_kernels_share_a_slot(backend: Bench) -> None:
    job = serve(backend, most=5, wanted=5, values={"kernels_per_slot": 3})
    ready(backend, job, 5)
    assert sorted(slots_of(backend, job)) == ["cpu-0", "cpu-1"]
    want(backend, job, 3)
    ready(backend, job, 3)
    eventually(lambda: slots_of(backend, job) == ["cpu-0"], "the other slot is free")


def test_a_kernel_that_does_not_leave_is_killed_and_holds_its_slot_until_then(backend: Bench) -> None:
    job = serve(backend, wanted=2, files={"stay": ""}, values={"leave_timeout": 1.0})
    ready(backend, job, 2)
    pid = int(kernel(backend, job, 2)["pid"])
    want(backend, job, 1)
    eventually(lambda: slots_of(backend, job) == ["cpu-0"], "the slot is free")
    assert gone(pid) and not left(backend, job, 2)


def test_no_kernel_starts_on_a_slot_that_another_one_is_leaving(backend: Bench) -> None:
    job = serve(backend, wanted=2, files={"stay": ""}, values={"leave_timeout": 1.5})
    ready(backend, job, 2)
    pids = [int(kernel(backend, job, number)["pid"]) for number in (1, 2)]
    want(backend, job, 1)
    eventually(lambda: backend.told(job, wire.READY_KERNELS) == 1, "a kernel is leaving")
    want(backend, job, 2)
    kernel(backend, job, 3)
    assert not gone(pids[0]) and gone(pids[1])
    ready(backend, job, 2)


def test_random_deaths_and_wishes_leave_the_wanted_kernels(backend: Bench) -> None:
    draw = random.Random(7)
    job = serve(backend, least=0, wanted=2)
    ready(backend, job, 2)
    for _ in range(12):
        count = draw.randint(0, 2)
        want(backend, job, count)
        running = backend.leftovers(job)
        if running and draw.random() < 0.6:
            victim = draw.choice(running)
            if victim.pid != runner_of(backend, job):
                with suppress(psutil.NoSuchProcess):
                    victim.kill()
    want(backend, job, 2)
    ready(backend, job, 2)
    assert sorted(slots_of(backend, job)) == ["cpu-0", "cpu-1"] and backend.row(job).attempt == 1
    want(backend, job, 0)
    eventually(lambda: len(backend.leftovers(job)) == 1, "only the runner is left")


def test_an_administrator_can_fix_the_slots_of_a_service(backend: Bench) -> None:
    job = serve(backend, wanted=1)
    ready(backend, job, 1)
    backend.supervisor.resize(job, 2)  # type: ignore[attr-defined]
    ready(backend, job, 2)
    backend.supervisor.resize(job, None)  # type: ignore[attr-defined]
    ready(backend, job, 1)


def test_kernels_that_cannot_become_ready_end_the_service(backend: Bench) -> None:
    job = serve(backend, files={"broken": ""})
    row = backend.wait(job)
    assert (row.state, row.reason) == (ERROR, wire.PROGRAM_FAILED)
    assert "no weights" in (row.message or "") and numbers(backend, job) == [1, 2, 3, 4, 5]


def test_a_kernel_that_is_not_ready_in_time_is_replaced(backend: Bench) -> None:
    job = serve(backend, files={"silent": ""}, values={"connection_timeout": 2.0})
    pid = int(kernel(backend, job, 1)["pid"])
    os.remove(folder(backend, job) / "silent")
    ready(backend, job, 1)
    assert gone(pid) and backend.row(job).state == RUNNING


def test_a_broken_kernel_ends_no_service_that_has_a_ready_one(backend: Bench) -> None:
    job = serve(backend, wanted=1)
    ready(backend, job, 1)
    (folder(backend, job) / "broken").touch()
    want(backend, job, 2)
    eventually(lambda: len(numbers(backend, job)) > 6, "more kernels than the limit have failed")
    assert backend.row(job).state == RUNNING and "no weights" in backend.told(job, wire.MESSAGE)
    os.remove(folder(backend, job) / "broken")
    ready(backend, job, 2)
    assert backend.told(job, wire.MESSAGE) is None


def test_a_stopped_service_lets_its_kernels_leave(backend: Bench) -> None:
    job = serve(backend, wanted=2)
    ready(backend, job, 2)
    backend.stop(job)
    assert backend.wait(job).state == KILLED
    assert left(backend, job, 1) and left(backend, job, 2)


def test_a_service_that_waits_for_requests_can_be_stopped(backend: Bench) -> None:
    pending, parked = serve(backend, least=0), serve(backend, least=0, wanted=1)
    ready(backend, parked, 1)
    want(backend, parked, 0)
    eventually(lambda: slots_of(backend, parked) == [], "the service is parked")
    backend.stop(pending)
    backend.stop(parked)
    assert {backend.wait(pending).state, backend.wait(parked).state} == {KILLED}


def test_a_kernel_beyond_its_memory_is_replaced(backend: Bench) -> None:
    job = serve(backend, memory=96 << 20)
    ready(backend, job, 1)
    (folder(backend, job) / "main.py").write_text("x = bytearray(200 << 20)\nimport time\ntime.sleep(600)\n")
    end(backend, job, 1)
    eventually(lambda: "out of memory" in (backend.told(job, wire.MESSAGE) or ""), "a kernel is out of memory")
    assert backend.row(job).state != KILLED


def test_the_next_server_adopts_a_service(tmp_path: object) -> None:
    with host_bench(tmp_path) as (host, one):  # type: ignore[arg-type]
        job = serve(one, least=1, most=2, wanted=2)
        pids = [int(kernel(one, job, number)["pid"]) for number in (1, 2)]
        one.wait_running(job)
        runner = runner_of(one, job)
        host.kill()
        end(one, job, 2)
        replacement = int(kernel(one, job, 3)["pid"])
        assert not gone(pids[0])
        host.start()
        want(one, job, 1)
        eventually(lambda: len(slots_of(one, job)) == 1, "the server takes a slot")
        assert runner_of(one, job) == runner and not (gone(pids[0]) and gone(replacement))
        one.stop(job)
        assert one.wait(job).state == KILLED


def test_a_service_whose_runner_was_killed_starts_again(backend: Bench) -> None:
    job = serve(backend)
    ready(backend, job, 1)

    def serves(attempt: int) -> bool:
        return backend.row(job).attempt == attempt and backend.told(job, wire.READY_KERNELS) == 1

    for attempt in range(1, 6):
        eventually(partial(serves, attempt), "it serves")
        os.kill(runner_of(backend, job), signal.SIGKILL)
    eventually(partial(serves, 6), "it serves")
    found = numbers(backend, job)
    assert len(found) == len(set(found)) == 6
