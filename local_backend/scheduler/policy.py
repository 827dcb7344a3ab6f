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
from local_backend.scheduler.model import Decision, Job, Machine, Plan, Slot
from local_backend.scheduler.packing import Shared
from local_backend.scheduler.placement import Free, place
from local_backend.scheduler.reasons import Waiting
from local_backend.scheduler.reclaim import Reclaim, names
from local_backend.scheduler.surplus import ROTATION, Surplus
from local_backend.scheduler.tree import Node, grow
from local_backend.scheduler.urgency import next_urgency, order

#: Maximum owners of lent slots that one decision tries; each trial takes as long as a decision.
_MOST_TRIALS = 4


def decide(machine: Machine, plans: Plan, jobs: Iterable[Job], now: float) -> Decision:
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


def _decide(machine: Machine, plans: Plan, jobs: Sequence[Job], now: float) -> Decision:
    waiting = Waiting()
    decision = Decision(waiting=waiting)
    memory, free = Memory(machine.memory or sys.maxsize), Free(machine.memory or sys.maxsize)
    possible: dict[str, list[Job]] = defaultdict(list)
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
    passes = [_Pass(machine, plans, kind, possible[kind], now) for kind in sorted(possible)]
    for one in passes:
        one.admit(memory)
    for one in passes:
        one.divide(memory)
    for one in passes:
        one.finish(decision, waiting, free)
        one.close()
    return decision


class _Pass:
    """A decision about the jobs on slots of one kind."""

    def __init__(self, machine: Machine, plans: Plan, kind: str, jobs: list[Job], now: float) -> None:
        self._machine = machine
        self._plans = plans
        self._kind = kind
        self._jobs = jobs
        self._now = now
        self._usable = machine.usable(kind)
        self._ids = frozenset(slot.id for slot in self._usable)
        self._fixed = [job for job in jobs if job.fixed]
        self._root = grow(plans, jobs)
        self._keys = order(jobs, now)
        self._shared = Shared(self._ids, self._fixed)

    def admit(self, memory: Memory) -> None:
        """Select the jobs that run."""
        self._before = replace(memory)
        # Fixed jobs may be on slots that no other job gets any more.
        capacity = len(self._ids) - len(self._ids.intersection(slot for job in self._fixed for slot in job.slots))
        self._root.queue(self._keys)
        self._root.divide(len(self._ids.union(slot for job in self._fixed for slot in job.slots)))
        self._asking = Asking(self._root, capacity, len(self._ids), memory, self._now, self._shared)
        self._asking.ask_all(self._growing())
        self._admission = self._asking.found

    def _growing(self) -> dict[Node, float]:
        """Return the users with elastic jobs that can use more than their floor → the urgency of their most urgent
        such job. Slots beyond the floor that such a job has now do not matter: a job that took them would have to
        give them back."""
        found: dict[Node, float] = {}
        for user in self._root.users():
            levels = [
                -self._keys[job.exec_id][0] for job in (*user.jobs, *user.fixed)
                if job.elastic and job.ceiling > job.floor and not job.leaving
            ]
            if levels:
                found[user] = max(levels)
        return found

    def divide(self, memory: Memory) -> None:
        """Compute how many slots each admitted job gets."""
        self._surplus = Surplus(self._root, self._admission, self._keys, memory, self._now)
        left = max(0, self._surplus.rest - self._surplus.later)
        self._surplus.join(self._asking.ask_again(left), left)

    def finish(self, decision: Decision, waiting: Waiting, free: Free) -> None:
        """Write into `decision` the slots of jobs, why other jobs wait, and the jobs that lose lent slots."""
        free.slots = self._unheld()
        late = place(self._jobs, self._admission, self._surplus.targets, self._usable, free, decision)
        queue = reasons.Queue(
            self._admission, late, self._fixed, self._shared, self._machine, self._kind, self._now
        )
        others = set()
        for at, job in queue.apart:
            if job.running:
                decision.parked[job.exec_id] = queue.reason(at)
                others.add(job.exec_id)
            elif job.patience is not None and self._now - job.entered >= job.patience:
                decision.expired[job.exec_id] = reasons.expired(job)
                others.add(job.exec_id)
        waiting.add(queue, others)
        reclaim = Reclaim(self._root, self._admission, self._surplus.targets, self._fixed, self._ids)
        for _, (owner, victims) in zip(range(_MOST_TRIALS), reclaim.proposals(self._now), strict=False):
            if self._helps(owner, victims):
                decision.reclaim |= names(victims, owner)
                break
        self._look_again(decision, reclaim)

    def close(self) -> None:
        """Release the tree. No other method may be called afterwards."""
        self._root.dissolve()

    def _unheld(self) -> list[Slot]:
        taken = {slot for job in self._jobs for slot in job.held}
        free = [slot for slot in self._usable if slot.id not in taken]
        free.reverse()
        return free

    def _helps(self, owner: Job, victims: list[Job]) -> bool:
        """Return whether the owner gets more slots if the victims are queued again."""
        gone = {victim.exec_id for victim in victims}
        freed = sum(victim.least * victim.memory for victim in victims)
        jobs = [
            replace(job, running=False, slots=(), held=()) if job.exec_id in gone else job
            for job in self._jobs if not job.leaving
        ]
        trial, memory = _Pass(self._machine, self._plans, self._kind, jobs, self._now), replace(self._before)
        memory.left += freed
        trial.admit(memory)
        trial.divide(memory)
        helps = trial._granted(owner) > self._granted(owner)
        trial.close()
        return helps

    def _granted(self, job: Job) -> float:
        there = job.exec_id in self._admission.owners
        return self._surplus.targets.get(job.exec_id, job.size) if there else 0.0

    def _look_again(self, decision: Decision, reclaim: Reclaim) -> None:
        """Set the time at which the decision changes without an event: jobs may be resized again, pending jobs
        become more urgent or expire, lent slots are taken back, or a slot rotates."""
        now, targets = self._now, self._surplus.targets
        moments = [*self._surplus.again, *reclaim.moments]
        moments.append(next_urgency(self._admission.waiting, now))
        moments += [job.entered + job.patience for job in self._jobs if job.patience is not None and not job.running]
        elastic = [job for job in self._admission.admitted if job.elastic]
        if len(elastic) > 1 and any(targets[job.exec_id] < job.ceiling for job in elastic):
            moments.append(now + ROTATION)
        moments += [] if decision.again is None else [decision.again]
        decision.again = min((moment for moment in moments if now < moment < math.inf), default=None)
