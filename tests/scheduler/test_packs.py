"""Services in a pack: kernels of several models share one slot."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from world import World, job

from local_backend.scheduler.model import WHOLE

HALF, QUARTER = WHOLE // 2, WHOLE // 4


def service(number, least=1, most=None, pack="ann/p", share=QUARTER, **more):
    """Return a service in a pack that wants `most` kernels."""
    return job(number, least, most or least, serves=True, pack=pack, share=share, **more)


def wants(world, number, most):
    """Let a service want so many kernels."""
    name = f"local-{number}"
    world.jobs[name] = replace(world.jobs[name], most=max(world.jobs[name].least, most))


def where(world, *numbers):
    return [set(world.jobs[f"local-{number}"].slots) for number in numbers]


def test_services_of_a_pack_share_a_slot_that_no_other_job_uses():
    world = World(3)
    world.submit(service(1), service(2), service(3, pack="ann/q"), service(4, pack="bob/p", user="bob"))
    world.turn()
    one, two, three, four = where(world, 1, 2, 3, 4)
    assert one == two
    assert len(one | three | four) == 3


def test_a_service_gets_the_kernels_that_it_wants_while_its_pack_has_room():
    world = World(2)
    world.submit(service(1), service(2))
    world.turn()
    wants(world, 1, 9)
    world.turn()
    assert (world.slots(1), world.slots(2)) == (3, 1)
    assert where(world, 1) == where(world, 2)


def test_services_divide_their_pack_fairly():
    world = World(1)
    world.submit(service(1, most=4))
    world.turn()
    assert world.slots(1) == 4
    world.submit(service(2, most=4))
    world.turn()
    assert (world.slots(1), world.slots(2)) == (2, 2)


def test_a_new_kernel_waits_until_another_one_has_left():
    world = World(1)
    world.slow = True
    world.submit(service(1, most=4))
    world.turn()
    world.submit(service(2))
    reason = world.turn().waiting["local-2"]
    assert reason.code == "LEAVING"
    assert (world.slots(1), world.slots(2)) == (3, 0)
    world.release("local-1")
    world.turn()
    assert world.slots(2) == 1


def test_a_service_waits_for_a_pack_that_has_no_room_although_slots_are_free():
    world = World(3)
    world.submit(service(1, 3), service(2, share=HALF))
    reason = world.turn().waiting["local-2"]
    assert reason.code == "PACK"
    assert reason.sentence == "waiting for 0.5 of a CPU slot in the pack p, which has 0.25 left"
    assert "gpu_pack_id" in reason.starts


def test_a_training_gives_up_one_slot_for_all_services_of_a_pack():
    world = World(4)
    world.submit(job(1, 1, 4))
    world.turn()
    world.submit(service(2, most=2), service(3, most=2))
    world.turn()
    assert [world.slots(number) for number in (1, 2, 3)] == [3, 2, 2]
    world.end("local-2")
    world.end("local-3")
    world.turn()
    assert world.slots(1) == 4


def test_a_pack_moves_as_a_whole_from_a_slot_that_goes_out_of_service():
    world = World(2)
    world.submit(service(1, most=2), service(2))
    world.turn()
    (before,) = where(world, 1)[0]
    world.machine = replace(world.machine, drained={before: "uncorrectable memory errors"})
    world.turn()
    assert where(world, 1) == where(world, 2) == [{({"cpu-0", "cpu-1"} - {before}).pop()}]


def test_a_job_of_the_same_pack_shares_the_slot_with_services():
    world = World(2)
    world.submit(service(1, most=4))
    world.turn()
    world.submit(job(2, share=HALF, pack="ann/p"))
    world.turn()
    assert world.slots(1) == 2
    assert where(world, 1) == where(world, 2)


@given(st.lists(st.tuples(st.integers(1, WHOLE), st.integers(1, 4), st.integers(0, 6)), min_size=1, max_size=6))
def test_no_service_of_a_pack_lacks_a_kernel_that_fits(asked):
    world = World(1)
    world.submit(*(service(n, least, least + more, share=share) for n, (share, least, more) in enumerate(asked)))
    world.turn()
    jobs = [one for one in world.jobs.values() if one.running]
    left = WHOLE - sum(len(one.slots) * one.share for one in jobs)
    assert left >= 0
    for one in jobs:
        assert one.least <= len(one.slots) <= one.most
        assert len(one.slots) == one.most or one.share > left
        # No other service got an extra kernel in its place, unless that service had at most as many parts before.
        for other in jobs:
            if len(one.slots) < one.most and len(other.slots) > other.least and one.share <= left + other.share:
                assert (len(other.slots) - 1) * other.share <= len(one.slots) * one.share


class Machinery(RuleBasedStateMachine):
    """Packs beside trainings: whatever happens, no slot is given beyond its capacity (checked by the world)."""

    def __init__(self):
        super().__init__()
        self.world, self.number = World(3), 0

    def _add(self, **values):
        self.number += 1
        self.world.submit(values.pop("made")(self.number, **values))

    @rule(share=st.integers(100, WHOLE), least=st.integers(1, 2), more=st.integers(0, 5),
          pack=st.sampled_from(["ann/p", "ann/q"]))
    def serve(self, share, least, more, pack):
        self._add(made=service, share=share, least=least, most=least + more, pack=pack, since=self.world.now)

    @rule(share=st.integers(100, WHOLE), pack=st.sampled_from(["", "ann/p"]))
    def share(self, share, pack):
        self._add(made=job, share=share, pack=pack, since=self.world.now)

    @rule(least=st.integers(1, 2), more=st.integers(0, 2))
    def train(self, least, more):
        self._add(made=job, least=least, most=least + more, since=self.world.now)

    @precondition(lambda self: self.world.jobs)
    @rule(data=st.data(), most=st.integers(1, 8))
    def change(self, data, most):
        names = [name for name, one in self.world.jobs.items() if one.serves]
        if names:
            wants(self.world, data.draw(st.sampled_from(names)).partition("-")[2], most)

    @precondition(lambda self: self.world.jobs)
    @rule(data=st.data())
    def finish(self, data):
        self.world.end(data.draw(st.sampled_from(sorted(self.world.jobs))))

    @rule()
    def leave(self):
        for name in self.world.leaving():
            self.world.release(name)

    @rule(slow=st.booleans())
    def speed(self, slow):
        self.world.slow = slow

    @rule(slot=st.sampled_from(["", "cpu-0", "cpu-1"]))
    def drain(self, slot):
        self.world.machine = replace(self.world.machine, drained={slot: "broken"} if slot else {})

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds):
        self.world.wait(seconds)

    @invariant()
    def decide(self):
        self.world.turn()
        for one in self.world.jobs.values():
            assert len(set(one.slots)) <= 1 or not (one.pack and one.serves)


TestMachinery = Machinery.TestCase
TestMachinery.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
