"""What belongs to whom: reservations, limits, and the parts of users."""

from dataclasses import replace

import pytest
from world import World, job

from local_backend.scheduler.model import WHOLE, ResourcePlan

HOUR = 3600.0
HALF = WHOLE // 2
A, B = ("local", "a"), ("local", "b")


def tree(*children):
    return ResourcePlan("local", children=children)


# --- what is reserved


def test_what_is_reserved_for_a_plan_is_not_given_to_fixed_jobs_while_it_is_used():
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


def test_a_plan_gets_back_what_is_reserved_for_it_after_the_grace_when_its_job_is_elastic():
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


def test_reservations_below_a_plan_are_its_own():
    world = World(4, tree(ResourcePlan("a", children=(ResourcePlan("v", reserved=4),)), ResourcePlan("b")))
    world.submit(job(1, 4, plan=B, since=0.0), job(2, 1, 4, plan=("local", "a", "v"), since=1.0))
    world.turn()
    assert world.slots(2) == 4
    assert not world.jobs["local-1"].running


def test_two_plans_that_are_promised_more_than_there_is_do_not_block_each_other():
    world = World(4, tree(ResourcePlan("a", reserved=4), ResourcePlan("b", reserved=4)))
    world.submit(job(1, 3, plan=A), job(2, 3, plan=B))
    world.turn()
    assert sum(one.running for one in world.jobs.values()) == 1


def test_a_reservation_holds_below_a_plan_by_priority():
    below = ResourcePlan("x", reserved=3), ResourcePlan("y")
    world = World(4, tree(ResourcePlan("p", by_priority=True, children=below)))
    world.submit(job(1, 1, 4, plan=("local", "p", "x")), job(2, 1, 4, plan=("local", "p", "y"), priority=9000))
    world.turn()
    assert world.slots(1) == 3


@pytest.mark.parametrize("limits", [{"user_most": 1}, {"most": 4}])
def test_what_is_reserved_and_cannot_be_used_is_lent(limits):
    world = World(4, tree(ResourcePlan("a", reserved=4, **limits), ResourcePlan("b")), memory=2)
    world.submit(job(1, 1, 8, plan=A, memory=2), job(2, plan=B), job(3, 1, 4, plan=B))
    world.turn()
    assert [world.slots(n) for n in (1, 2, 3)] == [1, 1, 2]


def test_an_elastic_job_begins_on_what_is_kept_for_a_large_one():
    world = World(5, tree(ResourcePlan("a"), ResourcePlan("b", reserved=2)))
    world.submit(job(1, 4, plan=A))
    world.turn()
    world.submit(job(2, 2, plan=B), job(3, 1, 4, plan=A), job(4, plan=A))
    world.turn()
    assert (world.slots(3), world.decision.waiting["local-4"].code) == (1, "RESERVED")
    world.end("local-1")
    world.turn()
    assert world.slots(2) == 2


def test_reclaim_goes_on_though_an_elastic_job_waits_too():
    world = World(4, tree(ResourcePlan("a"), ResourcePlan("b", reclaim_grace=60.0)))
    world.submit(*(job(n, plan=B, since=0.0) for n in range(1, 5)))
    world.turn()
    world.submit(job(5, plan=A, since=0.0), job(6, 1, 4, plan=A, since=0.0))
    for _ in range(5):
        world.wait(61)
        world.turn()
    assert world.slots(5) + world.slots(6) == 2


def test_a_job_with_fixed_slots_keeps_what_is_not_reserved():
    world = World(4, tree(ResourcePlan("a", reserved=2), ResourcePlan("b")))
    world.submit(job(1, 1, 4, plan=B))
    world.turn()
    world.jobs["local-1"] = replace(world.jobs["local-1"], least=4, most=4, pinned=True)
    world.submit(job(2, 1, 4, plan=A))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (2, 2)


# --- limits


def test_jobs_that_keep_their_slots_for_a_while_stay_within_the_limits():
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
def test_a_job_with_fixed_slots_gets_as_many_of_them_as_there_can_be(world):
    world.submit(job(1, 1, 8, memory=1))
    world.turn()
    one = world.jobs["local-1"]
    world.jobs["local-1"] = replace(one, least=4, most=4, pinned=True)
    world.turn()
    assert world.slots(1) == 2


def test_users_of_a_plan_with_others_below_it_compete_by_urgency_among_themselves():
    world = World(2, tree(ResourcePlan("x"), ResourcePlan("y")))
    world.submit(job(1, plan=("local",), user="ann"), job(2, plan=("local",), user="bob"))
    world.turn()
    world.submit(job(3, plan=("local",), user="ann", priority=5000), job(4, plan=("local",), user="ann", priority=9000))
    world.end("local-2")
    world.turn()
    assert world.jobs["local-4"].running


def test_who_asks_for_more_than_its_limit_is_told_to_change_that():
    world = World(8, tree(ResourcePlan("training", user_most=2)))
    world.submit(job(1, 4), job(2, 2), job(3, 2))
    waiting = world.turn().waiting
    assert [(waiting[f"local-{n}"].code, waiting[f"local-{n}"].advice) for n in (1, 3)] == [
        ("USER_LIMIT", "change"), ("USER_LIMIT", "wait")]


# --- users


def test_a_user_does_not_get_more_by_submitting_more():
    world = World(8)
    world.submit(*(job(n, 1, 2, user="ann") for n in range(1, 4)), job(100, 1, 8, user="bob"))
    world.turn()
    world.submit(*(job(n, 1, 2, user="ann") for n in range(4, 40)))
    world.turn()
    assert world.slots(100) == 4
    reason = world.decision.waiting["local-30"]
    assert (reason.code, reason.advice) == ("SHARE", "wait")
    assert reason.sentence == (
        "waiting for 1 CPU slot; ann already has a fair share, and other users or plans need slots")
    world.submit(job(200, 2, user="ann", priority=9000))
    world.turn()
    assert world.slots(200) == 2, "unless it is more urgent"
    world.end("local-100")
    world.turn()
    assert sum(len(one.slots) for one in world.jobs.values()) == 8, "what nobody else wants is for everybody"


@pytest.mark.parametrize("priority", [4999, 5000])
def test_a_lower_priority_does_not_get_more_than_a_fair_part_by_waiting(priority):
    world = World(8)
    world.submit(*(job(n, user="ann", priority=priority) for n in range(1, 5)), job(100, 1, 8, user="bob"))
    world.turn()
    world.submit(*(job(n, user="ann", since=1.0, priority=priority) for n in range(200, 220)))
    for _ in range(6):
        world.wait(HOUR)
        world.turn()
        assert world.slots(100) == 4


def test_jobs_on_slots_that_are_out_of_service_do_not_keep_others_from_theirs():
    world = World(6)
    world.submit(*(job(n, user="ann") for n in (1, 2, 3)), job(100, 1, 3, user="eve"))
    world.turn()
    lost = [slot for n in (1, 2, 3) for slot in world.jobs[f"local-{n}"].slots]
    world.machine = replace(world.machine, drained=dict.fromkeys(lost, "lost"))
    world.submit(job(200, user="bob"))
    world.turn()
    assert world.slots(200) == 1


def test_ones_own_elastic_jobs_do_not_hold_one_back():
    world = World(6)
    world.submit(job(1, 3, user="ann"), job(2, 1, 2, user="ann", priority=6000), job(3, 1, 8, user="bob"))
    world.turn()
    world.submit(job(4, user="ann", priority=6000))
    world.turn()
    assert world.slots(4) == 1


def test_a_part_of_a_slot_that_is_shared_already_is_nobody_elses_to_grow_into():
    world = World(3)
    world.submit(job(1, share=HALF, user="ann"), *(job(10 + n, 1, 3, user=f"u{n}") for n in range(2)))
    world.turn()
    world.submit(job(2, share=HALF, user="ann"))
    world.turn()
    assert world.slots(2) == 1


def test_who_has_nothing_is_not_told_of_a_part():
    world = World(4)
    world.submit(job(1, 4, user="ann"))
    world.turn()
    world.submit(job(2, 1, 4, user="bob"), job(3, user="eve"))
    waiting = world.turn().waiting
    assert [waiting[f"local-{n}"].code for n in (2, 3)] == ["SLOTS", "QUEUE"]


def test_a_pack_counts_as_the_slot_that_is_all_its_own():
    world = World(8, tree(ResourcePlan("training", user_most=1)))
    world.submit(*(job(n, share=100, pack=f"ann/{n}") for n in range(1, 4)))
    world.turn()
    assert sum(one.running for one in world.jobs.values()) == 1
    world.submit(job(5, share=100, pack="ann/1"))
    world.turn()
    assert world.slots(5) == 1, "whoever joins takes nothing more"


def test_what_others_cannot_use_is_not_left_idle_for_their_sake():
    world = World(4, memory=2)
    world.submit(job(1, 1, 4, user="bob", memory=2))
    world.turn()
    assert world.slots(1) == 1, "there is no memory for more"
    world.submit(*(job(n, user="ann") for n in range(2, 8)))
    world.turn()
    assert sum(len(one.slots) for one in world.jobs.values()) == 4


def test_a_large_job_of_somebody_with_less_than_his_part_begins_though_it_is_more():
    world = World(4)
    world.submit(job(1, 1, 4, user="bob"))
    world.turn()
    world.submit(job(2, 3, user="ann"))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (1, 3)
