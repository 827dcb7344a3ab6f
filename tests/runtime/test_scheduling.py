"""Decisions of the scheduler carried out with real processes, mostly on 2 slots."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from puppets import strings
from runtime_support import Bench, bench, host_bench
from support import eventually

from dlicmd.contract.states import FINISHED, PENDING, RUNNING
from local_backend.runtime.planning import Plans
from local_backend.runtime.resizing import ResizeError
from local_backend.scheduler import plans
from local_backend.store import execs

#: Succeeds as soon as a file `go` exists in its folder.
WAIT = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\n"


def go(one: Bench, job: str) -> None:
    (one.paths(job).code(one.row(job).workload) / "go").touch()


@pytest.mark.integration
def test_a_fixed_job_on_a_lent_slot_is_queued_again_at_its_old_position(backend: Bench) -> None:
    Plans(backend.database).change(lambda _: plans.parse({"plans": [
        {"name": "owner"}, {"name": "borrower", "reclaim_grace": 0},
    ]}))
    old, young = (backend.submit(WAIT, consumer="borrower") for _ in range(2))
    backend.wait_running(old)
    backend.wait_running(young)
    last = backend.submit(WAIT, consumer="borrower")
    owner = backend.submit(WAIT, consumer="owner")
    backend.wait_running(owner)
    eventually(lambda: backend.row(young).state == PENDING, "the job is pending again")
    assert owner in backend.launcher_log(young)
    assert backend.row(old).state == RUNNING
    go(backend, owner)
    assert backend.wait(owner).state == FINISHED
    backend.wait_running(young)
    assert backend.row(last).state == PENDING
    assert backend.row(young).attempt == 2
    for job in (old, young, last):
        go(backend, job)
        assert backend.wait(job).state == FINISHED


@pytest.mark.integration
def test_a_stop_during_a_reclaim_ends_the_job(backend: Bench) -> None:
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen('ready', 'w').write('x')\n" + WAIT
    Plans(backend.database).change(lambda _: plans.parse({"plans": [
        {"name": "owner"}, {"name": "borrower", "reclaim_grace": 0},
    ]}))
    lent = [backend.submit(stubborn, consumer="borrower") for _ in range(2)]
    for job in lent:
        backend.wait_for_file(job, "ready")
    owner = backend.submit(WAIT, consumer="owner")
    eventually(lambda: "stop requested" in backend.launcher_log(lent[1]), "the server asks the job to stop")
    backend.stop(lent[1])
    assert backend.wait(lent[1]).state == "KILLED"
    backend.wait_running(owner)
    for job in (lent[0], owner):
        go(backend, job)
        backend.wait(job)


def test_workers_of_a_hanging_driver_are_killed_to_reclaim_their_slots(tmp_path: Path) -> None:
    with strings() as held, bench(tmp_path, leave_grace=0.5) as one:
        job = held.submit(one)
        driver = held.driver()
        driver.hello()
        for number, slot in ((1, "cpu-0"), (2, "cpu-1")):
            driver.spawn(number, slot)
        workers = [held.worker() for _ in range(2)]
        one.wait_running(job)
        other = one.submit(WAIT)
        assert driver.allocation() == ["cpu-0"]
        assert driver.hear()["signal"] == signal.SIGKILL, "worker 2 was not killed by the runner"
        one.wait_running(other)
        assert "worker 2 " in one.launcher_log(job) and "0.5 s" in one.launcher_log(job)
        go(one, other)
        one.wait(other)
        driver.close()
        one.wait(job)
        del workers  # The workers end when their connections are closed.


def test_two_half_slot_jobs_share_a_slot_and_a_third_waits(tmp_path: Path) -> None:
    with bench(tmp_path, slots=1) as one:
        halves = [one.submit(WAIT, device_share=0.5) for _ in range(3)]
        for job in halves[:2]:
            one.wait_running(job)
        eventually(lambda: "0.5 of a CPU slot" in (one.waits_for(halves[2]) or ""), "the third job is pending")
        go(one, halves[0])
        one.wait_running(halves[2])
        assert one.row(halves[1]).state == RUNNING
        for job in halves:
            go(one, job)
            assert one.wait(job).state == FINISHED


@pytest.mark.integration
def test_a_pack_keeps_its_slot_over_a_restart_of_the_server(tmp_path: Path) -> None:
    with host_bench(tmp_path, slots=3) as (host, one):
        first = one.submit(WAIT, pack="p", cpu_limit=0.6)
        one.wait_running(first)
        host.restart()
        second, third = (one.submit(WAIT, pack="p", cpu_limit=share) for share in (0.4, 0.1))
        one.wait_running(second)
        assert one.row(first).slots == one.row(second).slots
        eventually(lambda: "pack p, which has 0 left" in host.waits_for(third), "the third job waits for the pack")
        other = one.submit(WAIT)
        one.wait_running(other)
        assert one.row(other).slots != one.row(first).slots
        for job in (first, second, third, other):
            go(one, job)
            assert one.wait(job).state == FINISHED


def test_an_elastic_job_with_two_devices_per_worker_gets_two_slots(tmp_path: Path) -> None:
    with strings() as held, bench(tmp_path, slots=4) as one:
        job = held.submit(one, num_worker=1, device_num=2)
        driver = held.driver()
        assert len(driver.hello()) == 2
        driver.close()
        one.wait(job)


def test_a_job_cannot_be_pinned_to_more_slots_than_its_plan_allows(tmp_path: Path) -> None:
    with strings() as held, bench(tmp_path, slots=4) as one:
        Plans(one.database).change(lambda _: plans.parse({"plans": [{"name": "training", "max": 2}]}))
        job = held.submit(one)
        driver = held.driver()
        assert len(driver.hello()) == 2
        one.wait_running(job)
        with pytest.raises(ResizeError, match=r"plan.* only 2"):
            one.supervisor.resize(job, 4)
        assert one.row(job).pinned is None
        driver.close()
        one.wait(job)


def test_a_job_that_is_just_starting_does_not_count_as_stopped(backend: Bench) -> None:
    """Its slots are lent, and their owner claims them at the same moment."""
    Plans(backend.database).change(lambda _: plans.parse({"plans": [
        {"name": "owner", "reserved": 2}, {"name": "borrower", "reclaim_grace": 0},
    ]}))
    jobs = [backend.submit(WAIT, consumer="borrower") for _ in range(2)]
    owners = [backend.submit(WAIT, consumer="owner") for _ in range(2)]
    for job in (*owners, *jobs):
        go(backend, job)
        assert backend.wait(job).state == FINISHED


@pytest.mark.integration
def test_the_last_two_durations_estimate_the_start_of_the_next_job(tmp_path: Path) -> None:
    with bench(tmp_path, slots=1) as one:
        for seconds in (9000.0, 1000.0, 3000.0):
            before = one.submit("pass", name="nightly")
            one.wait(before)
            one.database.write(lambda c, i=before, s=seconds: execs.note(c, i, start_time=1e9, end_time=1e9 + s))
        first = one.submit(WAIT, name="nightly")
        one.wait_running(first)
        second = one.submit(WAIT, name="hourly")
        found = eventually(lambda: one.supervisor.reason(second), "the second job is pending with a reason")
        assert abs(found.estimate - (one.row(first).start_time + 2000)) < 60
        for job in (first, second):
            go(one, job)
            one.wait(job)
