"""A simulated machine with jobs on a virtual clock, which applies each decision of the policy at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from local_backend.scheduler.model import CPU, WHOLE, Decision, Machine, ResourcePlan, SchedulerJob, Slot
from local_backend.scheduler.plans import walk
from local_backend.scheduler.policy import decide
from local_backend.scheduler.urgency import waited

TREE = ResourcePlan("local", children=(ResourcePlan("training"),))


def cpu_slots(count: int) -> tuple[Slot, ...]:
    return tuple(Slot(f"cpu-{number}", CPU) for number in range(count))


def job(number: int, least: int = 1, most: int | None = None, **more: object) -> SchedulerJob:
    """Return a job of a user, elastic when `most` is given."""
    values: dict[str, object] = {
        "exec_id": f"local-{number}", "user": "ann", "kind": CPU, "plan": ("local", "training"), "since": float(number),
        "least": least, "most": least if most is None else most, "elastic": most is not None,
    }
    return SchedulerJob(**values | more)  # type: ignore[arg-type]


class World:
    """A simulated machine; each turn checks that no slot has two owners and that each pending job has an answer."""

    def __init__(self, slots: int | Iterable[Slot] = 4, plans: ResourcePlan = TREE, memory: int | None = None) -> None:
        self.machine = Machine(cpu_slots(slots) if isinstance(slots, int) else tuple(slots), memory)
        self.plans = plans
        self.now = 0.0
        self.jobs: dict[str, SchedulerJob] = {}
        self.decision = Decision()
        self.moves = 0
        #: Whether slots have been out of service at any time.
        self.outages = False
        #: Jobs that ended without running → reason.
        self.told: dict[str, str] = {}
        #: If true, a job holds the slots that it gives up until `release`.
        self.slow = False

    def submit(self, *jobs: SchedulerJob) -> None:
        for one in jobs:
            self.jobs[one.exec_id] = one

    def end(self, name: str) -> None:
        del self.jobs[name]

    def release(self, name: str) -> None:
        """Free the slots that the job has given up."""
        self.jobs[name] = replace(self.jobs[name], held=self.jobs[name].slots)

    def leaving(self) -> list[str]:
        return [name for name, one in self.jobs.items() if Counter(one.held) - Counter(one.slots)]

    def slots(self, number: int) -> int:
        """Return the number of slots of a job."""
        return len(self.jobs[f"local-{number}"].slots)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for name, one in self.jobs.items():
            self.jobs[name] = replace(one, service=one.service + seconds * len(one.held))

    def turn(self) -> Decision:
        """Decide and apply the decision, until nothing changes."""
        for _ in range(50):
            self.outages |= bool(self.machine.drained)
            decision = self.decision = decide(self.machine, self.plans, self.jobs.values(), self.now)
            self._check(decision)
            if not self._apply(decision):
                return decision
        raise AssertionError(f"the allocation does not become stable: {decision}")

    def settle(self, seconds: float = 10_000.0) -> Decision:
        """Advance the time until time alone changes nothing, for at most `seconds`; all jobs release slots at once."""
        until = self.now + seconds
        decision = self.turn()
        while True:
            for name in self.leaving():
                self.release(name)
            before = self.now
            decision = self.turn()
            if self.leaving():
                continue
            if decision.again is None or decision.again > until:
                return decision
            self.wait(decision.again - before + 1e-6)

    def _apply(self, decision: Decision) -> int:
        for name, slots in decision.start.items():
            ids = tuple(slot.id for slot in slots)
            one = self.jobs[name]
            ends = one.ends if one.lasts is None else self.now + one.lasts
            self.jobs[name] = replace(
                one, running=True, slots=ids, held=ids, started=self.now, changed=self.now, ends=ends
            )
        for name, slots in decision.resize.items():
            ids = tuple(slot.id for slot in slots)
            one = self.jobs[name]
            held = tuple((Counter(one.held) | Counter(ids)).elements()) if self.slow else ids
            parked = 0.0 if one.slots or not one.most else self.now - one.changed
            self.jobs[name] = replace(one, slots=ids, held=held, changed=self.now, waited=one.waited + parked)
        for name in decision.reclaim:
            one = self.jobs[name]
            self.jobs[name] = replace(
                one, running=False, slots=(), held=(), requeued=self.now, waited=waited(one, one.started), ends=None
            )
        for name, why in [*decision.impossible.items(), *decision.expired.items()]:
            self.told[name] = why
            del self.jobs[name]
        self.moves += len(decision.resize)
        return len(decision.start) + len(decision.resize) + len(decision.impossible) + len(decision.expired) + len(
            decision.reclaim
        )

    def _check(self, decision: Decision) -> None:
        answered = [*decision.start, *decision.waiting, *decision.impossible, *decision.expired]
        assert sorted(answered) == sorted(name for name, one in self.jobs.items() if not one.running)
        kinds = {slot.id: slot.kind for slot in self.machine.slots}
        for name, slots in [*decision.start.items(), *decision.resize.items()]:
            one, ids = self.jobs[name], [slot.id for slot in slots]
            assert name in decision.start or (one.running and one.elastic)
            assert one.floor <= len(ids) <= one.ceiling or (one.running and not ids) or one.pinned
            assert ids or not one.serves or self._may_park(one)
            assert len(ids) % one.per_worker == 0
            assert {kinds[slot] for slot in ids} <= {one.kind}
            assert not set(ids) & set(self.machine.drained)
        self._check_slots(decision)
        if self.machine.memory is not None:
            used = 0
            for name, one in self.jobs.items():
                given = [slot.id for slot in decision.resize.get(name, decision.start.get(name, ()))]
                used += one.memory * -(-(Counter(one.held) | Counter(given)).total() // one.per_worker)
            assert used <= self.machine.memory or not (decision.start or decision.resize)

    def _may_park(self, one: SchedulerJob) -> bool:
        """Whether a running service may lose its minimum: only to slots that go out of service, to memory, and to the
        limit of its plan. Other jobs do not take it."""
        limited = self.machine.memory is not None or any(plan.most is not None or plan.user_most is not None
                                                         for _, plan in walk(self.plans))
        return limited or self.outages

    def _check_slots(self, decision: Decision) -> None:
        """Check that no slot has two owners or is shared beyond its capacity, and that a pack has one slot."""
        owners: dict[str, list[SchedulerJob]] = {}
        packs: dict[tuple[str, str], set[str]] = {}
        for name, one in self.jobs.items():
            given = [slot.id for slot in decision.start.get(name, decision.resize.get(name, ()))]
            for slot in (Counter(one.held) | Counter(given)).elements():
                owners.setdefault(slot, []).append(one)
                if one.pack and slot not in self.machine.drained:
                    packs.setdefault((one.kind, one.pack), set()).add(slot)
        for slot, jobs in owners.items():
            assert len(jobs) == 1 or all(one.shares for one in jobs), f"{slot} is allocated to {jobs}"
            assert sum(one.share for one in jobs) <= WHOLE, f"{slot} is allocated beyond its capacity"
            assert len({one.pack for one in jobs}) == 1, f"{slot} of a pack is shared by jobs outside the pack"
        for name in decision.start:
            one = self.jobs[name]
            # A pack gets a second slot only when its first slot is out of service.
            assert not one.pack or self.outages or len(packs[one.kind, one.pack]) == 1, packs
