"""Placement: turn numbers of slots into slots. Each job keeps its slots as far as possible. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from local_backend.scheduler.admission import Admission
from local_backend.scheduler.model import Decision, SchedulerJob, Slot
from local_backend.scheduler.packing import Fit


@dataclass
class Free:
    """Memory and slots that no job holds now. Slots that jobs are about to give up are not included."""

    #: Bytes; slots of the kind that is being placed.
    memory: int
    slots: list[Slot] = field(default_factory=list)

    def workers(self, job: SchedulerJob) -> int:
        """Return how many more workers of a job the memory allows."""
        return max(0, self.memory) // job.memory if job.memory else len(self.slots)


def place(  # noqa: PLR0917
    jobs: Iterable[SchedulerJob], admission: Admission, targets: Mapping[str, int], usable: Sequence[Slot], free: Free,
    decision: Decision,
) -> list[SchedulerJob]:
    """Write starts and resizes into `decision`. Return the admitted jobs that wait until others give up slots."""
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


def _begin(job: SchedulerJob, target: int, free: Free) -> tuple[Slot, ...]:
    """Return slots for a job that starts, in whole workers; empty if they are too few for it."""
    workers = min(target // job.per_worker, len(free.slots) // job.per_worker, free.workers(job))
    if workers < job.least:
        return ()
    free.memory -= workers * job.memory
    return tuple(free.slots.pop() for _ in range(workers * job.per_worker))


def _join(job: SchedulerJob, fit: Fit, free: Free, known: Mapping[str, Slot]) -> tuple[Slot, ...]:
    """Return slots for the workers of a job that shares slots; empty if its new slots or its memory are not free."""
    nameless = [found for found in dict.fromkeys(fit.bins) if found.slot is None]
    if len(nameless) > len(free.slots) or job.least * job.memory > max(0, free.memory):
        return ()
    free.memory -= job.least * job.memory
    for found in nameless:
        found.slot = free.slots.pop().id
    return tuple(known[found.slot] for found in fit.bins if found.slot is not None)


def _move(job: SchedulerJob, target: int, free: Free, known: Mapping[str, Slot]) -> tuple[Slot, ...]:
    """Return `target` slots for a running job, or as many as are free. The job keeps slots that it has."""
    keep = [known[name] for name in job.slots if name in known][:target]
    # Slots that the job is giving up are as good as free for it: no other job can have them, or their memory, yet.
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
