"""Numbers of slots become slots, each job keeping what it has as far as possible. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from local_backend.scheduler.admission import Admission
from local_backend.scheduler.model import Decision, Job, Slot
from local_backend.scheduler.packing import Fit


@dataclass
class Free:
    """What nobody holds at this moment. What others are about to give up is not in it."""

    #: Bytes, and slots of the kind that is looked at.
    memory: int
    slots: list[Slot] = field(default_factory=list)

    def workers(self, job: Job) -> int:
        """How many more workers of a job there is memory for."""
        return max(0, self.memory) // job.memory if job.memory else len(self.slots)


def place(  # noqa: PLR0917
    jobs: Iterable[Job], admission: Admission, targets: Mapping[str, int], usable: Sequence[Slot], free: Free,
    decision: Decision,
) -> list[Job]:
    """Starts and resizes, into `decision`; the jobs that have to wait for what others are giving up."""
    known = {slot.id: slot for slot in usable}
    late, admitted = [], {}
    for job in admission.admitted:
        admitted[job.exec_id] = job
        if job.running:
            continue
        if job.shares:
            slots = _join(job, admission.fits[job.exec_id], free, known)
        else:
            slots = _begin(job, targets[job.exec_id], free)
        if slots:
            decision.start[job.exec_id] = slots
        else:
            late.append(job)
    for job in jobs:
        if job.running and job.elastic and job.movable:
            slots = _move(admitted.get(job.exec_id, job), targets.get(job.exec_id, 0), free, known)
            if tuple(slot.id for slot in slots) != job.slots:
                decision.resize[job.exec_id] = slots
    return late


def _begin(job: Job, target: int, free: Free) -> tuple[Slot, ...]:
    """Slots for a job that starts, in whole workers; none when they are too few for it."""
    workers = min(target // job.per_worker, len(free.slots) // job.per_worker, free.workers(job))
    if workers < job.least:
        return ()
    free.memory -= workers * job.memory
    return tuple(free.slots.pop() for _ in range(workers * job.per_worker))


def _join(job: Job, fit: Fit, free: Free, known: Mapping[str, Slot]) -> tuple[Slot, ...]:
    """Slots for the workers of a job that shares them; none when those that nobody is on yet are not free."""
    nameless = [found for found in dict.fromkeys(fit.bins) if found.slot is None]
    if len(nameless) > len(free.slots) or job.least * job.memory > max(0, free.memory):
        return ()
    free.memory -= job.least * job.memory
    for found in nameless:
        found.slot = free.slots.pop().id
    return tuple(known[found.slot] for found in fit.bins if found.slot is not None)


def _move(job: Job, target: int, free: Free, known: Mapping[str, Slot]) -> tuple[Slot, ...]:
    """`target` slots for a job that runs, as far as they are there; it keeps those that it has."""
    keep = [known[name] for name in job.slots if name in known][:target]
    # What it is giving up is as good as free for it: nobody else can have it, or its memory, yet.
    own = [known[name] for name in job.held if name in known and name not in job.slots]
    more = min(len(free.slots), free.workers(job) * job.per_worker)
    count = min(target, len(keep) + len(own) + more) // job.per_worker * job.per_worker
    if count < (job.per_worker if job.pinned else job.floor):
        return ()
    keep = keep[:count]
    while len(keep) < count:
        if own:
            keep.append(own.pop(0))
        else:
            keep.append(free.slots.pop())
            free.memory -= job.memory // job.per_worker
    return tuple(keep)
