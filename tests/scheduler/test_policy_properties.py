"""Invariants of the policy under random submissions, ends, time, releases and changes of the machine."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from support import examples
from world import World, cpu_slots, job

from local_backend.scheduler.model import GPU, WHOLE, Machine, ResourcePlan, Slot
from local_backend.scheduler.policy import decide
from local_backend.scheduler.tree import grow
from local_backend.scheduler.urgency import AGEING, AGEING_SECONDS, hours, urgency

USERS = ("ann", "bob", "eve")
TREES = (
    ResourcePlan("local", children=(ResourcePlan("training"),)),
    ResourcePlan("local", children=(ResourcePlan("training", by_priority=True),)),
    ResourcePlan("local", children=(
        ResourcePlan("a", weight=2.0, reserved=2, children=(ResourcePlan("x"), ResourcePlan("y", most=3))),
        ResourcePlan("b", user_most=2, reclaim_grace=600.0),
        ResourcePlan("training"),
    )),
    ResourcePlan("local", children=(ResourcePlan("training"), ResourcePlan("inference"))),
)
PLANS = (("local", "training"), ("local", "inference"), ("local", "a"), ("local", "a", "x"), ("local", "a", "y"),
         ("local", "b"))


class Life(RuleBasedStateMachine):
    """A random history; the checks of `World` run at every decision, further checks when no change is under way."""

    @initialize(
        tree=st.sampled_from(TREES), cpus=st.integers(1, 8), gpus=st.integers(0, 3),
        memory=st.none() | st.integers(1, 20),
    )
    def begin(self, tree, cpus, gpus, memory):
        slots = (*cpu_slots(cpus), *(Slot(f"gpu-{n}", GPU, str(n)) for n in range(gpus)))
        self.world = World(slots, tree, memory)
        self.number = 0
        #: Service → the slots that it can have, at least and at most.
        self.caps = {}

    @rule(
        user=st.sampled_from(USERS), plan=st.sampled_from(PLANS), kind=st.sampled_from(["cpu", "cpu", "gpu"]),
        least=st.integers(1, 4), more=st.integers(0, 5), elastic=st.booleans(),
        per_worker=st.sampled_from([1, 1, 1, 2]),
        priority=st.sampled_from([5000, 5000, 5000, 6000, 9000]), memory=st.sampled_from([0, 0, 1, 3]),
        patience=st.sampled_from([None, None, 50.0]), lasts=st.sampled_from([None, 30.0, 500.0]),
        pause=st.sampled_from([0.0, 0.2, 20.0]), share=st.sampled_from([WHOLE, WHOLE, 500, 333, 250, 700]),
        pack=st.sampled_from(["", "", "", "ann/p", "bob/q"]), group=st.sampled_from(["", "", "s1", "s2"]),
    )
    def submit(self, least, more, elastic, share, pack, **values):
        self.number += 1
        most = least + more if elastic else None
        if not elastic:
            values |= {"share": share, "pack": pack}
            values["per_worker"] = 1 if share < WHOLE or pack else values["per_worker"]
        self.world.submit(job(self.number, least, most, since=self.world.now, **values))
        self.world.turn()

    @rule(
        user=st.sampled_from(USERS), plan=st.sampled_from(PLANS), least=st.integers(1, 3), more=st.integers(0, 6),
        priority=st.sampled_from([5000, 5000, 9000]), memory=st.sampled_from([0, 0, 1]),
        group=st.sampled_from(["", "", "s1"]),
    )
    def serve(self, least, more, **values):
        self.number += 1
        one = job(self.number, least, least + more, since=self.world.now, serves=True, **values)
        self.caps[one.exec_id] = least, least + more
        self.world.submit(one)
        self.world.turn()

    @rule(data=st.data(), slots=st.integers(1, 9))
    def want(self, data, slots):
        """A service wants another number of slots, as its load asks for."""
        if names := sorted(self.caps.keys() & self.world.jobs.keys()):
            name = data.draw(st.sampled_from(names))
            least, most = self.caps[name]
            most, one = min(most, slots), self.world.jobs[name]
            least = min(least, max(1, len(one.slots))) if one.running else least
            self.world.jobs[name] = replace(one, least=min(least, most), most=most)
            self.world.turn()

    def _one(self, data, jobs):
        return data.draw(st.sampled_from(sorted(one.exec_id for one in jobs)))

    @rule(data=st.data())
    def end(self, data):
        if self.world.jobs:
            self.world.end(self._one(data, self.world.jobs.values()))
            self.world.turn()

    @rule(seconds=st.sampled_from([0.5, 10.0, 100.0, AGEING_SECONDS]))
    def wait(self, seconds):
        self.world.wait(seconds)
        self.world.turn()

    @rule(slow=st.booleans())
    def be_slow(self, slow):
        self.world.slow = slow

    @rule(data=st.data())
    def release(self, data):
        if names := self.world.leaving():
            self.world.release(data.draw(st.sampled_from(names)))
            self.world.turn()

    @rule(data=st.data())
    def drain(self, data):
        machine = self.world.machine
        drained = data.draw(st.sets(st.sampled_from([slot.id for slot in machine.slots]), max_size=1))
        self.world.machine = Machine(machine.slots, machine.memory, dict.fromkeys(drained, "lost"))
        self.world.turn()

    @rule()
    def settle(self):
        """S2, S4: in a settled state, no usable slot is idle, and equal claims get equal shares."""
        world = self.world
        for name in world.leaving():
            world.release(name)
        slow, world.slow = world.slow, False
        for _ in range(20):
            before = {name: one.slots for name, one in world.jobs.items()}
            # A job that was resized recently would keep its slots for a while.
            for name, one in world.jobs.items():
                world.jobs[name] = replace(one, changed=-1e9 if one.slots else one.changed)
            decision = world.turn()
            if before == {name: one.slots for name, one in world.jobs.items()}:
                break
        else:
            raise AssertionError("the allocation never becomes stable")
        self._nothing_idle(decision)
        self._alike()
        world.slow = slow

    def _nothing_idle(self, decision):
        world = self.world
        if world.machine.memory is not None:
            return
        root = grow(world.plans, ())
        packs = set()
        for one in world.jobs.values():
            # The slot of a pack counts as a whole, for the first job of the pack.
            root.find(one.plan).user(one.user).take((one.pack not in packs) if one.pack and one.slots else one.weight)
            packs |= {one.pack} if one.pack and one.slots else set()
        for kind in ("cpu", "gpu"):
            held = {slot for one in world.jobs.values() for slot in one.held}
            idle = [slot for slot in world.machine.usable(kind) if slot.id not in held]
            for one in world.jobs.values():
                if one.kind != kind:
                    continue
                allowed = root.find(one.plan).user(one.user).limit
                if one.running and one.elastic and one.slots:
                    if len(one.slots) < one.ceiling and len(idle) >= one.per_worker:
                        assert allowed(one.per_worker) is not None, f"{one} could use {idle}"
                elif not one.running and one.elastic and len(idle) >= one.floor:
                    reason = decision.waiting[one.exec_id]
                    assert allowed(one.floor) is not None, f"{one} could start on {idle}: {reason}"

    def _alike(self):
        """Check that elastic jobs with equal user, bounds and urgency differ by at most one worker."""
        world = self.world
        groups = {}
        highest = max((one.priority for one in world.jobs.values()), default=0)
        for one in world.jobs.values():
            if one.running and one.elastic and one.slots and not one.memory and not one.serves:
                level = urgency(one, hours(one, world.now), highest)
                key = (one.user, one.group, one.plan, one.kind, one.least, one.most, one.per_worker, level)
                groups.setdefault(key, []).append(len(one.slots) // one.per_worker)
        by_priority = world.plans is TREES[1]
        for workers in groups.values():
            assert by_priority or max(workers) - min(workers) <= 1

    @invariant()
    def more_urgent_ones_do_not_wait_for_less_urgent_elastic_ones(self):
        """S5: in one plan and for one user, no job waits for slots that less urgent elastic jobs could give up."""
        if not hasattr(self, "world") or self.world.machine.memory is not None:
            return
        world = self.world
        highest = max((one.priority for one in world.jobs.values()), default=0)
        for name, reason in world.decision.waiting.items():
            one = world.jobs[name]
            # A job of fixed size does not start before the head of the queue; an elastic job does.
            if reason.code != "SLOTS" and not (reason.code == "QUEUE" and one.elastic):
                continue
            yielding = [
                other for other in world.jobs.values()
                if other.running and other.elastic and other.slots and other.kind == one.kind and not other.serves
                and (other.user, other.plan) == (one.user, one.plan)
                and urgency(other, hours(other, world.now), highest) < urgency(one, hours(one, world.now), highest)
            ]
            assert sum(other.floor for other in yielding) < one.size, f"{one} waits for {yielding}"


Life.TestCase.settings = settings(
    max_examples=examples(2000), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestLife = Life.TestCase


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_events_keep_the_invariants():
    """Runs 20,000 random histories of 50 events."""
    run_state_machine_as_test(Life, settings=settings(
        max_examples=20_000, stateful_step_count=50, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    ))


@given(
    searches=st.integers(1, 3), alone=st.integers(0, 3), sizes=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    slots=st.integers(1, 12), order=st.randoms(),
)
@settings(max_examples=examples(300), deadline=None)
def test_each_group_and_each_other_job_of_a_user_gets_an_equal_part(searches, alone, sizes, slots, order):
    """A group has as many slots as any other consumer of its user, whatever number of jobs it has."""
    jobs = [(f"s{n}", size) for n, size in enumerate(sizes[:searches]) for _ in range(size)] + [("", slots)] * alone
    order.shuffle(jobs)
    world = World(slots)
    for number, (group, most) in enumerate(jobs):
        world.submit(job(number, 1, most if not group else slots, group=group))
        world.turn()
    world.settle(100.0)
    found = Counter()
    for name, one in world.jobs.items():
        found[one.group or name] += len(one.slots)
    assert sum(found.values()) == slots
    assert max(found.values()) - min(found.values()) <= 1, found


@given(
    many=st.integers(1, 50), slots=st.integers(2, 8), first=st.booleans(), group=st.sampled_from(["", "s9"]),
)
@settings(max_examples=examples(150), deadline=None)
def test_two_users_get_equal_parts_with_many_and_with_one_job(many, slots, first, group):
    crowd = [job(n, 1, slots, user="ann", group="s1") for n in range(1, many + 1)]
    single = job(100, 1, slots, user="bob", group=group)
    world = World(slots)
    for one in ([*crowd, single] if first else [single, *crowd]):
        world.submit(one)
        world.turn()
    world.settle(100.0)
    assert abs(world.slots(100) - slots / 2) <= 0.5


@pytest.mark.parametrize("small", [1, 2, 3])
def test_small_jobs_do_not_starve_a_large_job(small):
    """S3: the large job starts after its wait has made it more urgent than all small jobs."""
    world = World(4)
    world.submit(*(job(n, small, since=0.0) for n in range(1, 4)))
    world.turn()
    world.submit(job(10, 4, since=1.0))
    number, alive = 100, list(range(1, 4))
    while not world.jobs["local-10"].running:
        world.wait(600.0)
        assert world.now < 2 * AGEING_SECONDS, "jobs still overtake it after an hour"
        for n in [n for n in alive if world.jobs[f"local-{n}"].running][:1]:
            world.end(f"local-{n}")
            alive.remove(n)
        for _ in range(2):
            number += 1
            alive.append(number)
            world.submit(job(number, small, since=world.now, lasts=1200.0))
        world.turn()


def test_the_order_of_submissions_does_not_change_the_decision():
    """Property S9."""
    jobs = [job(n, 1 + n % 3, (n % 4 and 6) or None, user=USERS[n % 3], priority=5000 + n % 2) for n in range(1, 12)]
    found = []
    for order in (jobs, jobs[::-1], jobs[5:] + jobs[:5]):
        world = World(7)
        world.submit(*order)
        decision = world.turn()
        found.append(({n: one.slots for n, one in sorted(world.jobs.items())}, dict(sorted(decision.waiting.items()))))
    assert found[0] == found[1] == found[2]


@given(
    tree=st.sampled_from(TREES), slots=st.integers(1, 4), data=st.data(), now=st.sampled_from([0.0, 50.0, 9000.0]),
)
def test_queue_positions_do_not_depend_on_the_shortcut_for_full_machines(tree, slots, data, now):
    """On a full machine, the policy sorts the positions only on demand.

    A job that can share a slot makes the policy ask every job; the order must stay the same.
    """
    draw = data.draw
    crowd = [
        job(n, draw(st.integers(1, slots)), user=draw(st.sampled_from(USERS)), since=n - now,
            plan=draw(st.sampled_from(PLANS)), priority=draw(st.sampled_from([5000, 5000, 5500, 6000])),
            group=draw(st.sampled_from(["", "", "s1", "s2"])))
        for n in range(1, draw(st.integers(2, 30)))
    ]
    ids = tuple(f"cpu-{n}" for n in range(slots))
    holder = job(0, slots, plan=draw(st.sampled_from(PLANS)), running=True, slots=ids, held=ids, since=-now)
    another = job(99, user="zoe", share=500, priority=1000)
    found = []
    for jobs in ([holder, *crowd], [holder, *crowd, another]):
        decision = decide(Machine(cpu_slots(slots)), tree, jobs, 100.0)
        assert not decision.start
        line = sorted(decision.waiting, key=lambda name: decision.waiting[name].position)
        assert [decision.waiting[name].position for name in line] == list(range(1, len(jobs)))
        found.append([name for name in line if name != another.exec_id])
    assert found[0] == found[1]


def test_ageing_raises_urgency_up_to_the_highest_and_stops_at_start():
    waiting, highest = job(1, 1, since=0.0), 6500
    assert urgency(waiting, hours(waiting, AGEING_SECONDS - 1), highest) == waiting.priority
    assert urgency(waiting, hours(waiting, AGEING_SECONDS), highest) == waiting.priority + AGEING
    assert urgency(waiting, hours(waiting, 2 * AGEING_SECONDS), highest) == highest
    running = replace(waiting, running=True, slots=("cpu-0",), started=AGEING_SECONDS)
    assert urgency(running, hours(running, 9 * AGEING_SECONDS), highest) == waiting.priority + AGEING
    assert urgency(waiting, 9, waiting.priority) == waiting.priority, "equal priorities must not diverge"
