"""Faults of slot sharing over time: endless moves, starvation, slots promised twice."""

from dataclasses import replace

import pytest
from world import World, cpu_slots, job

from local_backend.scheduler.model import GPU, WHOLE, ResourcePlan, Slot
from local_backend.scheduler.policy import decide

HOUR = 3600.0
HALF = WHOLE // 2
A, B = ("local", "a"), ("local", "b")


def tree(*children):
    return ResourcePlan("local", children=children)


def stream(world, hours, priority=5000, **values):
    """Submit a 1-slot job every 10 minutes, and end the oldest running job; return True once local-1 has slots."""
    for number in range(int(hours * 6)):
        world.submit(job(1000 + number, since=world.now, priority=priority, **values))
        world.turn()
        world.wait(600)
        running = sorted((one for one in world.jobs.values() if one.running and one.exec_id != "local-1"),
                         key=lambda one: one.started)
        if running:
            world.end(running[0].exec_id)
        world.turn()
        if world.jobs["local-1"].slots:
            return True
    return False


# --- endless moves


@pytest.mark.parametrize(("slots", "jobs"), [(3, 2), (5, 2), (7, 3), (5, 3)])
@pytest.mark.parametrize("pause", [0.0, 0.5, 2.0])
def test_the_odd_slot_moves_between_jobs_only_now_and_then(slots, jobs, pause):
    world = World(slots)
    world.submit(*(job(n, 1, 8, since=0.0, pause=pause, step=0.2) for n in range(1, jobs + 1)))
    world.turn()
    world.settle(HOUR)
    assert 20 <= world.moves <= 100, "expected 2 moves for about every 60 slot-seconds of difference"


def test_short_memory_does_not_cause_endless_moves():
    """A worker that a job keeps for a while holds its memory, too."""
    world = World(4, tree(ResourcePlan("a", weight=0.5), ResourcePlan("b")), memory=6)
    world.submit(job(1, 1, 4, memory=2, plan=A, since=0.0), job(2, 1, 4, memory=2, pause=2.0, plan=B, since=0.0))
    world.turn()
    world.settle(600)
    assert world.moves <= 20


def test_no_job_is_reclaimed_for_a_plan_that_would_not_get_the_slot():
    world = World(1, tree(ResourcePlan("a"), ResourcePlan("b", reclaim_grace=120.0)))
    world.submit(job(1, plan=B, since=0.0))
    world.turn()
    world.submit(job(2, plan=A, since=1.0))
    for _ in range(10):
        world.wait(121)
        world.turn()
        assert not world.decision.reclaim
    assert world.jobs["local-1"].running != world.jobs["local-2"].running


def test_no_job_is_reclaimed_if_the_queue_head_would_block_the_slot():
    grace = ResourcePlan("c", reclaim_grace=0.0)
    world = World(4, tree(ResourcePlan("a"), ResourcePlan("b"), grace))
    world.submit(*(job(n, plan=("local", "c")) for n in range(1, 5)))
    world.turn()
    world.submit(job(8, 4, plan=A), job(9, 1, plan=B))
    for _ in range(3):
        world.wait(100)
        world.turn()
    assert sum(one.running for one in world.jobs.values()) == 4, "a slot is idle"


def test_reclaim_ignores_slots_that_are_out_of_service():
    world = World(4, tree(ResourcePlan("a", reserved=2), ResourcePlan("b", reclaim_grace=0.0)))
    world.submit(*(job(n, plan=B) for n in range(1, 5)))
    world.turn()
    lost = [slot for n in (3, 4) for slot in world.jobs[f"local-{n}"].slots]
    world.machine = replace(world.machine, drained=dict.fromkeys(lost, "lost"))
    world.wait(9)
    world.submit(job(9, plan=A, since=world.now))
    decision = decide(world.machine, world.plans, world.jobs.values(), world.now)
    assert list(decision.reclaim) == ["local-2"], "expected the youngest job on a usable slot"


def test_a_starting_or_leaving_job_is_not_reclaimed():
    world = World(2, tree(ResourcePlan("a"), ResourcePlan("b", reclaim_grace=0.0)))
    world.submit(job(1, plan=B), job(2, plan=B))
    world.turn()
    world.submit(job(3, plan=A))
    one, two = world.jobs["local-1"], world.jobs["local-2"]
    for changes, expected in [
        ({}, ["local-2"]), ({"movable": False}, ["local-1"]), ({"movable": False, "leaving": True}, []),
        ({"movable": False, "elastic": True}, ["local-1"]),
    ]:
        jobs = [one, replace(two, **changes), world.jobs["local-3"]]
        assert list(decide(world.machine, world.plans, jobs, 9.0).reclaim) == expected


# --- starvation


def test_a_parked_job_keeps_the_urgency_that_it_gains():
    world = World(1)
    world.submit(job(1, 1, 1, since=0.0))
    world.turn()
    world.wait(10)
    world.submit(job(2, 1, 1, since=10.0, priority=6000))
    had = 0.0
    for _ in range(24 * 60):
        world.turn()
        world.wait(60)
        had += 60 * world.slots(1)
    assert had > 6 * HOUR, "expected half of the time after the wait has made up for the lower priority"
    assert world.moves <= 40


def test_a_decision_is_due_when_a_parked_job_gets_more_urgent():
    world = World(1)
    world.submit(job(1, 1, 1, since=0.0))
    world.turn()
    world.wait(10)
    world.submit(job(2, 1, 1, since=10.0, priority=6000))
    assert world.turn().again == 10 + HOUR


def test_small_jobs_do_not_starve_a_parked_job_that_needs_two_slots():
    world = World(2)
    world.submit(job(1, 1, 1, per_worker=2))
    world.turn()
    world.submit(job(2, priority=9000))
    world.turn()
    assert not world.slots(1)
    world.end("local-2")
    world.submit(*(job(n) for n in (3, 4)))
    assert stream(world, hours=6)


def test_a_job_that_waits_for_memory_is_not_starved():
    world = World(8, memory=4)
    world.submit(*(job(n, memory=1, since=0.0) for n in range(2, 6)))
    world.turn()
    world.submit(job(1, memory=4, since=0.0, priority=9000))
    assert stream(world, hours=6, memory=1)


def test_a_job_at_the_limit_of_its_plan_is_not_starved():
    world = World(8, tree(ResourcePlan("training", most=2)))
    world.submit(*(job(n, since=0.0) for n in range(2, 4)))
    world.turn()
    world.submit(job(1, 2, since=0.0, priority=9000))
    assert stream(world, hours=6)


def test_jobs_start_at_once_when_the_head_of_the_queue_expires():
    world = World(4)
    world.submit(job(1))
    world.turn()
    world.submit(job(2, 4, since=1.0, patience=50.0), job(3, 2, since=2.0))
    world.turn()
    world.wait(51)
    decision = decide(world.machine, world.plans, world.jobs.values(), world.now)
    assert list(decision.expired) == ["local-2"]
    assert list(decision.start) == ["local-3"]


def test_the_patience_of_a_requeued_job_starts_again():
    again = job(1, since=0.0, patience=300.0, requeued=3000.0)
    holder = replace(job(2), running=True, slots=("cpu-0",), held=("cpu-0",))
    machine = World(1).machine
    assert not decide(machine, World(1).plans, [again, holder], 3200.0).expired
    assert decide(machine, World(1).plans, [again, holder], 3300.0).expired


# --- memory


def test_a_starting_job_holds_the_memory_of_all_its_workers():
    world = World(8, memory=4)
    world.submit(job(1, 1, 4, memory=1))
    world.turn()
    world.jobs["local-1"] = replace(world.jobs["local-1"], movable=False)
    world.submit(job(2, memory=1))
    assert world.turn().waiting["local-2"].code == "MEMORY"


def test_leaving_workers_hold_their_memory_until_they_have_left():
    world = World(8, memory=4)
    world.slow = True
    world.submit(job(1, 1, 4, memory=1))
    world.turn()
    world.submit(job(2, memory=2))
    assert world.turn().waiting["local-2"].code == "LEAVING"
    world.release("local-1")
    world.turn()
    assert world.slots(2) == 1


def test_a_job_grows_only_into_memory_that_other_jobs_do_not_need():
    world = World((*cpu_slots(8), Slot("gpu-0", GPU, "0")), memory=8)
    world.submit(job(1, 1, 8, memory=1))
    world.turn()
    world.submit(job(2, kind=GPU, memory=1))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (7, 1)


def test_a_job_without_a_memory_request_starts_when_memory_is_short():
    world = World(4, memory=4)
    world.submit(job(1, memory=4), job(2, 1, 2))
    world.turn()
    world.machine = replace(world.machine, memory=3)
    world.submit(job(3))
    assert not decide(world.machine, world.plans, world.jobs.values(), 1.0).waiting


# --- during changes


def test_slots_are_kept_for_a_job_that_can_use_them_soon():
    """The job has just been resized and keeps its slots for a while; then it gets the slots that became free."""
    world = World(16)
    world.submit(*(job(n, user="ann") for n in range(1, 9)), *(job(n, user="eve") for n in range(11, 18)),
                 job(100, 1, 16, user="bob", step=1.0, pause=2.0))
    world.turn()
    world.submit(*(job(n, user="ann", since=1.0) for n in range(200, 230)))
    for number in range(11, 18):
        world.wait(1.0)
        world.end(f"local-{number}")
        world.turn()
    world.settle(100)
    assert world.slots(100) == 8


def test_an_unmovable_job_gets_the_free_slots_once_it_is_movable():
    world = World(8)
    world.submit(*(job(n, user="ann") for n in range(1, 5)), *(job(n, user="eve") for n in (11, 12)),
                 job(100, 1, 8, user="bob"))
    world.turn()
    world.submit(*(job(n, user="ann", since=1.0) for n in range(200, 230)))
    world.jobs["local-100"] = replace(world.jobs["local-100"], movable=False)
    world.end("local-11")
    world.end("local-12")
    world.turn()
    world.jobs["local-100"] = replace(world.jobs["local-100"], movable=True)
    world.turn()
    assert world.slots(100) == 4


@pytest.mark.parametrize("elastic", [False, True])
def test_a_slot_of_a_job_whose_kind_has_changed_is_not_given_again(elastic):
    """The job started on a CPU slot. Then the server restarted, and found a GPU."""
    world = World((*cpu_slots(2), Slot("gpu-0", GPU, "0")))
    world.slow = True
    most = 1 if elastic else None
    world.submit(job(1, 1, most, kind=GPU, running=True, slots=("cpu-0",), held=("cpu-0",)))
    world.submit(job(2), job(3, 2), job(4, kind=GPU))
    world.turn()
    assert world.jobs["local-2"].slots == ("cpu-1",)
    assert not world.jobs["local-3"].running, "the job got a slot that is in use"
    assert set(world.jobs["local-1"].slots) <= {"cpu-0", "gpu-0"}
    world.end("local-1")
    world.end("local-2")
    world.turn()
    assert world.slots(3) == 2
