"""Placement: turn numbers of slots into slots. Each job keeps its slots as far as possible. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from local_backend.scheduler.admission import Admission
from local_backend.scheduler.model import WHOLE, Decision, SchedulerJob, Slot
from local_backend.scheduler.packing import Bin, Fit


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
    jobs: Sequence[SchedulerJob], admission: Admission, targets: Mapping[str, int], usable: Sequence[Slot], free: Free,
    decision: Decision,
) -> list[SchedulerJob]:
    """Write starts and resizes into `decision`. Return the admitted jobs that wait until others give up slots.

    `targets` are slots, or the kernels of services in packs.
    """
    known = {slot.id: slot for slot in usable}
    packs = _Packs(jobs, known)
    late, admitted = [], {}
    for job in admission.admitted:
        admitted[job.exec_id] = job
        if job.running:
            continue
        if job.pack:
            slots = packs.join(job, admission.fits[job.exec_id].bins[0], targets.get(job.exec_id, job.least), free)
        elif job.shares:
            slots = _join(job, admission.fits[job.exec_id], free, known)
        else:
            slots = _begin(job, targets[job.exec_id], free)
        if slots:
            decision.start[job.exec_id] = slots
        else:
            late.append(job)
    for job in jobs:
        if job.running and job.elastic and job.movable:
            now, target = admitted.get(job.exec_id, job), targets.get(job.exec_id, 0)
            if not job.pack:
                slots = _move(now, target, free, known)
            else:
                slots = packs.join(now, admission.fits[job.exec_id].bins[0], target, free) if target else ()
            if tuple(slot.id for slot in slots) != job.slots:
                decision.resize[job.exec_id] = slots
    return late


class _Packs:
    """The slots of packs, while decisions are turned into slots."""

    def __init__(self, jobs: Iterable[SchedulerJob], known: Mapping[str, Slot]) -> None:
        """`jobs` are all jobs on slots of one kind, and `known` the usable slots of this kind."""
        self._known = known
        #: Slot with jobs of a pack → its free parts. Parts that a job is giving up are not free yet.
        self._left: dict[str, int] = {}
        for job in jobs:
            for slot in job.held if job.pack else ():
                self._left[slot] = self._left.get(slot, WHOLE) - job.share

    def join(self, job: SchedulerJob, found: Bin, target: int, free: Free) -> tuple[Slot, ...]:
        """Return the slot of a job's pack, once per worker: `target` times, or as often as parts and memory are free
        now. Parts that the job is giving up count as free for it. Empty if the job needs more."""
        slot = found.slot or (free.slots[-1].id if free.slots else None)
        if slot is None or slot not in self._known:
            return ()
        own, left = job.held.count(slot), self._left.get(slot, WHOLE)
        more = max(0, left) // job.share
        if job.memory:
            more = min(more, free.workers(job))
        count = min(target, own + more)
        if count < job.least:
            return ()
        if found.slot is None:
            found.slot = free.slots.pop().id
        new = max(0, count - own)
        self._left[slot] = left - new * job.share
        free.memory -= new * job.memory
        return (self._known[slot],) * count


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
