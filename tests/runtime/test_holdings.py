"""The history of slots that the supervisor writes for real processes, and the slot view at the same time."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from puppets import strings
from runtime_support import Bench, bench, host_bench, runner_of
from support import eventually

from dlicmd.contract.states import FINISHED, KILLED, PENDING, RUNNING
from local_backend.runtime.occupancy import Holder, SlotPlace, places
from local_backend.runtime.planning import Plans
from local_backend.runtime.starter import Starter
from local_backend.scheduler import plans
from local_backend.scheduler.model import Machine
from local_backend.scheduler.slots import cpu_slots
from local_backend.store import holdings

WAIT = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\n"
NIGHT = {"plans": [{"name": "training"}, {"name": "night"}]}
LENT = {"plans": [{"name": "owner"}, {"name": "borrower", "reclaim_grace": 0}]}


def go(one: Bench, job: str) -> None:
    (one.paths(job).code(one.row(job).workload) / "go").touch()


def history(one: Bench, job: str) -> list[tuple[str, str, bool]]:
    """Return (slot, consumer, whether it is over) for every interval of a job, oldest first."""
    found = one.database.read(lambda c: holdings.intervals(c, 0.0, 1e12, None, 1000))
    return [
        (row["slot"], row["consumer"], row["until"] is not None) for row in found if row["exec_id"] == job
    ]


def agree(one: Bench, job: str) -> bool:
    """Return whether the row and the history agree."""
    held = one.database.read(lambda c: holdings.held(c, job))
    return sorted(json.loads(one.row(job).slots or "[]")) == [*held]


def test_a_job_holds_its_slot_from_its_start_to_its_end(backend: Bench) -> None:
    Plans(backend.database).change(lambda _: plans.parse(NIGHT))
    job = backend.submit(WAIT, consumer="night")
    backend.wait_running(job)
    assert history(backend, job) == [("cpu-0", "/local/night", False)]
    go(backend, job)
    row = backend.wait(job)
    assert history(backend, job) == [("cpu-0", "/local/night", True)] and row.slots is None
    (line,) = backend.database.read(lambda c: holdings.intervals(c, 0.0, 1e12, None, 1000))
    assert line["until"] == row.end_time and line["since"] <= (row.start_time or 0) and line["user"] == row.creator


def test_a_deleted_job_frees_its_slots_and_stays_in_the_history(backend: Bench) -> None:
    job = backend.submit(WAIT)
    backend.wait_running(job)
    backend.delete(job)
    eventually(lambda: not backend.database.read(holdings.holders), "no job holds a slot")
    assert history(backend, job) == [("cpu-0", "/local/training", True)]


def test_a_change_of_plans_begins_a_new_interval_in_the_history(backend: Bench) -> None:
    job = backend.submit(WAIT, consumer="night")
    backend.wait_running(job)
    Plans(backend.database).change(lambda _: plans.parse(NIGHT))
    assert history(backend, job) == [("cpu-0", "/local/training", True), ("cpu-0", "/local/night", False)]
    assert agree(backend, job)
    go(backend, job)
    backend.wait(job)


def test_an_attempt_that_cannot_begin_holds_no_slot(backend: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> int:
        raise OSError(11, "no more processes")

    monkeypatch.setattr(Starter, "start", fails)
    job = backend.submit(WAIT)
    eventually(lambda: "no more processes" in (backend.row(job).message or ""), "the message has the cause")
    assert history(backend, job) == [("cpu-0", "/local/training", True)] and agree(backend, job)
    monkeypatch.undo()
    backend.stop(job)
    assert backend.wait(job).state == KILLED


def test_released_slots_are_leaving_and_stay_held_until_they_are_free(tmp_path: Path) -> None:
    with strings() as held, bench(tmp_path) as one:
        supervisor = one.supervisor  # type: ignore[attr-defined]
        job = held.submit(one)
        driver = held.driver()
        driver.hello()
        for number, slot in ((1, "cpu-0"), (2, "cpu-1")):
            driver.spawn(number, slot)
        workers = [held.worker() for _ in range(2)]
        one.wait_running(job)
        first, second = (place.slot for place in supervisor.places())
        eventually(lambda: one.held(job), "the runner has reported the slots it holds")
        eventually(lambda: _resized(supervisor, job), "the job gives up 1 slot")
        assert supervisor.places() == [
            SlotPlace(first, (Holder(job),)), SlotPlace(second, (Holder(job, leaving=True),)),
        ]
        assert history(one, job)[1] == ("cpu-1", "/local/training", False)
        assert driver.allocation() == ["cpu-0"]
        workers[1].close()
        eventually(lambda: supervisor.places()[1] == SlotPlace(second), "the second slot is free")
        assert history(one, job)[1] == ("cpu-1", "/local/training", True) and agree(one, job)
        driver.close()
        one.wait(job)
        assert history(one, job)[0][2]
        # The row shows the end of a job before the supervisor releases its slots.
        eventually(lambda: supervisor.places() == [SlotPlace(first), SlotPlace(second)], "both slots are free")


def _resized(supervisor, job: str) -> bool:
    return bool(supervisor.resize(job, 1).before)


@pytest.mark.integration
def test_a_job_that_is_pending_again_keeps_its_history_over_a_restart(tmp_path: Path) -> None:
    with host_bench(tmp_path) as (host, one):
        Plans(one.database).change(lambda _: plans.parse(LENT))
        old, job = (one.submit(WAIT, consumer="borrower") for _ in range(2))
        for name in (old, job):
            one.wait_running(name)
        owner = one.submit(WAIT, consumer="owner")
        one.wait_running(owner)
        eventually(lambda: one.row(job).state == PENDING, "the job is pending again")
        assert one.row(job).slots is None
        host.restart()
        eventually(lambda: "adopted" in one.launcher_log(owner), "the server adopts the other job")
        for name in (old, owner):
            go(one, name)
            assert one.wait(name).state == FINISHED
        one.wait_running(job)
        go(one, job)
        assert one.wait(job).state == FINISHED
        assert [line[2] for line in history(one, job)] == [True, True]


@pytest.mark.integration
def test_row_and_history_agree_after_the_server_is_killed(tmp_path: Path) -> None:
    with host_bench(tmp_path) as (host, one):
        job, other = one.submit(WAIT), one.submit(WAIT)
        for name in (job, other):
            one.wait_running(name)
        host.kill()
        os.kill(runner_of(one, other), signal.SIGKILL)
        go(one, job)
        eventually(lambda: not one.leftovers(job) and not one.leftovers(other), "both jobs end without a server")
        assert agree(one, job) and agree(one, other)
        host.start()
        row = one.wait(job)
        one.wait(other)
        assert row.state == FINISHED and one.database.read(holdings.holders) == []
        (line,) = [
            row for row in one.database.read(lambda c: holdings.intervals(c, 0.0, 1e12, None, 9))
            if row["exec_id"] == job
        ]
        assert line["until"] == row.end_time, "the interval must end with the job, not when a server detects the end"


def test_the_history_of_an_older_job_begins_with_its_adoption(tmp_path: Path) -> None:
    with host_bench(tmp_path) as (host, one):
        job = one.submit(WAIT)
        one.wait_running(job)
        host.kill()
        one.database.write(lambda c: c.exec_driver_sql("DELETE FROM holdings"))
        host.start()
        eventually(lambda: history(one, job) == [("cpu-0", "/local/training", False)], "the history has the interval")
        assert one.row(job).state == RUNNING and agree(one, job)
        go(one, job)
        one.wait(job)


def test_a_slot_being_added_is_not_leaving_and_a_drained_slot_is_marked() -> None:
    """Read between two writes of the supervisor: the job holds 0 and 1, and its newest allocation is 1 and 2."""
    slots = cpu_slots(4)
    allocation = SimpleNamespace(slots=slots[1:3])
    active = SimpleNamespace(exec_id="local-1", slots=slots[:2], allocation=allocation, share=1.0)
    found = places(Machine(slots, drained={"cpu-3": "lost"}), [active])  # type: ignore[list-item]
    assert [place.holders for place in found] == [
        (Holder("local-1", leaving=True),), (Holder("local-1"),), (Holder("local-1"),), (),
    ]
    assert [place.drained for place in found] == [None, None, None, "lost"]
