"""Decisions of the policy and their reasons, on small machines."""

from dataclasses import replace

import pytest
from world import TREE, World, cpu_slots, job

from local_backend.scheduler.model import GPU, Machine, ResourcePlan, Slot
from local_backend.scheduler.reasons import CODES


def test_an_elastic_job_takes_all_slots_and_shares_with_the_next_job():
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


def test_a_slot_is_not_reallocated_while_its_job_is_leaving():
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


def test_an_elastic_job_shrinks_for_a_fixed_job():
    world = World(4)
    world.submit(job(1, 1, 4))
    world.turn()
    world.wait(60)
    world.submit(job(2, 3))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (1, 3)


def test_no_job_is_parked_for_an_equally_urgent_job():
    world = World(4)
    world.submit(job(1, 1, 4))
    world.turn()
    world.wait(60)
    world.submit(job(2, 4))
    decision = world.turn()
    assert world.slots(1) == 4
    assert decision.waiting["local-2"].code == "SLOTS"


def test_an_urgent_job_parks_another_job_until_it_ends():
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


def test_in_a_priority_plan_the_most_urgent_job_gets_all_it_can_use():
    world = World(6, ResourcePlan("local", children=(ResourcePlan("training", by_priority=True),)))
    world.submit(job(1, 1, 6), job(2, 1, 3, priority=6000), job(3, 1, 6, priority=7000))
    world.turn()
    assert [world.slots(n) for n in (1, 2, 3)] == [1, 1, 4]


def test_waiting_raises_the_urgency_of_a_job():
    world = World(4)
    world.submit(job(1, 1, 4))
    world.turn()
    world.wait(60)
    world.submit(job(2, 4, since=60.0))
    world.settle(3700)
    assert (world.slots(1), world.slots(2)) == (0, 4)


def test_elastic_jobs_start_before_the_head_and_shrink_for_it():
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


def test_a_fixed_job_overtakes_the_head_only_without_delaying_it():
    world = World(4)
    world.submit(job(1, 3, ends=100.0))
    world.turn()
    head = job(2, 4, since=1.0)
    world.submit(head, job(3, 1, since=2.0), job(4, 1, since=3.0, lasts=200.0), job(5, 1, since=4.0, lasts=50.0))
    decision = world.turn()
    assert set(world.jobs) - set(decision.waiting) == {"local-1", "local-5"}
    assert [decision.waiting[f"local-{n}"].code for n in (2, 3, 4)] == ["SLOTS", "QUEUE", "QUEUE"]
    assert decision.waiting["local-2"].estimate == 100.0


def test_users_of_a_plan_share_equally_whatever_their_number_of_jobs():
    world = World(8)
    world.submit(*(job(n, 1, 8, user="ann") for n in range(1, 4)), job(4, 1, 8, user="bob"))
    world.turn()
    assert world.slots(4) == 4
    assert sum(world.slots(n) for n in (1, 2, 3)) == 4


def test_plans_share_by_weight_and_take_back_lent_slots():
    plans = ResourcePlan("local", children=(ResourcePlan("a", weight=3.0), ResourcePlan("b")))
    world = World(8, plans)
    world.submit(job(1, 1, 8, plan=("local", "b")))
    world.turn()
    assert world.slots(1) == 8
    world.wait(60)
    world.submit(job(2, 1, 8, plan=("local", "a")))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (2, 6)


def test_reserved_slots_are_available_even_if_borrowers_are_parked():
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
    assert "ann may have at most 2 " in decision.waiting["local-2"].sentence
    assert decision.waiting["local-3"].code == "PLAN_LIMIT"
    assert "/local/a may have at most 3 " in decision.waiting["local-3"].sentence
    assert (world.slots(1), world.slots(4)) == (2, 1)


def test_a_lent_slot_of_a_fixed_job_is_reclaimed_after_the_grace_time():
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


def test_memory_is_not_allocated_twice():
    world = World(4, memory=100)
    world.submit(job(1, 1, 4, memory=40), job(2, 1, memory=60))
    decision = world.turn()
    assert (world.slots(1), world.slots(2)) == (1, 1)
    world.submit(job(3, 1, memory=10))
    decision = world.turn()
    assert decision.waiting["local-3"].code == "MEMORY"


def test_multi_slot_workers_get_whole_sets_and_other_jobs_the_rest():
    world = World(5)
    world.submit(job(1, 1, 2, per_worker=2), job(2, 1, 5))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (2, 3)


def test_a_job_is_not_resized_before_its_last_resize_has_paid_off():
    world = World(4)
    world.submit(job(1, 1, 4, pause=5.0))
    world.turn()
    world.jobs["local-1"] = replace(world.jobs["local-1"], started=-100.0)  # the 4 slots were allocated a moment ago
    world.wait(10)
    world.submit(job(2, 1, 4))
    decision = world.turn()
    assert (world.slots(1), world.slots(2)) == (3, 1), "the new job must get its minimum at once"
    world.wait(1)
    decision = world.turn()
    assert (world.slots(1), world.slots(2)) == (3, 1)
    assert decision.again == pytest.approx(10 + 3 * 5.0)
    world.settle(15)
    assert (world.slots(1), world.slots(2)) == (2, 2)


def test_a_job_shares_its_initial_slots_at_once():
    world = World(4)
    world.submit(job(1, 1, 4, pause=5.0, step=1.0))
    world.turn()
    world.submit(job(2, 1, 4))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (2, 2)


def test_the_odd_slot_rotates_between_jobs():
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


def test_elastic_jobs_leave_a_drained_slot_and_no_job_gets_it():
    world = World(4)
    world.submit(job(1, 1, 4), job(2, 1))
    world.turn()
    [lost] = world.jobs["local-2"].slots
    drained = {lost, world.jobs["local-1"].slots[0]}
    world.machine = Machine(world.machine.slots, None, dict.fromkeys(drained, "lost"))
    world.turn()
    assert not drained & set(world.jobs["local-1"].slots)
    assert world.slots(1) == 2
    assert world.slots(2) == 1, "a fixed job must keep its drained slot"


def test_kinds_of_slots_do_not_block_each_other():
    slots = (*cpu_slots(2), Slot("gpu-0", GPU, "GPU-0"))
    world = World(slots)
    world.submit(job(1, 2), job(2, 1), job(3, 1, kind=GPU))
    decision = world.turn()
    assert list(decision.waiting) == ["local-2"]


def test_an_impossible_job_is_rejected_with_the_reason_and_a_remedy():
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


def test_every_code_has_an_advice_and_a_sentence():
    assert {advice for advice, _ in CODES.values()} <= {"wait", "change", "ask"}
    assert all(starts.format(missing=1, slots="1 CPU slot", user="ann") for _, starts in CODES.values())
