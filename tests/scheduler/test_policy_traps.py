"""Ways in which sharing slots goes wrong over time: endless moves, starvation, promises made twice."""

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
    """Every ten minutes a new job of one slot comes, and the oldest of those that run ends; True once local-1 runs,
    with slots."""
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
def test_the_odd_slot_changes_hands_now_and_then_and_not_all_the_time(slots, jobs, pause):
    world = World(slots)
    world.submit(*(job(n, 1, 8, since=0.0, pause=pause, step=0.2) for n in range(1, jobs + 1)))
    world.turn()
    world.settle(HOUR)
    assert 20 <= world.moves <= 100, "two moves for about every 60 slot-seconds of difference"


def test_workers_that_are_kept_for_a_while_keep_their_memory():
    world = World(4, tree(ResourcePlan("a", weight=0.5), ResourcePlan("b")), memory=6)
    world.submit(job(1, 1, 4, memory=2, plan=A, since=0.0), job(2, 1, 4, memory=2, pause=2.0, plan=B, since=0.0))
    world.turn()
    world.settle(600)
    assert world.moves <= 20


def test_nobody_is_stopped_for_an_owner_who_would_not_get_the_slot():
    world = World(1, tree(ResourcePlan("a"), ResourcePlan("b", reclaim_grace=120.0)))
    world.submit(job(1, plan=B, since=0.0))
    world.turn()
    world.submit(job(2, plan=A, since=1.0))
    for _ in range(10):
        world.wait(121)
        world.turn()
        assert not world.decision.reclaim
    assert world.jobs["local-1"].running != world.jobs["local-2"].running


def test_nobody_is_stopped_when_the_head_of_the_queue_would_be_in_the_way():
    grace = ResourcePlan("c", reclaim_grace=0.0)
    world = World(4, tree(ResourcePlan("a"), ResourcePlan("b"), grace))
    world.submit(*(job(n, plan=("local", "c")) for n in range(1, 5)))
    world.turn()
    world.submit(job(8, 4, plan=A), job(9, 1, plan=B))
    for _ in range(3):
        world.wait(100)
        world.turn()
    assert sum(one.running for one in world.jobs.values()) == 4, "no slot is idle"


def test_what_is_out_of_service_is_no_gain():
    world = World(4, tree(ResourcePlan("a", reserved=2), ResourcePlan("b", reclaim_grace=0.0)))
    world.submit(*(job(n, plan=B) for n in range(1, 5)))
    world.turn()
    lost = [slot for n in (3, 4) for slot in world.jobs[f"local-{n}"].slots]
    world.machine = replace(world.machine, drained=dict.fromkeys(lost, "lost"))
    world.wait(9)
    world.submit(job(9, plan=A, since=world.now))
    decision = decide(world.machine, world.plans, world.jobs.values(), world.now)
    assert list(decision.reclaim) == ["local-2"], "the youngest on a slot that can be used"


def test_whoever_begins_or_is_leaving_already_is_not_stopped_for_others():
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


# --- nobody waits for ever


def test_a_parked_job_gets_more_urgent_and_keeps_that():
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
    assert had > 6 * HOUR, "half of what is left when its hours of waiting have made up for its priority"
    assert world.moves <= 40


def test_it_is_looked_at_again_when_a_parked_job_gets_more_urgent():
    world = World(1)
    world.submit(job(1, 1, 1, since=0.0))
    world.turn()
    world.wait(10)
    world.submit(job(2, 1, 1, since=10.0, priority=6000))
    assert world.turn().again == 10 + HOUR


def test_a_parked_job_that_needs_two_slots_at_once_is_not_starved_by_small_ones():
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


def test_a_job_that_waits_for_room_in_its_plan_is_not_starved():
    world = World(8, tree(ResourcePlan("training", most=2)))
    world.submit(*(job(n, since=0.0) for n in range(2, 4)))
    world.turn()
    world.submit(job(1, 2, since=0.0, priority=9000))
    assert stream(world, hours=6)


def test_when_the_head_of_the_queue_gives_up_others_begin_at_once():
    world = World(4)
    world.submit(job(1))
    world.turn()
    world.submit(job(2, 4, since=1.0, patience=50.0), job(3, 2, since=2.0))
    world.turn()
    world.wait(51)
    decision = decide(world.machine, world.plans, world.jobs.values(), world.now)
    assert list(decision.expired) == ["local-2"]
    assert list(decision.start) == ["local-3"]


def test_a_job_that_is_queued_again_has_its_patience_again():
    again = job(1, since=0.0, patience=300.0, requeued=3000.0)
    holder = replace(job(2), running=True, slots=("cpu-0",), held=("cpu-0",))
    machine = World(1).machine
    assert not decide(machine, World(1).plans, [again, holder], 3200.0).expired
    assert decide(machine, World(1).plans, [again, holder], 3300.0).expired


# --- memory


def test_a_job_that_begins_has_the_memory_of_all_its_workers():
    world = World(8, memory=4)
    world.submit(job(1, 1, 4, memory=1))
    world.turn()
    world.jobs["local-1"] = replace(world.jobs["local-1"], movable=False)
    world.submit(job(2, memory=1))
    assert world.turn().waiting["local-2"].code == "MEMORY"


def test_the_memory_of_workers_that_are_leaving_is_theirs_until_they_have_left():
    world = World(8, memory=4)
    world.slow = True
    world.submit(job(1, 1, 4, memory=1))
    world.turn()
    world.submit(job(2, memory=2))
    assert world.turn().waiting["local-2"].code == "LEAVING"
    world.release("local-1")
    world.turn()
    assert world.slots(2) == 1


def test_jobs_on_one_kind_of_slot_grow_only_into_memory_that_others_do_not_need():
    world = World((*cpu_slots(8), Slot("gpu-0", GPU, "0")), memory=8)
    world.submit(job(1, 1, 8, memory=1))
    world.turn()
    world.submit(job(2, kind=GPU, memory=1))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (7, 1)


def test_who_asks_for_no_memory_does_not_suffer_from_a_lack_of_it():
    world = World(4, memory=4)
    world.submit(job(1, memory=4), job(2, 1, 2))
    world.turn()
    world.machine = replace(world.machine, memory=3)
    world.submit(job(3))
    assert not decide(world.machine, world.plans, world.jobs.values(), 1.0).waiting


# --- while something is under way


def test_what_a_job_can_use_soon_is_kept_for_it():
    """It has just been given other slots, and keeps these for a while; then it gets what has come free."""
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


def test_a_job_that_cannot_be_told_yet_gets_what_comes_free_when_it_can():
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
