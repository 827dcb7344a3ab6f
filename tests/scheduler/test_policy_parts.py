"""Reservations, limits, and the fair shares of users."""

from dataclasses import replace

import pytest
from world import World, job

from local_backend.scheduler.model import WHOLE, ResourcePlan

HOUR = 3600.0
HALF = WHOLE // 2
A, B = ("local", "a"), ("local", "b")


def tree(*children):
    return ResourcePlan("local", children=children)


# --- reservations


def test_reserved_slots_in_use_are_not_given_to_jobs_of_other_plans():
    world = World(4, tree(ResourcePlan("a", reserved=4), ResourcePlan("b")))
    world.submit(job(1, 1, 8, plan=A))
    world.turn()
    world.submit(*(job(n, plan=B) for n in (2, 3)), job(4, 1, 4, plan=B))
    world.turn()
    assert world.slots(1) == 4
    assert {world.decision.waiting[f"local-{n}"].code for n in (2, 3, 4)} == {"RESERVED"}
    world.end("local-1")
    world.turn()
    assert [world.slots(n) for n in (2, 3, 4)] == [1, 1, 2]


def test_an_elastic_job_gets_reserved_slots_back_after_the_grace_time():
    world = World(4, tree(ResourcePlan("a", reserved=3), ResourcePlan("b", reclaim_grace=60.0)))
    world.submit(*(job(n, plan=B) for n in (2, 3, 4)))
    world.turn()
    world.submit(job(1, 1, 8, plan=A, since=world.now))
    world.turn()
    assert world.slots(1) == 1
    assert world.decision.again == 60.0
    world.wait(61)
    world.turn()
    assert world.slots(1) == 3
    assert sum(world.slots(n) for n in (2, 3, 4)) == 1


def test_reservations_of_a_child_plan_count_for_its_parent():
    world = World(4, tree(ResourcePlan("a", children=(ResourcePlan("v", reserved=4),)), ResourcePlan("b")))
    world.submit(job(1, 4, plan=B, since=0.0), job(2, 1, 4, plan=("local", "a", "v"), since=1.0))
    world.turn()
    assert world.slots(2) == 4
    assert not world.jobs["local-1"].running


def test_plans_with_overcommitted_reservations_do_not_block_each_other():
    world = World(4, tree(ResourcePlan("a", reserved=4), ResourcePlan("b", reserved=4)))
    world.submit(job(1, 3, plan=A), job(2, 3, plan=B))
    world.turn()
    assert sum(one.running for one in world.jobs.values()) == 1


def test_a_reservation_holds_below_a_priority_plan():
    below = ResourcePlan("x", reserved=3), ResourcePlan("y")
    world = World(4, tree(ResourcePlan("p", by_priority=True, children=below)))
    world.submit(job(1, 1, 4, plan=("local", "p", "x")), job(2, 1, 4, plan=("local", "p", "y"), priority=9000))
    world.turn()
    assert world.slots(1) == 3


@pytest.mark.parametrize("limits", [{"user_most": 1}, {"most": 4}])
def test_reserved_slots_that_cannot_be_used_are_lent(limits):
    world = World(4, tree(ResourcePlan("a", reserved=4, **limits), ResourcePlan("b")), memory=2)
    world.submit(job(1, 1, 8, plan=A, memory=2), job(2, plan=B), job(3, 1, 4, plan=B))
    world.turn()
    assert [world.slots(n) for n in (1, 2, 3)] == [1, 1, 2]


def test_an_elastic_job_starts_on_slots_that_are_kept_for_a_large_job():
    world = World(5, tree(ResourcePlan("a"), ResourcePlan("b", reserved=2)))
    world.submit(job(1, 4, plan=A))
    world.turn()
    world.submit(job(2, 2, plan=B), job(3, 1, 4, plan=A), job(4, plan=A))
    world.turn()
    assert (world.slots(3), world.decision.waiting["local-4"].code) == (1, "RESERVED")
    world.end("local-1")
    world.turn()
    assert world.slots(2) == 2


def test_reclaim_continues_although_an_elastic_job_waits():
    world = World(4, tree(ResourcePlan("a"), ResourcePlan("b", reclaim_grace=60.0)))
    world.submit(*(job(n, plan=B, since=0.0) for n in range(1, 5)))
    world.turn()
    world.submit(job(5, plan=A, since=0.0), job(6, 1, 4, plan=A, since=0.0))
    for _ in range(5):
        world.wait(61)
        world.turn()
    assert world.slots(5) + world.slots(6) == 2


def test_a_pinned_job_keeps_only_slots_that_are_not_reserved():
    world = World(4, tree(ResourcePlan("a", reserved=2), ResourcePlan("b")))
    world.submit(job(1, 1, 4, plan=B))
    world.turn()
    world.jobs["local-1"] = replace(world.jobs["local-1"], least=4, most=4, pinned=True)
    world.submit(job(2, 1, 4, plan=A))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (2, 2)


# --- limits


def test_jobs_that_keep_slots_for_a_while_stay_within_the_limits():
    world = World(8, tree(ResourcePlan("training", most=4)))
    world.submit(job(1, 1, 8, step=10.0))
    world.turn()
    world.wait(1)
    world.submit(job(2, 1, 4, since=1.0))
    world.turn()
    assert world.slots(1) + world.slots(2) == 4
    world.plans = tree(ResourcePlan("training", most=2))
    world.turn()
    assert world.slots(1) + world.slots(2) == 2


@pytest.mark.parametrize(
    "world",
    [World(8, tree(ResourcePlan("training", most=2))), World(2), World(8, tree(ResourcePlan("training")), memory=2)],
)
def test_a_pinned_job_gets_as_many_of_its_slots_as_possible(world):
    world.submit(job(1, 1, 8, memory=1))
    world.turn()
    one = world.jobs["local-1"]
    world.jobs["local-1"] = replace(one, least=4, most=4, pinned=True)
    world.turn()
    assert world.slots(1) == 2


def test_users_of_a_parent_plan_compete_by_urgency():
    world = World(2, tree(ResourcePlan("x"), ResourcePlan("y")))
    world.submit(job(1, plan=("local",), user="ann"), job(2, plan=("local",), user="bob"))
    world.turn()
    world.submit(job(3, plan=("local",), user="ann", priority=5000), job(4, plan=("local",), user="ann", priority=9000))
    world.end("local-2")
    world.turn()
    assert world.jobs["local-4"].running


def test_a_job_larger_than_its_limit_is_advised_to_change_the_request():
    world = World(8, tree(ResourcePlan("training", user_most=2)))
    world.submit(job(1, 4), job(2, 2), job(3, 2))
    waiting = world.turn().waiting
    assert [(waiting[f"local-{n}"].code, waiting[f"local-{n}"].advice) for n in (1, 3)] == [
        ("USER_LIMIT", "change"), ("USER_LIMIT", "wait")]


# --- users


def test_more_submissions_do_not_raise_the_share_of_a_user():
    world = World(8)
    world.submit(*(job(n, 1, 2, user="ann") for n in range(1, 4)), job(100, 1, 8, user="bob"))
    world.turn()
    world.submit(*(job(n, 1, 2, user="ann") for n in range(4, 40)))
    world.turn()
    assert world.slots(100) == 4
    reason = world.decision.waiting["local-30"]
    assert (reason.code, reason.advice) == ("SHARE", "wait")
    assert "1 CPU slot; ann " in reason.sentence
    world.submit(job(200, 2, user="ann", priority=9000))
    world.turn()
    assert world.slots(200) == 2, "a more urgent job must get its slots"
    world.end("local-100")
    world.turn()
    assert sum(len(one.slots) for one in world.jobs.values()) == 8, "slots that no other user wants must be used"


@pytest.mark.parametrize("priority", [4999, 5000])
def test_waiting_does_not_raise_a_low_priority_above_the_fair_share(priority):
    world = World(8)
    world.submit(*(job(n, user="ann", priority=priority) for n in range(1, 5)), job(100, 1, 8, user="bob"))
    world.turn()
    world.submit(*(job(n, user="ann", since=1.0, priority=priority) for n in range(200, 220)))
    for _ in range(6):
        world.wait(HOUR)
        world.turn()
        assert world.slots(100) == 4


def test_jobs_on_drained_slots_do_not_keep_other_jobs_from_slots():
    world = World(6)
    world.submit(*(job(n, user="ann") for n in (1, 2, 3)), job(100, 1, 3, user="eve"))
    world.turn()
    lost = [slot for n in (1, 2, 3) for slot in world.jobs[f"local-{n}"].slots]
    world.machine = replace(world.machine, drained=dict.fromkeys(lost, "lost"))
    world.submit(job(200, user="bob"))
    world.turn()
    assert world.slots(200) == 1


def test_elastic_jobs_of_a_user_do_not_block_other_jobs_of_that_user():
    world = World(6)
    world.submit(job(1, 3, user="ann"), job(2, 1, 2, user="ann", priority=6000), job(3, 1, 8, user="bob"))
    world.turn()
    world.submit(job(4, user="ann", priority=6000))
    world.turn()
    assert world.slots(4) == 1


def test_another_user_does_not_grow_into_a_partly_used_slot():
    world = World(3)
    world.submit(job(1, share=HALF, user="ann"), *(job(10 + n, 1, 3, user=f"u{n}") for n in range(2)))
    world.turn()
    world.submit(job(2, share=HALF, user="ann"))
    world.turn()
    assert world.slots(2) == 1


def test_a_job_of_a_user_without_slots_does_not_wait_for_a_share():
    world = World(4)
    world.submit(job(1, 4, user="ann"))
    world.turn()
    world.submit(job(2, 1, 4, user="bob"), job(3, user="eve"))
    waiting = world.turn().waiting
    assert [waiting[f"local-{n}"].code for n in (2, 3)] == ["SLOTS", "QUEUE"]


def test_a_pack_counts_as_one_whole_slot():
    world = World(8, tree(ResourcePlan("training", user_most=1)))
    world.submit(*(job(n, share=100, pack=f"ann/{n}") for n in range(1, 4)))
    world.turn()
    assert sum(one.running for one in world.jobs.values()) == 1
    world.submit(job(5, share=100, pack="ann/1"))
    world.turn()
    assert world.slots(5) == 1, "a job that joins a pack must need no further slot"


def test_slots_that_other_jobs_cannot_use_are_not_left_idle():
    world = World(4, memory=2)
    world.submit(job(1, 1, 4, user="bob", memory=2))
    world.turn()
    assert world.slots(1) == 1, "memory must limit the job to 1 slot"
    world.submit(*(job(n, user="ann") for n in range(2, 8)))
    world.turn()
    assert sum(len(one.slots) for one in world.jobs.values()) == 4


def test_a_large_job_starts_even_if_it_exceeds_the_fair_share():
    world = World(4)
    world.submit(job(1, 1, 4, user="bob"))
    world.turn()
    world.submit(job(2, 3, user="ann"))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (1, 3)
