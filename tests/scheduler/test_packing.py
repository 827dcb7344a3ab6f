"""Slots shared by several jobs: parts of a slot, and packs on one device."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import World, cpu_slots, job

from local_backend.scheduler.model import GPU, WHOLE, Machine, Slot
from local_backend.scheduler.packing import Shared

HALF, THIRD = WHOLE // 2, WHOLE // 3


def where(world, *numbers):
    return [set(world.jobs[f"local-{number}"].slots) for number in numbers]


def test_two_half_slot_jobs_share_a_slot_and_a_third_gets_another():
    world = World(2)
    world.submit(*(job(n, share=HALF) for n in (1, 2, 3)))
    world.turn()
    first, second, third = where(world, 1, 2, 3)
    assert first == second != third


def test_a_partial_job_goes_to_the_fullest_slot_with_enough_left():
    world = World(3)
    world.submit(job(1, share=HALF), job(2, share=700), job(3, share=300), job(4))
    world.turn()
    one, two, three, four = where(world, 1, 2, 3, 4)
    assert two == three != one
    assert four not in (one, two)


def test_the_part_of_a_finished_job_goes_to_the_next_job():
    world = World(1)
    world.submit(*(job(n, share=HALF) for n in (1, 2, 3)))
    reason = world.turn().waiting["local-3"]
    assert reason.code == "SLOTS" and "0.5 of a CPU slot" in reason.sentence
    world.end("local-1")
    world.turn()
    assert world.slots(3) == 1


def test_workers_of_one_job_may_share_a_slot():
    world = World(2)
    world.submit(job(1, 5, share=THIRD))
    world.turn()
    slots = world.jobs["local-1"].slots
    assert len(slots) == 5
    assert sorted(slots.count(slot) for slot in set(slots)) == [2, 3]


def test_an_elastic_job_gives_up_one_slot_for_two_half_slot_jobs():
    world = World(4)
    world.submit(job(1, 1, 4))
    world.turn()
    world.submit(job(2, share=HALF))
    world.turn()
    assert world.slots(1) == 3
    world.submit(job(3, share=HALF))
    world.turn()
    assert world.slots(1) == 3
    assert where(world, 2) == where(world, 3)


def test_jobs_of_a_pack_share_a_slot_that_other_jobs_do_not_use():
    world = World(3)
    world.submit(job(1, share=300, pack="ann/p"), job(2, share=300, pack="ann/q"), job(3, share=600, pack="ann/p"),
                 job(4, share=100))
    world.turn()
    one, two, three, four = where(world, 1, 2, 3, 4)
    assert one == three
    assert len(one | two | four) == 3


def test_a_job_waits_for_a_full_pack_although_slots_are_free():
    world = World(3)
    world.submit(*(job(n, share=400, pack="ann/p") for n in (1, 2, 3)))
    reason = world.turn().waiting["local-3"]
    assert reason.code == "PACK"
    assert reason.sentence == "waiting for 0.4 of a CPU slot in the pack p, which has 0.2 left"
    world.end("local-1")
    world.turn()
    assert where(world, 3) == where(world, 2)


def test_a_pack_larger_than_one_slot_waits_on_a_machine_with_one_slot():
    world = World(1)
    world.submit(job(1, share=WHOLE, pack="ann/p"), job(2, share=HALF, pack="ann/p"))
    assert world.turn().waiting["local-2"].code == "PACK"


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (job(1, 3, share=HALF, pack="ann/p"),
         "the job needs 3 times 0.5 of a CPU slot in the pack p, but a pack has 1 slot; use a smaller --numWorker or "
         "--workerGPULimit"),
        (job(1, 5, share=HALF),
         "the job needs 5 times 0.5 of a CPU slot, but this machine has 2; use a smaller --numWorker, or start the "
         "server with a larger DLI_SLOTS"),
    ],
)
def test_an_impossible_shared_request_is_rejected_with_the_reason(asked, sentence):
    world = World(2)
    world.submit(asked)
    world.turn()
    assert world.told == {"local-1": sentence}


def test_no_job_joins_a_slot_that_is_out_of_service():
    world = World(2)
    world.submit(job(1, share=HALF))
    world.turn()
    (slot,) = world.jobs["local-1"].slots
    world.machine = Machine(world.machine.slots, None, {slot: "uncorrectable memory errors"})
    world.submit(job(2, share=HALF), job(3, share=HALF), job(4, 2))
    decision = world.turn()
    assert where(world, 2) == where(world, 3) != where(world, 1)
    assert decision.waiting["local-4"].code == "DRAINED"
    assert f"{slot} (uncorrectable memory errors)" in decision.waiting["local-4"].sentence


def test_partial_slots_count_as_parts_in_the_limits_of_a_plan():
    world = World(4)
    plan = replace(world.plans.children[0], user_most=1)
    world.plans = replace(world.plans, children=(plan,))
    world.submit(*(job(n, share=HALF) for n in (1, 2, 3)))
    assert world.turn().waiting["local-3"].code == "USER_LIMIT"


def test_each_mig_profile_is_a_separate_kind_of_slot():
    slots = (*cpu_slots(1), Slot("gpu-0", GPU, "GPU-a"), Slot("mig-1", "1g.10gb", "MIG-b"))
    world = World(slots)
    world.submit(job(1, kind="1g.10gb"), job(2, kind=GPU), job(3, kind="1g.10gb"), job(4, kind="7g.80gb"))
    world.turn()
    assert where(world, 1, 2) == [{"mig-1"}, {"gpu-0"}]
    assert world.decision.waiting["local-3"].sentence.startswith("waiting for 1 MIG 1g.10gb slot;")
    assert "local-4" not in world.jobs


def test_an_unmet_node_selector_is_rejected_with_the_reason():
    world = World(1)
    world.machine = replace(world.machine, labels={"zone": "a", "gpu": "h200"})
    world.submit(job(1, labels=(("zone", "b"),)), job(2, labels=(("zone", "a"), ("gpu", ""))),
                 job(3, labels=(("disk", "ssd"),)))
    world.turn()
    assert world.slots(2) == 1
    assert all(word in world.told["local-1"] for word in ("zone=b", "zone=a", "--msd-task12n-node-selector"))
    assert "no label disk" in world.told["local-3"]


@given(st.lists(st.tuples(st.integers(1, WHOLE), st.integers(1, 3)), max_size=30))
def test_no_slot_is_allocated_beyond_its_capacity(wanted):
    shared = Shared((), ())
    bins = {}
    for number, (share, workers) in enumerate(wanted):
        one = job(number, workers, share=share)
        fit = shared.fit(one)
        assert len(fit.bins) == workers
        fresh = {id(found) for found in fit.bins} - bins.keys()
        assert len(fresh) == fit.new
        shared.take(one, fit)
        for found in fit.bins:
            bins.setdefault(id(found), [found, 0])[1] += share
        open_before = [found for found, _ in bins.values() if id(found) not in fresh]
        # A worker opens a new slot only if no open slot has enough capacity left.
        assert not fit.new or all(found.left < share for found in open_before)
    for found, used in bins.values():
        assert found.left == WHOLE - used >= 0
