"""The scheduling policy, `decide(machine, plans, jobs, now)`. Pure: the same arguments give the same decision.

Slots of each kind are shared separately, in four steps. *Admission* selects the jobs that run, each with its floor,
in the order that plans, priority and waiting time give (`tree`, `admission`). *Surplus* divides the remaining slots
fairly between elastic jobs (`surplus`). *Placement* turns numbers into slots: each job keeps its slots as far as
possible, and slots that another job still holds are given once they are free (`placement`). *Reasons* say why all
other jobs wait (`reasons`).
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from local_backend.scheduler import reasons
from local_backend.scheduler.admission import Asking, Memory
from local_backend.scheduler.model import Decision, Machine, ResourcePlan, SchedulerJob, Slot
from local_backend.scheduler.packing import Shared
from local_backend.scheduler.packs import deal
from local_backend.scheduler.placement import Free, place
from local_backend.scheduler.reasons import Waiting
from local_backend.scheduler.reclaim import Reclaim, names
from local_backend.scheduler.surplus import ROTATION, Surplus
from local_backend.scheduler.tree import PlanNode, grow
from local_backend.scheduler.urgency import next_urgency, order

#: Maximum owners of lent slots that one decision tries; each trial takes as long as a decision.
_MOST_TRIALS = 4


def decide(machine: Machine, plans: ResourcePlan, jobs: Iterable[SchedulerJob], now: float) -> Decision:
    """Decide about all pending and running jobs, and when to decide again if no event comes first."""
    expired: dict[str, str] = {}
    left = list(jobs)
    while True:
        decision = _decide(machine, plans, left, now)
        if not decision.expired:
            decision.expired = expired
            return decision
        # Other jobs may start in place of the expired ones.
        expired |= decision.expired
        left = [job for job in left if job.exec_id not in expired]


def _decide(machine: Machine, plans: ResourcePlan, jobs: Sequence[SchedulerJob], now: float) -> Decision:
    waiting = Waiting()
    decision = Decision(waiting=waiting)
    memory, free = Memory(machine.memory or sys.maxsize), Free(machine.memory or sys.maxsize)
    possible: dict[str, list[SchedulerJob]] = defaultdict(list)
    for job in jobs:
        sentence = None if job.running or job.pinned or job.accepted else reasons.impossible(job, machine)
        if sentence is not None:
            decision.impossible[job.exec_id] = sentence
            continue
        possible[job.kind].append(job)
        if job.memory and job.running:
            there = -(-len(job.held) // job.per_worker) * job.memory
            free.memory -= there
            memory.left -= max(there, job.least * job.memory) if job.fixed else 0
    holders = [job for job in jobs if job.held]
    # All jobs get their floor before any job gets more: jobs on slots of all kinds share the memory.
    admitted = [
        _Admitted(machine, plans, kind, possible[kind], _usable(machine, kind, holders), memory, now)
        for kind in sorted(possible)
    ]
    divided = [_Divided(one, memory) for one in admitted]
    for one in divided:
        one.decide(decision, waiting, free)
        one.close()
    return decision


def _usable(machine: Machine, kind: str, holders: Iterable[SchedulerJob]) -> list[Slot]:
    """Return the slots of a kind that jobs on this kind may use. A job of another kind holds a slot of this kind if
    the devices of the machine have changed since the job started."""
    taken = {slot for job in holders if job.kind != kind for slot in job.held}
    return [slot for slot in machine.usable(kind) if slot.id not in taken]


class _Admitted:
    """The jobs on slots of one kind, after the selection of those that run."""

    def __init__(  # noqa: PLR0917
        self, machine: Machine, plans: ResourcePlan, kind: str, jobs: list[SchedulerJob], usable: list[Slot],
        memory: Memory, now: float,
    ) -> None:
        """Select the jobs that run. Subtract their memory from `memory`."""
        self.machine = machine
        self.plans = plans
        self.kind = kind
        self.jobs = jobs
        self.now = now
        self.memory_before = replace(memory)
        self.usable = usable
        #: Ids of the usable slots.
        self.ids = frozenset(slot.id for slot in self.usable)
        self.fixed = [job for job in jobs if job.fixed]
        self.root = grow(plans, jobs)
        self.keys = order(jobs, now)
        self.shared = Shared(self.ids, self.fixed, [job for job in jobs if job.running and not job.fixed])
        # Fixed jobs may be on slots that no other job gets any more.
        capacity = len(self.ids) - len(self.ids.intersection(slot for job in self.fixed for slot in job.slots))
        self.asking = Asking(self.root, capacity, len(self.ids), memory, now, self.shared)
        self.root.queue(self.keys, self.asking.ask_services(self.keys))
        self.root.divide(len(self.ids.union(slot for job in self.fixed for slot in job.slots)))
        self.asking.ask_all(self._growing())
        self.admission = self.asking.found

    def _growing(self) -> dict[PlanNode, float]:
        """Return the leaves with elastic jobs that can use more than their floor → the urgency of their most urgent
        such job. Slots beyond the floor that such a job has now do not matter: a job that took them would have to
        give them back."""
        found: dict[PlanNode, float] = {}
        for user in self.root.leaves():
            levels = [
                -self.keys[job.exec_id][0] for job in (*user.jobs, *user.fixed)
                if job.elastic and not job.shares and job.ceiling > job.floor and not job.leaving
            ]
            if levels:
                found[user] = max(levels)
        return found


class _Divided:
    """The jobs on slots of one kind, with the number of slots that each gets."""

    def __init__(self, admitted: _Admitted, memory: Memory) -> None:
        """Divide the remaining slots. Subtract the memory of jobs that get more than their floor from `memory`."""
        self._of = admitted
        self._surplus = Surplus(admitted.root, admitted.admission, admitted.keys, memory, admitted.now)
        left = max(0, self._surplus.rest - self._surplus.later)
        self._surplus.join(admitted.asking.ask_again(left), left)
        #: Services of packs → their kernels.
        self._kernels = deal(admitted.admission, admitted.shared, memory, admitted.keys)

    def decide(self, decision: Decision, waiting: Waiting, free: Free) -> None:
        """Write into `decision` the slots of jobs, why other jobs wait, and the jobs that lose lent slots."""
        of, now = self._of, self._of.now
        free.slots = self._unheld()
        targets = {**self._surplus.targets, **self._kernels}
        late = place(of.jobs, of.admission, targets, of.usable, free, decision)
        queue = reasons.Queue(of.admission, late, of.fixed, of.shared, of.machine, of.kind, now)
        others = set()
        for at, job in queue.apart:
            if job.running:
                decision.parked[job.exec_id] = queue.reason(at)
                others.add(job.exec_id)
            elif job.patience is not None and now - job.entered >= job.patience:
                decision.expired[job.exec_id] = reasons.expired(job)
                others.add(job.exec_id)
        waiting.add(queue, others)
        reclaim = Reclaim(of.root, of.admission, self._surplus.targets, of.fixed, of.ids)
        for _, (owner, victims) in zip(range(_MOST_TRIALS), reclaim.proposals(now), strict=False):
            if self._helps(owner, victims):
                decision.reclaim |= names(victims, owner)
                break
        self._look_again(decision, reclaim)

    def close(self) -> None:
        """Release the tree. No other method may be called afterwards."""
        self._of.root.dissolve()

    def _unheld(self) -> list[Slot]:
        taken = {slot for job in self._of.jobs for slot in job.held}
        free = [slot for slot in self._of.usable if slot.id not in taken]
        free.reverse()
        return free

    def _helps(self, owner: SchedulerJob, victims: list[SchedulerJob]) -> bool:
        """Return whether the owner gets more slots if the victims are queued again."""
        of = self._of
        gone = {victim.exec_id for victim in victims}
        freed = sum(victim.least * victim.memory for victim in victims)
        jobs = [
            replace(job, running=False, slots=(), held=()) if job.exec_id in gone else job
            for job in of.jobs if not job.leaving
        ]
        memory = replace(of.memory_before)
        memory.left += freed
        trial = _Divided(_Admitted(of.machine, of.plans, of.kind, jobs, of.usable, memory, of.now), memory)
        helps = trial._granted(owner) > self._granted(owner)
        trial.close()
        return helps

    def _granted(self, job: SchedulerJob) -> float:
        there = job.exec_id in self._of.admission.owners
        return self._surplus.targets.get(job.exec_id, job.size) if there else 0.0

    def _look_again(self, decision: Decision, reclaim: Reclaim) -> None:
        """Set the time at which the decision changes without an event: jobs may be resized again, pending jobs
        become more urgent or expire, lent slots are taken back, or a slot rotates."""
        of, now, targets = self._of, self._of.now, self._surplus.targets
        moments = [*self._surplus.again, *of.admission.again, *reclaim.moments]
        moments.append(next_urgency(of.admission.waiting, now))
        moments += [job.entered + job.patience for job in of.jobs if job.patience is not None and not job.running]
        elastic = [job for job in of.admission.admitted if job.elastic and not job.shares]
        if len(elastic) > 1 and any(targets[job.exec_id] < job.ceiling for job in elastic):
            moments.append(now + ROTATION)
        moments += [] if decision.again is None else [decision.again]
        decision.again = min((moment for moment in moments if now < moment < math.inf), default=None)
