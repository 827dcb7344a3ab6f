"""Sentences that say why a job waits, with its earliest start, and why a job can never run. Pure."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cached_property

from local_backend.scheduler.admission import Admission, Refusal, refusals
from local_backend.scheduler.model import CPU, GPU, WHOLE, Machine, Reason, SchedulerJob
from local_backend.scheduler.packing import Shared
from local_backend.scheduler.tree import PlanNode

#: Code of what a job lacks → what its submitter can do ("wait", "change" the submission, or "ask" an administrator),
#: and what would make it start. {slots} are the slots that the job needs, {user} is the user that it counts for.
CODES = {
    "SLOTS": ("wait", "when running jobs release {missing}"),
    "QUEUE": ("wait", "when the jobs before it have started and leave {slots} free"),
    "LEAVING": ("wait", "when the other jobs have released its slots"),
    "PLAN_LIMIT": ("ask", "when other jobs of the plan end, or when an administrator raises its max (--rp-apply)"),
    "USER_LIMIT": (
        "wait", "when other jobs of {user} end, or when an administrator raises the plan's user_max (--rp-apply)"
    ),
    "SHARE": (
        "wait", "when jobs of {user} or of the plan end, when more slots are free, or with a higher --msd-priority"
    ),
    "RESERVED": ("wait", "when those plans need fewer slots, or if you submit it to one of them (--consumer)"),
    "MEMORY": ("wait", "when other jobs release memory, or with a smaller --workerMemory"),
    "PACK": ("wait", "when another job of the pack ends, or in another pack (--msd-pack-id; gpu_pack_id of a model)"),
    "MACHINE": ("ask", "when the server is started with enough slots, or if you submit it with fewer slots"),
    "REQUESTS": ("wait", "when the first request arrives"),
    "RESTS": ("wait", "when the search that it belongs to lets it train on"),
    "DRAINED": ("ask", "when these slots are in service again, or if you submit it with fewer slots"),
}
#: The same for a job that asks for more than its limit.
_NEVER = ("change", "only if you submit it with fewer slots, or if an administrator raises the limit (--rp-apply)")
#: What a job lacks if it starts as soon as enough slots are free for it and the jobs before it.
_FOR_SLOTS = frozenset({"slots", "queue", "reserved", "share"})


def want(job: SchedulerJob) -> str:
    """Return the slots that a job needs to run, in words."""
    kind = kind_name(job.kind)
    if job.shares:
        part = f"{job.share / WHOLE:g} of a {kind} slot" + (f" in the pack {_pack(job)}" if job.pack else "")
        return part if job.least == 1 else f"{job.least} times {part}"
    return f"{job.floor} {kind} slot{'s' if job.floor > 1 else ''}"


def kind_name(kind: str) -> str:
    """Return the name of this kind of slot in messages."""
    return kind.upper() if kind in (CPU, GPU) else f"MIG {kind}"


def resting(epochs: int) -> Reason:
    """Return why a job does not train that a search has set aside after this number of finished epochs."""
    advice, starts = CODES["RESTS"]
    return Reason("RESTS", f"the search set it aside after epoch {epochs}; its state is kept", 0, None, advice, starts)


def without_requests() -> Reason:
    """Return why a service has no slots that may have none while nobody sends requests."""
    advice, starts = CODES["REQUESTS"]
    return Reason("REQUESTS", "there are no requests; its kernels start when the first one arrives", 0, None, advice,
                  starts)


def expired(job: SchedulerJob) -> str:
    """Return the sentence for a job that has waited longer than it allowed."""
    return f"waited longer than {job.patience:g} s (--msd-pending-timeout) for {want(job)}"


def impossible(job: SchedulerJob, machine: Machine) -> str | None:
    """Return why a job can never run on this machine; None if it can."""
    total = machine.count(job.kind)
    for name, value in job.labels:
        there = machine.labels.get(name)
        if there is None or value not in ("", there):
            has = f"has {name}={there}" if there is not None else f"has no label {name}"
            return (f"the job needs a node with {name}{'=' * bool(value)}{value}, but this machine {has}; use another "
                    "--msd-task12n-node-selector, or start the server with that label in DLI_NODE_LABELS")
    if job.pack and job.least * job.share > WHOLE:
        return f"the job needs {want(job)}, but a pack has 1 slot; use a smaller --numWorker or --workerGPULimit"
    if _least(job) > total:
        return f"the job needs {want(job)}, but this machine has {total}; {_cure(job, total)}"
    if machine.memory is not None and job.least * job.memory > machine.memory:
        each = f" for each of {job.least} workers" if job.least > 1 else ""
        return (f"the job needs {job.memory >> 20} MiB of memory{each}, but this machine has "
                f"{machine.memory >> 20} MiB; use a smaller --workerMemory")
    return None


def _least(job: SchedulerJob) -> int:
    """Return the number of slots that a job needs on a machine without other jobs."""
    if not job.shares:
        return job.floor
    return 1 if job.pack else -(-job.least // (WHOLE // job.share))


def _cure(job: SchedulerJob, total: int) -> str:
    cures = ["use a smaller --numWorker"] if job.least > 1 else []
    if job.per_worker > 1:
        cures.append("use a smaller --workerDeviceNum")
    if job.kind == CPU:
        cures.append("start the server with a larger DLI_SLOTS")
    elif not total:
        profile = "use another profile (hardwareSpec mig_profile)"
        cures.append(profile if job.kind != GPU else "use --workerDeviceType cpu")
    return ", or ".join(cures) or "request fewer slots"


class Queue:
    """The jobs that wait for one kind of slot, in order: pending jobs, and running jobs that are parked.

    Reasons are computed on demand: thousands of jobs may wait, and most reasons are never read.
    """

    def __init__(  # noqa: PLR0917
        self, admission: Admission, late: Iterable[SchedulerJob], fixed: Iterable[SchedulerJob], shared: Shared,
        machine: Machine, kind: str, now: float,
    ) -> None:
        """`late` are admitted jobs whose slots other jobs are still giving up."""
        self._asked = list(filter(_waits, admission.refused))
        self._rest = admission.rest
        self._late = [Refusal(job, "leaving", admission.owners[job.exec_id]) for job in late]
        self._head = admission.head
        self._shared = shared
        self._total = machine.count(kind)
        self._drained = sorted(slot.id for slot in machine.slots if slot.kind == kind and slot.id in machine.drained)
        self._why = machine.drained
        self._now = now
        ends = [(job.ends, job.weight) for job in fixed]
        ends += [(job.ends, job.size) for job in admission.admitted]
        self._free = admission.left
        self._ends = sorted((end, slots) for end, slots in ends if end is not None)
        # The tree is dissolved after the decision, and the names of its plans are lost. So format them now.
        self._limits = {limit: _limit(limit) for limit in {one.limit for one in self._asked} if limit is not None}

    def __iter__(self) -> Iterator[SchedulerJob]:
        return (one.job for one in self._line)

    def __len__(self) -> int:
        return len(self._asked) + len(self._rest or ()) + len(self._late)

    @property
    def apart(self) -> Iterator[tuple[int, SchedulerJob]]:
        """Positions (from 0) and jobs of all parked jobs and all jobs with a time limit; none is in `_rest`."""
        later = len(self) - len(self._late)
        for at, one in itertools.chain(enumerate(self._asked), enumerate(self._late, later)):
            if one.job.running or one.job.patience is not None:
                yield at, one.job

    @cached_property
    def _line(self) -> list[Refusal]:
        return [*self._asked, *refusals(self._rest), *self._late]

    def reason(self, at: int) -> Reason:
        """Return why the job at this position waits; the first position is 0."""
        refusal = self._line[at]
        job = refusal.job
        code, sentence = self._say(at)
        advice, starts = _NEVER if _never(refusal) else CODES[code]
        missing = max(1, math.ceil(job.size - self._free))
        more = f"{missing} more slot{'s' if missing > 1 else ''}"
        starts = starts.format(missing=more, slots=want(job), user=job.user)
        return Reason(code, sentence, at + 1, self._estimate(at), advice, starts)

    def _estimate(self, at: int) -> float | None:
        """Return when enough slots are free for this job and those before it; None when unknown."""
        lacks = self._line[at].lacks
        if lacks == "leaving":
            return self._now
        if lacks not in _FOR_SLOTS:
            return None
        gone = bisect.bisect_left(self._freed, self._needed[at])
        if gone == len(self._freed):
            return None
        return max(self._now, self._ends[gone - 1][0]) if gone else self._now

    @cached_property
    def _needed(self) -> list[float]:
        """Slots for each job and those before it."""
        return list(itertools.accumulate(one.job.size if one.lacks in _FOR_SLOTS else 0.0 for one in self._line))

    @cached_property
    def _freed(self) -> list[float]:
        """Slots that are free now, after the first running job has ended, after the second, ..."""
        return list(itertools.accumulate((slots for _, slots in self._ends), initial=float(self._free)))

    def _say(self, at: int) -> tuple[str, str]:
        refusal = self._line[at]
        job = refusal.job
        if refusal.lacks == "leaving":
            return "LEAVING", f"waiting for other jobs to release {want(job)}"
        if refusal.lacks == "memory":
            return "MEMORY", f"waiting for {job.memory >> 20} MiB of memory per worker (--workerMemory)"
        code, waits = self._limits[refusal.limit] if refusal.limit is not None else self._lack(at)
        return code, f"waiting for {want(job)}{waits}"

    def _lack(self, at: int) -> tuple[str, str]:
        """Return the code, and the end of the sentence that begins with what the job wants."""
        refusal = self._line[at]
        job, free = refusal.job, max(0, self._free)
        if refusal.lacks == "reserved":
            return "RESERVED", "; the free slots are reserved for other plans"
        if refusal.lacks == "share":
            whose = "its search" if refusal.owner.is_group and refusal.owner.is_full else job.user
            return "SHARE", f"; {whose} already has a fair share, and other users, plans or jobs need slots"
        if refusal.lacks == "pack":
            return "PACK", f", which has {self._shared.left(job.pack) / WHOLE:g} left"
        if _least(job) > self._total - len(self._drained):
            out = ", ".join(f"{name} ({self._why[name]})" for name in self._drained)
            enough = _least(job) <= self._total
            return ("DRAINED", f"; out of service: {out}") if enough else (
                "MACHINE", f"; the machine now has only {self._total}")
        if refusal.lacks == "slots" and (job is self._head or at == 0):
            return "SLOTS", f"; {free} of {self._total} {kind_name(job.kind)} slots are free"
        return "QUEUE", "; other jobs are before it in the queue"


class Waiting(Mapping[str, Reason]):
    """Why each of many jobs waits, computed on demand. Safe to use from any thread."""

    def __init__(self) -> None:
        self._queues: list[tuple[Queue, Set[str]]] = []

    def add(self, queue: Queue, without: Set[str]) -> None:
        """Add the jobs of a queue, except those whose ids are in `without`."""
        self._queues.append((queue, without))

    @cached_property
    def _places(self) -> dict[str, tuple[Queue, int]]:
        return {
            job.exec_id: (queue, at)
            for queue, without in self._queues for at, job in enumerate(queue) if job.exec_id not in without
        }

    def __getitem__(self, exec_id: str) -> Reason:
        queue, at = self._places[exec_id]
        return queue.reason(at)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return sum(len(queue) - len(without) for queue, without in self._queues)


def _waits(refusal: Refusal) -> bool:
    """Return whether a refused job has no slots. A running job may be refused more slots, or those it has."""
    return not (refusal.job.running and refusal.job.slots)


def _never(refusal: Refusal) -> bool:
    """Return whether a job asks for more than the limit that refuses it."""
    return refusal.limit is not None and refusal.job.size > (refusal.limit.plan.most or 0)


def _limit(node: PlanNode) -> tuple[str, str]:
    most = f"{node.plan.most} slot{'s' if node.plan.most != 1 else ''}"
    if node.is_user:
        return "USER_LIMIT", f"; {node.plan.name} may have at most {most} at a time"
    return "PLAN_LIMIT", f"; the plan {node.name} may have at most {most} at a time"


def _pack(job: SchedulerJob) -> str:
    """Return the pack by the name that its user gave it."""
    return job.pack.partition("/")[2]
