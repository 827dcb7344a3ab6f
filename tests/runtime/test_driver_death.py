"""The driver of an elastic job is killed: it is restarted, and the job continues from its saved state."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from puppets import Strings, strings
from runtime_support import Bench, gone, host_bench
from support import eventually
from workloads import workload

from dlicmd.contract import wire
from dlicmd.contract.states import ERROR, FINISHED, KILLED, PENDING, RECOVERING, RUNNING, SUBMITTED
from local_backend.runtime.engine import Engine
from local_backend.runtime.launch import Launch
from local_backend.runtime.paths import HomePaths
from local_backend.runtime.progress import Progress
from local_backend.runtime.restarts import Restarts
from local_backend.runtime.tasks import Planner
from local_backend.scheduler.slots import cpu_slots

STARTED = [SUBMITTED, PENDING, RUNNING]


@pytest.fixture
def held() -> Iterator[Strings]:
    with strings() as found:
        yield found


def wait_for_state(one: Bench, job: str, state: str) -> None:
    eventually(lambda: one.row(job).state == state, f"{job} is {state}")


@pytest.mark.parametrize("trains", [True, False])
def test_a_program_without_a_training_says_that_it_had_no_workers(backend: Bench, held: Strings, trains: bool) -> None:
    job = held.submit(backend)
    driver = held.driver()
    if trains:
        driver.hello()
    driver.close()
    assert backend.wait(job).state == FINISHED
    assert ("without workers" in backend.launcher_log(job)) != trains


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_driver_is_restarted(backend: Bench, held: Strings, number: int) -> None:
    job = held.submit(backend)
    driver = held.driver()
    assert driver.restarts == "0"
    driver.hello()
    assert driver.next_worker == 1
    driver.spawn(41, "cpu-0")
    worker = held.worker()
    daemon = worker.daemon()
    backend.wait_running(job)
    began = backend.row(job).start_time
    os.kill(driver.pid, number)
    second = held.driver()
    assert second.restarts == "1"
    assert gone(worker.pid) and gone(daemon), "a process of the first driver is alive when the second starts"
    wait_for_state(backend, job, RECOVERING)
    name = signal.Signals(number).name
    how = f"the driver was killed by signal {number} ({name})"
    eventually(lambda: how in str(backend.told(job, wire.MESSAGE)), "the message has the cause")
    assert second.hello() == ["cpu-0", "cpu-1"]
    assert second.next_worker == 42
    second.spawn(42, "cpu-0")
    assert held.worker().number == 42
    second.say(op="progress", step=3)
    wait_for_state(backend, job, RUNNING)
    eventually(lambda: backend.told(job, wire.STEP) == 3, "the restarted driver reports step 3")
    assert backend.told(job, wire.MESSAGE) is None
    second.close()
    assert backend.wait(job).state == FINISHED
    assert backend.row(job).start_time == began
    assert backend.history(job) == [*STARTED, RECOVERING, RUNNING, FINISHED]
    assert how in backend.launcher_log(job)
    assert backend.output(job, task="task0") == "driver 0\ndriver 1\n"


def test_a_restarted_driver_gets_the_present_allocation(backend: Bench, held: Strings) -> None:
    job = held.submit(backend)
    driver = held.driver()
    driver.hello()
    backend.wait_running(job)
    backend.supervisor.resize(job, 1)  # type: ignore[attr-defined]
    assert driver.allocation() == ["cpu-0"]
    driver.kill()
    second = held.driver()
    assert second.hello() == ["cpu-0"]
    backend.supervisor.resize(job, 2)  # type: ignore[attr-defined]
    assert second.allocation() == ["cpu-0", "cpu-1"]
    second.close()
    backend.wait(job)


def test_a_driver_without_progress_is_restarted_only_three_times(backend: Bench, held: Strings) -> None:
    job = held.submit(backend)
    for restarts in ("0", "1", "2", "3"):
        driver = held.driver()
        assert driver.restarts == restarts
        driver.kill()
    row = backend.wait(job)
    assert (row.state, row.reason, row.exit_code) == (ERROR, wire.PROGRAM_FAILED, 137)
    assert row.message is not None and "9 (SIGKILL)" in row.message and "3 restarts" in row.message
    assert not backend.leftovers(job)


def test_progress_allows_three_more_restarts(backend: Bench, held: Strings) -> None:
    job = held.submit(backend)
    for restarts in range(6):
        driver = held.driver()
        assert driver.restarts == str(restarts)
        driver.say(op="progress", step=restarts // 2)
        eventually(lambda n=restarts: backend.told(job, wire.STEP) == n // 2, "the runner knows the step")
        driver.kill()
    held.driver().close()
    assert backend.wait(job).state == FINISHED


def test_the_last_messages_of_a_dying_driver_count(tmp_path: Path) -> None:
    notes: list[str] = []
    home = HomePaths(tmp_path, tmp_path / "d", tmp_path / "r")
    launch = Launch(workload(framework="edtPyTorch", num_worker=2, elastic=True), 1, home, cpu_slots(2), 2, {}, 1.0)
    planner = Planner(launch, warm=False, master_port=1, cores=1, temporary=tmp_path, base_path=())
    delivered: list[Mapping[str, Any]] = []
    progress = Progress(delivered.append)
    engine = Engine(
        launch, planner, start=pytest.fail, progress=progress, note=notes.append, metrics=pytest.fail,
        settle=pytest.fail,
    )
    with socket.socket(fileno=engine.connect()) as driver:
        for message in ({"op": "history", "text": "last words"},
                        {"op": "spawn", "worker": 1, "slot": "cpu-0", "address": "127.0.0.1:1", "key": "ab"},
                        {"op": "progress", "step": 813}):
            driver.sendall(json.dumps(message).encode() + b"\n")
    engine.disconnect()
    progress.flush(now=True)
    assert notes == ["last words"]
    assert delivered[-1][wire.STEP] == engine.furthest == 813


def test_a_driver_can_set_the_state_of_its_job_to_recovering(backend: Bench, held: Strings) -> None:
    job = held.submit(backend)
    driver = held.driver()
    backend.wait_running(job)
    driver.say(op="progress", recovering=True, message="reads\nits snapshot")
    wait_for_state(backend, job, RECOVERING)
    eventually(lambda: backend.told(job, wire.MESSAGE) == "reads its snapshot", "the message of the driver is one line")
    driver.say(op="progress", step=1)
    eventually(lambda: backend.told(job, wire.STEP) == 1, "the step arrives")
    assert backend.row(job).state == RECOVERING
    driver.say(op="progress", recovering=False, message=None)
    wait_for_state(backend, job, RUNNING)
    eventually(lambda: backend.told(job, wire.MESSAGE) is None, "the message is removed")
    driver.say(op="progress", recovering=True)
    wait_for_state(backend, job, RECOVERING)
    driver.close()
    assert backend.wait(job).state == FINISHED
    assert backend.history(job) == [*STARTED, RECOVERING, RUNNING, RECOVERING, FINISHED]


def test_a_recovering_job_can_be_stopped(backend: Bench, held: Strings) -> None:
    job = held.submit(backend)
    held.driver().kill()
    second = held.driver()
    wait_for_state(backend, job, RECOVERING)
    backend.stop(job)
    assert backend.wait(job).state == KILLED
    assert gone(second.pid)
    assert backend.history(job) == [*STARTED, RECOVERING, KILLED]


@pytest.mark.integration
def test_a_new_server_reads_the_state_of_a_recovering_job(tmp_path: Path, held: Strings) -> None:
    with host_bench(tmp_path) as (host, one):
        job = held.submit(one)
        driver = held.driver()
        one.wait_running(job)
        host.kill()
        driver.kill()
        second = held.driver()
        host.start()
        wait_for_state(one, job, RECOVERING)
        host.restart()
        eventually(lambda: one.launcher_log(job).count("adopted") == 2, "the next server adopts the job")
        assert one.row(job).state == RECOVERING
        second.say(op="progress", step=1)
        wait_for_state(one, job, RUNNING)
        second.close()
        assert one.wait(job).state == FINISHED
        assert one.history(job) == [*STARTED, RECOVERING, RUNNING, FINISHED]


def test_the_driver_reports_the_number_of_training_workers(backend: Bench, held: Strings) -> None:
    job = held.submit(backend)
    driver = held.driver()
    driver.hello()
    driver.spawn(1, "cpu-0")
    worker = held.worker()
    eventually(lambda: backend.told(job, wire.WORKERS) == 1, "the server counts the processes of the job")
    driver.say(op="progress", workers=0, generation=2, resizes=1, deaths=3)
    eventually(lambda: backend.told(job, wire.WORKERS) == 0, "the report of the driver replaces the count")
    worker.close()
    driver.hear()
    driver.say(op="progress", step=1)
    eventually(lambda: backend.told(job, wire.STEP) == 1, "the step arrives")
    assert backend.told(job, wire.WORKERS) == 0
    assert [backend.told(job, name) for name in (wire.GENERATION, wire.RESIZES, wire.DEATHS)] == [2, 1, 3]
    driver.close()
    backend.wait(job)


@given(st.lists(st.integers(0, 3), max_size=30))
def test_restarts_are_allowed_while_the_job_makes_progress(steps: list[int]) -> None:
    """A restart is refused if the last MOST restarts did not increase the highest step."""
    restarts = Restarts()
    highest: list[int] = []
    for step in steps:
        highest.append(max([step, *highest]))
        fruitless = len(highest) > Restarts.MOST and len(set(highest[-Restarts.MOST - 1 :])) == 1
        restarts.reach(step)
        restarts = Restarts(**asdict(restarts))  # as another process reads it
        assert restarts.again() is not fruitless
        if fruitless:
            break
