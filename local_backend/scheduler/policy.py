"""The scheduler's policy: `decide(machine, plans, jobs, now)`. Pure: the same arguments give the same decision.

Slots of each kind are shared by themselves, in four steps. *Admission*: which jobs run, each with its floor, in the
order that plans, priority and waiting time give (`tree`, `admission`). *Surplus*: what is left is divided fairly
between elastic jobs (`surplus`). *Placement*: numbers become slots, each job keeping what it has as far as possible;
what somebody else still holds is given when it is free. *Reasons*: all others learn why they wait (`reasons`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from local_backend.scheduler import reasons
from local_backend.scheduler.admission import Admission, admit
from local_backend.scheduler.model import Decision, Job, Machine, Plan, Slot
from local_backend.scheduler.packing import Fit, Shared
from local_backend.scheduler.reclaim import graces, reclaim
from local_backend.scheduler.surplus import ROTATION, Surplus
from local_backend.scheduler.tree import AGEING_SECONDS, grow, order


def decide(machine: Machine, plans: Plan, jobs: Iterable[Job], now: float) -> Decision:
    """What to do with all jobs that wait or run, and when to ask again though nothing has happened."""
    decision = Decision()
    memory = sys.maxsize if machine.memory is None else machine.memory
    possible: dict[str, list[Job]] = {}
    for job in jobs:
        sentence = None if job.running else reasons.impossible(job, machine)
        if sentence is not None:
            decision.impossible[job.exec_id] = sentence
            continue
        possible.setdefault(job.kind, []).append(job)
        if job.fixed:
            memory -= job.least * job.memory
    for kind in sorted(possible):
        memory = _Pass(machine, kind, possible[kind], now, decision).run(plans, memory)
    return decision


class _Pass:
    """A decision about the jobs in slots of one kind; adds to `decision`."""

    def __init__(self, machine: Machine, kind: str, jobs: list[Job], now: float, decision: Decision) -> None:
        self._machine = machine
        self._kind = kind
        self._usable = machine.usable(kind)
        self._by_id = {slot.id: slot for slot in self._usable}
        self._jobs = jobs
        self._fixed = [job for job in jobs if job.fixed]
        self._now = now
        self._decision = decision

    def run(self, plans: Plan, memory: int) -> int:
        """Decide. `memory`: bytes that fixed jobs leave; those that are left then."""
        # Fixed jobs may be on slots that nobody else gets any more.
        ids = self._by_id.keys()
        capacity = len(ids) - len(ids & {slot for job in self._fixed for slot in job.slots})
        root, keys = grow(plans, self._jobs), order(self._jobs, self._now)
        root.queue(keys)
        shared = Shared(ids, self._fixed)
        admission = admit(root, capacity, memory, self._now, shared)
        memory -= sum(job.least * job.memory for job in admission.admitted if job.memory)
        surplus = Surplus(admission.admitted, keys, memory, self._now)
        targets = surplus.divide(root, admission.left)
        late = self._place(admission, targets)
        self._explain(admission, shared, late)
        self._decision.reclaim |= reclaim(root, admission, self._fixed, len(self._usable), self._now)
        self._look_again(admission, surplus, graces(root, admission, self._fixed))
        return surplus.memory

    def _place(self, admission: Admission, targets: Mapping[str, int]) -> list[Job]:
        """Slots for the numbers; jobs that have to wait for slots which others are giving up."""
        taken = {slot for job in self._jobs for slot in job.held}
        free = [slot for slot in self._usable if slot.id not in taken]
        free.reverse()
        late = []
        for job in admission.admitted:
            if job.running:
                continue
            if job.shares:
                slots = _join(admission.fits[job.exec_id], free, self._by_id)
            else:
                slots = _first(min(targets[job.exec_id], len(free)), job, free)
            if slots:
                self._decision.start[job.exec_id] = slots
            else:
                late.append(job)
        for job in self._jobs:
            if job.running and job.elastic:
                self._move(job, targets.get(job.exec_id, 0), free)
        return late

    def _move(self, job: Job, target: int, free: list[Slot]) -> None:
        """Give a running elastic job `target` slots, as far as they are there; it keeps those that it has."""
        usable = self._by_id
        keep = [usable[name] for name in job.slots if name in usable][:target]
        # What it is giving up is as good as free for it: nobody else can have it yet.
        own = [usable[name] for name in job.held if name in usable and name not in job.slots]
        count = min(target, len(keep) + len(own) + len(free)) // job.per_worker * job.per_worker
        if count < job.floor:
            count = 0
        keep = keep[:count]
        while len(keep) < count:
            keep.append(own.pop(0) if own else free.pop())
        if tuple(slot.id for slot in keep) != job.slots:
            self._decision.resize[job.exec_id] = tuple(keep)

    def _explain(self, admission: Admission, shared: Shared, late: list[Job]) -> None:
        """Why those wait that do not start; those that have waited too long end."""
        queue = reasons.Queue(admission, self._fixed, shared, self._machine, self._kind, self._now)
        for job, reason in [*queue.refused(), *queue.late(late)]:
            if job.patience is not None and self._now - job.since >= job.patience:
                self._decision.expired[job.exec_id] = reasons.expired(job)
            else:
                self._decision.waiting[job.exec_id] = reason

    def _look_again(self, admission: Admission, surplus: Surplus, graces: list[float]) -> None:
        """When time alone changes the decision: jobs may be resized again, waiting ones get more urgent or give up,
        slots are taken back, a slot rotates."""
        now = self._now
        moments = [*surplus.again, *graces]
        waiting = [refusal.job for refusal in admission.refused]
        moments += [now + AGEING_SECONDS - (now - job.since) % AGEING_SECONDS for job in waiting]
        moments += [job.since + job.patience for job in self._jobs if job.patience is not None and not job.running]
        elastic = [job for job in admission.admitted if job.elastic]
        if len(elastic) > 1 and any(surplus.targets[job.exec_id] < job.ceiling for job in elastic):
            moments.append(now + ROTATION)
        moments += [] if self._decision.again is None else [self._decision.again]
        self._decision.again = min((moment for moment in moments if moment > now), default=None)


def _first(count: int, job: Job, free: list[Slot]) -> tuple[Slot, ...]:
    """Slots for a job that starts, out of `free`, in whole workers; none when they are too few for it."""
    count = count // job.per_worker * job.per_worker
    return tuple(free.pop() for _ in range(count)) if count >= job.floor else ()


def _join(fit: Fit, free: list[Slot], known: Mapping[str, Slot]) -> tuple[Slot, ...]:
    """Slots for the workers of a job that shares them; none when those that nobody is on yet are not free."""
    nameless = [found for found in dict.fromkeys(fit.bins) if found.slot is None]
    if len(nameless) > len(free):
        return ()
    for found in nameless:
        found.slot = free.pop().id
    return tuple(known[found.slot] for found in fit.bins if found.slot is not None)
