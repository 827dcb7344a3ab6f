"""Why a job waits, in words, and until when at least; why it never runs. Pure.

The sentence of a job changes only when something about that job changes: it is in its row of the database, and there
may be thousands of them. Its place in the queue and the estimate change all the time, and are beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from local_backend.scheduler.admission import Admission, Refusal
from local_backend.scheduler.model import CPU, Job, Reason

#: What a job can lack → what its submitter can do: "wait", "change" the submission, or "ask" an administrator.
CODES = {
    "SLOTS": "wait",
    "QUEUE": "wait",
    "LEAVING": "wait",
    "PLAN_LIMIT": "ask",
    "USER_LIMIT": "wait",
    "MEMORY": "wait",
}


def want(job: Job) -> str:
    """The slots without which it cannot run."""
    return f"{job.floor} {job.kind.upper()} slot{'s' if job.floor > 1 else ''}"


def expired(job: Job) -> str:
    """It has waited longer than it said that it would."""
    return f"waited longer than {job.patience:g} s (--msd-pending-timeout) for {want(job)}"


def impossible(job: Job, total: int, memory: int | None) -> str | None:
    """Why it can never run on a machine with so many slots of its kind and so much memory; None when it can."""
    if job.floor > total:
        cure = "a smaller --numWorker" if job.least > 1 else ""
        if job.per_worker > 1:
            cure += (" or " if cure else "") + "a smaller --workerDeviceNum"
        if job.kind == CPU:
            cure += (", or " if cure else "") + "a server started with a larger DLI_SLOTS"
        return f"asks for {want(job)}, and this machine has {total}; use {cure}"
    if memory is not None and job.least * job.memory > memory:
        asked = f"{job.least} workers of {job.memory >> 20} MiB" if job.least > 1 else f"{job.memory >> 20} MiB"
        return f"asks for {asked} of memory, and this machine has {memory >> 20} MiB; use a smaller --workerMemory"
    return None


class Queue:
    """Those who wait for one kind of slot, in their order."""

    def __init__(self, admission: Admission, fixed: Iterable[Job], usable: int, total: int, now: float) -> None:
        """`usable` of `total` slots may be used."""
        self._admission = admission
        self._total = total
        self._now = now
        ends = [(job.ends, len(job.slots)) for job in fixed]
        ends += [(job.ends, job.floor) for job in admission.admitted]
        self._free = usable - sum(slots for _, slots in ends)
        self._ends = sorted((end, slots) for end, slots in ends if end is not None)
        self._position = 0

    def refused(self) -> Iterator[tuple[Job, Reason]]:
        """Jobs that were not let go."""
        needed, gone, freed = 0, 0, self._free
        for refusal in self._admission.refused:
            job = refusal.job
            if job.running:
                continue
            self._position += 1
            estimate = None
            if refusal.lacks in ("slots", "queue"):
                needed += job.floor
                while gone < len(self._ends) and freed < needed:
                    freed += self._ends[gone][1]
                    gone += 1
                if freed >= needed:
                    estimate = max(self._now, self._ends[gone - 1][0] if gone else self._now)
            code, sentence = self._say(refusal)
            yield job, Reason(code, sentence, self._position, estimate)

    def late(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Reason]]:
        """Jobs whose slots others are giving up."""
        for job in jobs:
            self._position += 1
            yield job, Reason("LEAVING", f"its {want(job)} are being given up by others", self._position, self._now)

    def _say(self, refusal: Refusal) -> tuple[str, str]:
        job, kind = refusal.job, refusal.job.kind.upper()
        if refusal.lacks == "memory":
            return "MEMORY", f"waiting for {job.memory >> 20} MiB of memory per worker (--workerMemory)"
        if refusal.limit is not None:
            node = refusal.limit
            most = f"{node.plan.most} slot{'s' if node.plan.most != 1 else ''}"
            if node.is_user:
                return "USER_LIMIT", f"waiting for {want(job)}; {job.user} may have at most {most} at a time"
            return "PLAN_LIMIT", f"waiting for {want(job)}; the plan {node.name} has at most {most}"
        if refusal.lacks == "slots" and job is self._admission.head:
            free = max(0, self._free)
            return "SLOTS", f"waiting for {want(job)}; {free} of {self._total} {kind} slots can be had"
        return "QUEUE", f"waiting for {want(job)}; others wait before it"
