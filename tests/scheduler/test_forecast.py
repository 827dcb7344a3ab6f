"""The forecast of a change of the plans is what happens after the change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import World, job

from local_backend.scheduler.forecast import HORIZON, settled, shares
from local_backend.scheduler.model import ResourcePlan

A, B = ("local", "a"), ("local", "b")


def tree(**plans: dict[str, object]) -> ResourcePlan:
    return ResourcePlan("local", children=tuple(ResourcePlan(name, **values) for name, values in plans.items()))


EVEN = tree(a={}, b={})


@given(
    jobs=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5), st.sampled_from([A, B]), st.sampled_from("xyz"),
                            st.booleans()), min_size=1, max_size=6),
    weights=st.tuples(st.integers(1, 4), st.integers(1, 4)), reserved=st.integers(0, 4),
    most=st.none() | st.integers(0, 8), grace=st.none() | st.just(0.0), slow=st.booleans(),
)
def test_a_forecast_is_what_then_happens(*, jobs, weights, reserved, most, grace, slow):
    world = World(6, EVEN)
    for number, (least, more, plan, user, elastic) in enumerate(jobs, 1):
        world.submit(job(number, least, least + more if elastic else None, plan=plan, user=user))
    world.turn()
    world.wait(100.0)
    changed = tree(a={"weight": float(weights[0]), "reserved": reserved},
                   b={"weight": float(weights[1]), "most": most, "reclaim_grace": grace})
    forecast = {one.exec_id: len(one.slots)
                for one in settled(world.machine, changed, world.jobs.values(), world.now)}
    world.plans, world.slow = changed, slow
    world.settle(HORIZON)
    assert forecast == {name: len(one.slots) for name, one in world.jobs.items()}


def test_a_job_that_is_being_stopped_leaves_its_slots():
    world = World(4, EVEN)
    world.submit(job(1, 1, 4, plan=A))
    world.turn()
    world.submit(replace(job(2, 1, 4, plan=B), exec_id="local-2"))
    world.jobs["local-1"] = replace(world.jobs["local-1"], leaving=True)
    assert {one.exec_id: len(one.slots) for one in settled(world.machine, EVEN, world.jobs.values(), 1.0)} == {
        "local-2": 4,
    }


def test_shares_say_what_is_due_and_used():
    world = World(4, tree(a={"weight": 3.0}, b={}))
    world.submit(job(1, 1, 4, plan=A, user="ann"), job(2, 1, 4, plan=B, user="bob"))
    world.turn()
    found = {(one.plan, one.user): (one.due, one.used, one.wanted)
             for one in shares(world.machine, world.plans, world.jobs.values())}
    assert found == {
        ("/local", ""): (4, 4, 8), ("/local/a", ""): (3, 3, 4), ("/local/a", "ann"): (3, 3, 4),
        ("/local/b", ""): (1, 1, 4), ("/local/b", "bob"): (1, 1, 4),
    }


@pytest.mark.parametrize("plan", [("local",), ("local", "gone")])
def test_users_of_the_outermost_plan_are_below_it(plan):
    world = World(4, tree(a={}))
    world.submit(job(1, 1, 4, plan=plan, user="ann"))
    world.turn()
    found = [(one.plan, one.user, one.used) for one in shares(world.machine, world.plans, world.jobs.values())]
    assert found == [("/local", "", 4), ("/local", "ann", 4), ("/local/a", "", 0)]
