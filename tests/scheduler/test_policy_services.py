"""Services beside trainings: a burst takes slots, and gives them back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from world import World, job

from local_backend.runtime import needs
from local_backend.scheduler.model import DEFAULT_PLAN, ROOT, SERVICE_PLAN, ResourcePlan, SchedulerJob
from local_backend.scheduler.surplus import ROTATION


def service(number: int, least: int = 1, most: int = 1, **more: Any) -> SchedulerJob:
    return job(number, least, most, **{"serves": True, "plan": SERVICE_PLAN} | more)


def want(world: World, number: int, slots: int, least: int = 1) -> None:
    """Let a service want so many slots."""
    name = f"local-{number}"
    world.jobs[name] = replace(world.jobs[name], least=min(least, slots), most=slots)
    world.turn()


def training(number: int, **more: Any) -> SchedulerJob:
    return job(number, 1, 8, **{"plan": DEFAULT_PLAN} | more)


def start(slots: int, *jobs: SchedulerJob, plans: ResourcePlan = ROOT) -> World:
    """A machine on which these jobs were submitted one after the other."""
    world = World(slots, plans)
    for one in jobs:
        world.submit(one)
        world.turn()
        world.wait(100.0)
    return world


def test_a_burst_takes_the_slots_that_are_due_to_services_and_gives_them_back() -> None:
    world = start(8, training(1), service(2))
    assert (world.slots(1), world.slots(2)) == (7, 1)
    want(world, 2, 8)
    assert (world.slots(1), world.slots(2)) == (4, 4)
    world.end("local-1")
    world.turn()
    assert world.slots(2) == 8
    world.submit(training(3, since=world.now))
    world.turn()
    want(world, 2, 2)
    assert (world.slots(3), world.slots(2)) == (6, 2)


def test_a_burst_does_not_wait_until_a_training_has_earned_its_last_move() -> None:
    world = start(8, training(1, pause=20.0, step=5.0), service(2))
    for slots in (4, 1, 4, 1, 4):
        world.wait(0.5)
        want(world, 2, slots)
        assert world.slots(2) == slots


def test_two_trainings_still_earn_the_moves_between_them() -> None:
    world = start(8, training(1, pause=20.0), training(2, pause=20.0, user="bob"), service(3))
    before = world.slots(1)
    world.wait(1.0)
    world.submit(training(4, user="eve", since=world.now))
    world.turn()
    want(world, 3, 2)
    assert before - world.slots(1) <= 2 and world.slots(3) == 2


def test_the_odd_slot_stays_with_the_service() -> None:
    world = start(5, training(1), service(2, 1, 5))
    for _ in range(4):
        world.wait(ROTATION + 1.0)
        world.turn()
        assert (world.slots(1), world.slots(2)) == (2, 3)


@pytest.mark.parametrize("more", [{"priority": 9000}, {"plan": ("local",)}, {"since": -100_000.0}])
def test_no_job_takes_the_minimum_of_a_running_service(more: dict[str, Any]) -> None:
    world = start(4, service(1, 2, 2), service(2, 1, 1, user="bob"))
    world.submit(job(3, 4, **more), job(4, 2, 4, **more))
    world.settle()
    assert (world.slots(1), world.slots(2)) == (2, 1) and not world.jobs["local-3"].running


@pytest.mark.parametrize(("minimum", "kept"), [(None, 2), (3, 3), (2, 2), (9, 3)])
def test_a_minimum_that_is_raised_while_a_service_runs_holds_at_once(minimum: int | None, kept: int) -> None:
    world = start(4, service(1, 1, 3), plans=ResourcePlan("local", children=(ResourcePlan("inference"),)))
    world.jobs["local-1"] = needs.wanting(world.jobs["local-1"], 3, minimum, 1, has=world.slots(1))
    world.submit(service(2, 1, 3, user="bob", since=world.now))
    world.settle()
    assert (world.slots(1), world.slots(2)) == (kept, 4 - kept)


@pytest.mark.parametrize(("kernels", "minimum", "has", "expected"), [
    (3, None, None, (2, 3)), (3, 3, None, (3, 3)), (None, 3, None, (3, 3)), (3, 1, 3, (1, 3)), (3, 3, 1, (1, 3)),
    (0, 0, 0, (1, 1)), (9, 9, None, (4, 4)),
])
def test_a_service_competes_for_its_present_minimum(
    kernels: int | None, minimum: int | None, has: int | None, expected: tuple[int, int]
) -> None:
    found = needs.wanting(service(1, 2, 4), kernels, minimum, 1, has)
    assert (found.least, found.most) == expected


def test_a_reservation_does_not_park_a_service() -> None:
    plans = ResourcePlan("local", children=(ResourcePlan("training", reserved=4), ResourcePlan("inference")))
    world = start(4, service(1, 2, 3), plans=plans)
    assert world.slots(1) == 3
    world.submit(training(2, since=world.now))
    world.settle()
    assert (world.slots(1), world.slots(2)) == (2, 2)


def test_a_new_service_takes_a_slot_of_trainings_within_its_share() -> None:
    world = start(4, *(training(number, user=f"user{number}") for number in range(1, 5)), service(5), service(6))
    world.settle()
    assert (world.slots(5), world.slots(6)) == (1, 1)
    world.submit(service(7, since=world.now))
    world.settle(10.0)
    assert world.slots(7) == 0 and sum(world.slots(number) for number in range(1, 5)) == 2


def test_a_service_waits_for_jobs_of_fixed_size() -> None:
    world = start(2, job(1, 2, plan=DEFAULT_PLAN), service(2))
    assert world.decision.waiting["local-2"].code == "SLOTS"
    world.end("local-1")
    world.turn()
    assert world.slots(2) == 1


def test_services_share_their_part_between_users() -> None:
    world = start(8, training(1), service(2, 1, 8), service(3, 1, 8, user="bob"))
    world.settle()
    assert (world.slots(1), world.slots(2), world.slots(3)) == (4, 2, 2)
