"""Who gets what, when and why: the policy on a machine of four slots."""

from dataclasses import replace

import pytest
from world import TREE, World, cpu_slots, job

from local_backend.scheduler.model import GPU, Machine, ResourcePlan, Slot
from local_backend.scheduler.reasons import CODES


def test_an_elastic_job_takes_all_and_shares_with_the_next():
    world = World(4)
    world.submit(job(1, 1, 4))
    world.turn()
    assert world.slots(1) == 4
    world.wait(60)
    world.submit(job(2, 1, 4))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (2, 2)
    world.end("local-1")
    world.turn()
    assert world.slots(2) == 4


def test_nothing_is_given_while_its_holder_is_still_leaving():
    world = World(4)
    world.submit(job(1, 1, 4))
    world.turn()
    world.slow = True
    world.wait(60)
    world.submit(job(2, 1, 4))
    decision = world.turn()
    assert world.slots(1) == 2
    assert decision.waiting["local-2"].code == "LEAVING"
    world.release("local-1")
    world.turn()
    assert world.slots(2) == 2


def test_a_fixed_job_starts_with_all_its_slots_or_waits():
    world = World(4)
    world.submit(job(1, 3), job(2, 2))
    decision = world.turn()
    assert world.slots(1) == 3
    reason = decision.waiting["local-2"]
    assert (reason.code, reason.position) == ("SLOTS", 1)
    assert reason.sentence == "waiting for 2 CPU slots; 1 of 4 CPU slots are free"


def test_a_fixed_job_has_elastic_ones_make_room():
    world = World(4)
    world.submit(job(1, 1, 4))
    world.turn()
    world.wait(60)
    world.submit(job(2, 3))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (1, 3)


def test_nobody_is_parked_for_somebody_as_urgent():
    world = World(4)
    world.submit(job(1, 1, 4))
    world.turn()
    world.wait(60)
    world.submit(job(2, 4))
    decision = world.turn()
    assert world.slots(1) == 4
    assert decision.waiting["local-2"].code == "SLOTS"


def test_who_is_more_urgent_parks_others_and_they_come_back():
    world = World(4)
    world.submit(job(1, 1, 4))
    world.turn()
    world.wait(60)
    world.submit(job(2, 4, priority=9000))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (0, 4)
    world.end("local-2")
    world.turn()
    assert world.slots(1) == 4


def test_in_a_plan_by_priority_the_most_urgent_gets_all_that_it_can_use():
    world = World(6, ResourcePlan("local", children=(ResourcePlan("training", by_priority=True),)))
    world.submit(job(1, 1, 6), job(2, 1, 3, priority=6000), job(3, 1, 6, priority=7000))
    world.turn()
    assert [world.slots(n) for n in (1, 2, 3)] == [1, 1, 4]


def test_waiting_makes_more_urgent():
    world = World(4)
    world.submit(job(1, 1, 4))
    world.turn()
    world.wait(60)
    world.submit(job(2, 4, since=60.0))
    world.settle(3700)
    assert (world.slots(1), world.slots(2)) == (0, 4)


def test_elastic_jobs_may_begin_before_the_head_and_make_room_for_it():
    world = World(4)
    world.submit(job(1, 2))
    world.turn()
    world.wait(10)
    world.submit(job(2, 4, since=10.0))
    world.turn()
    world.wait(10)
    world.submit(job(3, 1, 4, since=20.0))
    world.turn()
    assert (world.slots(1), world.slots(3)) == (2, 2)
    world.wait(10)
    world.end("local-1")
    world.turn()
    assert (world.slots(2), world.slots(3)) == (4, 0)


def test_a_fixed_job_overtakes_only_when_the_head_does_not_wait_longer_for_it():
    world = World(4)
    world.submit(job(1, 3, ends=100.0))
    world.turn()
    head = job(2, 4, since=1.0)
    world.submit(head, job(3, 1, since=2.0), job(4, 1, since=3.0, lasts=200.0), job(5, 1, since=4.0, lasts=50.0))
    decision = world.turn()
    assert set(world.jobs) - set(decision.waiting) == {"local-1", "local-5"}
    assert [decision.waiting[f"local-{n}"].code for n in (2, 3, 4)] == ["SLOTS", "QUEUE", "QUEUE"]
    assert decision.waiting["local-2"].estimate == 100.0


def test_users_of_a_plan_get_the_same_however_many_jobs_they_have():
    world = World(8)
    world.submit(*(job(n, 1, 8, user="ann") for n in range(1, 4)), job(4, 1, 8, user="bob"))
    world.turn()
    assert world.slots(4) == 4
    assert sum(world.slots(n) for n in (1, 2, 3)) == 4


def test_plans_share_by_weight_lend_and_take_back():
    plans = ResourcePlan("local", children=(ResourcePlan("a", weight=3.0), ResourcePlan("b")))
    world = World(8, plans)
    world.submit(job(1, 1, 8, plan=("local", "b")))
    world.turn()
    assert world.slots(1) == 8
    world.wait(60)
    world.submit(job(2, 1, 8, plan=("local", "a")))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (2, 6)


def test_what_is_reserved_is_there_even_when_borrowers_have_to_be_parked():
    plans = ResourcePlan("local", children=(ResourcePlan("a", reserved=2), ResourcePlan("b")))
    world = World(2, plans)
    world.submit(job(1, 1, 1, plan=("local", "b")), job(2, 1, 1, plan=("local", "b")))
    world.turn()
    world.wait(60)
    world.submit(job(3, 2, plan=("local", "a")))
    world.turn()
    assert [world.slots(n) for n in (1, 2, 3)] == [0, 0, 2]


def test_limits_of_plans_and_users_hold_and_are_named():
    plans = ResourcePlan("local", children=(ResourcePlan("a", most=3, user_most=2),))
    world = World(8, plans)
    a = ("local", "a")
    world.submit(job(1, 2, plan=a), job(2, 1, plan=a), job(3, 2, plan=a, user="bob"), job(4, 1, 5, plan=a, user="eve"))
    decision = world.turn()
    assert decision.waiting["local-2"].code == "USER_LIMIT"
    assert "ann may have at most 2 slots" in decision.waiting["local-2"].sentence
    assert decision.waiting["local-3"].code == "PLAN_LIMIT"
    assert "/local/a may have at most 3 slots" in decision.waiting["local-3"].sentence
    assert (world.slots(1), world.slots(4)) == (2, 1)


def test_a_lent_slot_with_a_fixed_job_is_taken_back_after_the_grace():
    plans = ResourcePlan("local", children=(ResourcePlan("a"), ResourcePlan("b", reclaim_grace=100.0)))
    world = World(4, plans)
    b = ("local", "b")
    world.submit(*(job(n, 1, plan=b) for n in range(1, 5)))
    world.turn()
    world.wait(50)
    world.submit(job(5, 2, plan=("local", "a"), since=50.0))
    world.turn()
    assert [world.slots(n) for n in range(1, 5)] == [1, 1, 1, 1]
    world.settle(110)
    assert world.slots(5) == 2
    assert [world.slots(n) for n in range(1, 5)].count(1) == 2


def test_memory_is_not_promised_twice():
    world = World(4, memory=100)
    world.submit(job(1, 1, 4, memory=40), job(2, 1, memory=60))
    decision = world.turn()
    assert (world.slots(1), world.slots(2)) == (1, 1)
    world.submit(job(3, 1, memory=10))
    decision = world.turn()
    assert decision.waiting["local-3"].code == "MEMORY"


def test_workers_of_several_slots_get_whole_ones_and_others_the_rest():
    world = World(5)
    world.submit(job(1, 1, 2, per_worker=2), job(2, 1, 5))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (2, 3)


def test_a_job_is_not_resized_before_the_last_time_has_paid_off():
    world = World(4)
    world.submit(job(1, 1, 4, pause=5.0))
    world.turn()
    world.jobs["local-1"] = replace(world.jobs["local-1"], started=-100.0)  # it was given these four a moment ago
    world.wait(10)
    world.submit(job(2, 1, 4))
    decision = world.turn()
    assert (world.slots(1), world.slots(2)) == (3, 1), "the newcomer's floor is given at once"
    world.wait(1)
    decision = world.turn()
    assert (world.slots(1), world.slots(2)) == (3, 1)
    assert decision.again == pytest.approx(10 + 3 * 5.0)
    world.settle(15)
    assert (world.slots(1), world.slots(2)) == (2, 2)


def test_a_job_shares_at_once_what_it_began_with():
    world = World(4)
    world.submit(job(1, 1, 4, pause=5.0, step=1.0))
    world.turn()
    world.submit(job(2, 1, 4))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (2, 2)


def test_the_odd_slot_rotates():
    world = World(3)
    world.submit(job(1, 1, 3), job(2, 1, 3))
    world.turn()
    first = world.slots(1)
    seen = {first}
    for _ in range(40):
        world.wait(10)
        world.turn()
        seen.add(world.slots(1))
    assert seen == {1, 2}
    assert world.moves <= 2 * 8


def test_a_drained_slot_is_left_by_elastic_jobs_and_given_to_nobody():
    world = World(4)
    world.submit(job(1, 1, 4), job(2, 1))
    world.turn()
    [lost] = world.jobs["local-2"].slots
    drained = {lost, world.jobs["local-1"].slots[0]}
    world.machine = Machine(world.machine.slots, None, dict.fromkeys(drained, "lost"))
    world.turn()
    assert not drained & set(world.jobs["local-1"].slots)
    assert world.slots(1) == 2
    assert world.slots(2) == 1, "a fixed job goes on as long as it can"


def test_kinds_do_not_hold_each_other_up():
    slots = (*cpu_slots(2), Slot("gpu-0", GPU, "GPU-0"))
    world = World(slots)
    world.submit(job(1, 2), job(2, 1), job(3, 1, kind=GPU))
    decision = world.turn()
    assert list(decision.waiting) == ["local-2"]


def test_what_can_never_run_says_why_and_what_to_do():
    world = World((*cpu_slots(4), Slot("gpu-0", GPU, "0"), Slot("gpu-1", GPU, "1")), memory=1 << 30)
    world.submit(job(1, 5), job(2, kind=GPU, per_worker=3), job(3, 2, memory=1 << 30))
    decision = world.turn()
    assert not world.jobs
    world.submit(job(1, 5), job(2, kind=GPU, per_worker=3), job(3, 2, memory=1 << 30))
    from local_backend.scheduler.policy import decide

    decision = decide(world.machine, TREE, world.jobs.values(), 0.0)
    assert decision.impossible == {
        "local-1": "the job needs 5 CPU slots, but this machine has 4; use a smaller --numWorker, or start the server "
                   "with a larger DLI_SLOTS",
        "local-2": "the job needs 3 GPU slots, but this machine has 2; use a smaller --workerDeviceNum",
        "local-3": "the job needs 1024 MiB of memory for each of 2 workers, but this machine has 1024 MiB; use a "
                   "smaller --workerMemory",
    }


def test_every_code_says_what_can_be_done():
    assert {advice for advice, _ in CODES.values()} <= {"wait", "change", "ask"}
    assert all(starts.format(missing=1, slots="1 CPU slot", user="ann") for _, starts in CODES.values())
