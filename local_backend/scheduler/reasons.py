"""Why a job waits, in words, and until when at least; why it never runs. Pure.

The sentence of a job changes only when something about that job changes: it is in its row of the database, and there
may be thousands of them. Its place in the queue and the estimate change all the time, and are beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from local_backend.scheduler.admission import Admission, Refusal
from local_backend.scheduler.model import CPU, GPU, WHOLE, Job, Machine, Reason
from local_backend.scheduler.packing import Shared
from local_backend.scheduler.tree import Node

#: What a job can lack → what its submitter can do: "wait", "change" the submission, or "ask" an administrator; and what
#: would make it start. {slots} are those that it wants, {user} is whom it counts for.
CODES = {
    "SLOTS": ("wait", "when {missing} more of them come free"),
    "QUEUE": ("wait", "when those before it have begun, and {slots} are left"),
    "LEAVING": ("wait", "as soon as nothing of the others is on them any more"),
    "PLAN_LIMIT": ("ask", "when other jobs of the plan end, or with a larger max of the plan (--rp-apply)"),
    "USER_LIMIT": ("wait", "when other jobs of {user} end, or with a larger user_max of the plan (--rp-apply)"),
    "SHARE": ("wait", "when others of {user} or of the plan end, more is free, or with a higher --msd-priority"),
    "RESERVED": ("wait", "when those plans want less, or when it counts for one of them (--consumer)"),
    "MEMORY": ("wait", "when others give memory back, or with a smaller --workerMemory"),
    "PACK": ("wait", "when another job of the pack ends, or in another pack (--msd-pack-id)"),
    "MACHINE": ("ask", "when the server is started with as many slots again, or when it asks for less"),
    "DRAINED": ("ask", "when these are in service again, or when it asks for less"),
}
#: The same for who asks for more than its limit.
_NEVER = ("change", "only when it asks for less, or with a larger limit (--rp-apply)")


def want(job: Job) -> str:
    """The slots without which it cannot run."""
    kind = kind_name(job.kind)
    if job.shares:
        part = f"{job.share / WHOLE:g} of a {kind} slot" + (f" in the pack {_pack(job)}" if job.pack else "")
        return part if job.least == 1 else f"{job.least} times {part}"
    return f"{job.floor} {kind} slot{'s' if job.floor > 1 else ''}"


def kind_name(kind: str) -> str:
    """As people call slots of this kind."""
    return kind.upper() if kind in (CPU, GPU) else f"MIG {kind}"


def expired(job: Job) -> str:
    """It has waited longer than it said that it would."""
    return f"waited longer than {job.patience:g} s (--msd-pending-timeout) for {want(job)}"


def impossible(job: Job, machine: Machine) -> str | None:
    """Why it can never run on this machine; None when it can."""
    total = machine.count(job.kind)
    for name, value in job.labels:
        there = machine.labels.get(name)
        if there is None or value not in ("", there):
            has = f"has {name}={there}" if there is not None else "has no such label"
            return (f"asks for a node with {name}{'=' * bool(value)}{value}, and this machine {has}; use another "
                    "--msd-task12n-node-selector, or a server started with that label in DLI_NODE_LABELS")
    if job.pack and job.least * job.share > WHOLE:
        return f"asks for {want(job)}, and a pack has one slot; use a smaller --numWorker or --workerGPULimit"
    if _least(job) > total:
        return f"asks for {want(job)}, and this machine has {total}; use {_cure(job, total)}"
    if machine.memory is not None and job.least * job.memory > machine.memory:
        asked = f"{job.least} workers of {job.memory >> 20} MiB" if job.least > 1 else f"{job.memory >> 20} MiB"
        return (f"asks for {asked} of memory, and this machine has {machine.memory >> 20} MiB; "
                "use a smaller --workerMemory")
    return None


def _least(job: Job) -> int:
    """Slots that it needs when nobody else is there."""
    if not job.shares:
        return job.floor
    return 1 if job.pack else -(-job.least // (WHOLE // job.share))


def _cure(job: Job, total: int) -> str:
    cures = ["a smaller --numWorker"] if job.least > 1 else []
    if job.per_worker > 1:
        cures.append("a smaller --workerDeviceNum")
    if job.kind == CPU:
        cures.append("a server started with a larger DLI_SLOTS")
    elif not total:
        cures.append("another profile (hardwareSpec mig_profile)" if job.kind != GPU else "--workerDeviceType cpu")
    return ", or ".join(cures) or "less"


class Queue:
    """Those who wait for one kind of slot, in their order."""

    def __init__(  # noqa: PLR0917
        self, admission: Admission, fixed: Iterable[Job], shared: Shared, machine: Machine, kind: str, now: float
    ) -> None:
        self._admission = admission
        self._shared = shared
        self._total = machine.count(kind)
        self._drained = sorted(slot.id for slot in machine.slots if slot.kind == kind and slot.id in machine.drained)
        self._why = machine.drained
        self._now = now
        ends = [(job.ends, job.weight) for job in fixed]
        ends += [(job.ends, job.size) for job in admission.admitted]
        self._free = admission.left
        self._ends = sorted((end, slots) for end, slots in ends if end is not None)
        self._position = 0

    def refused(self) -> Iterator[tuple[Job, Reason]]:
        """Jobs that were not let go."""
        needed, gone, freed = 0.0, 0, float(self._free)
        for refusal in self._admission.refused:
            job = refusal.job
            if job.running and job.slots:
                continue
            self._position += 1
            estimate = None
            if refusal.lacks in ("slots", "queue", "reserved", "share"):
                needed += job.size
                while gone < len(self._ends) and freed < needed:
                    freed += self._ends[gone][1]
                    gone += 1
                if freed >= needed:
                    estimate = max(self._now, self._ends[gone - 1][0] if gone else self._now)
            code, sentence = self._say(refusal)
            advice, starts = _NEVER if _never(refusal) else CODES[code]
            missing = max(1, math.ceil(job.size - self._free))
            starts = starts.format(missing=missing, slots=want(job), user=job.user)
            yield job, Reason(code, sentence, self._position, estimate, advice, starts)

    def late(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Reason]]:
        """Jobs whose slots others are giving up."""
        for job in jobs:
            self._position += 1
            verb = "are" if job.floor > 1 else "is"
            sentence, (advice, starts) = f"its {want(job)} {verb} being given up by others", CODES["LEAVING"]
            yield job, Reason("LEAVING", sentence, self._position, self._now, advice, starts)

    def _say(self, refusal: Refusal) -> tuple[str, str]:
        job = refusal.job
        if refusal.lacks == "memory":
            return "MEMORY", f"waiting for {job.memory >> 20} MiB of memory per worker (--workerMemory)"
        code, waits = _limit(job, refusal.limit) if refusal.limit is not None else self._lack(refusal)
        return code, f"waiting for {want(job)}{waits}"

    def _lack(self, refusal: Refusal) -> tuple[str, str]:
        """The code, and how the sentence goes on that says what the job wants."""
        job, free = refusal.job, max(0, self._free)
        if refusal.lacks == "reserved":
            return "RESERVED", "; those that are free are reserved for other plans"
        if refusal.lacks == "share":
            return "SHARE", f"; {job.user} has the part that is due, and others want theirs"
        if refusal.lacks == "pack":
            return "PACK", f", which has {self._shared.left(job.pack) / WHOLE:g} left"
        if _least(job) > self._total - len(self._drained):
            out = ", ".join(f"{name}: {self._why[name]}" for name in self._drained)
            enough = _least(job) <= self._total
            return ("DRAINED", f"; out of service are {out}") if enough else (
                "MACHINE", f"; the machine has {self._total} now")
        if refusal.lacks == "slots" and (job is self._admission.head or self._position == 1):
            return "SLOTS", f"; {free} of {self._total} {kind_name(job.kind)} slots can be had"
        return "QUEUE", "; others wait before it"


def _never(refusal: Refusal) -> bool:
    """Whether it asks for more than the limit that it is refused for."""
    return refusal.limit is not None and refusal.job.size > (refusal.limit.plan.most or 0)


def _limit(job: Job, node: Node) -> tuple[str, str]:
    most = f"{node.plan.most} slot{'s' if node.plan.most != 1 else ''}"
    if node.is_user:
        return "USER_LIMIT", f"; {job.user} may have at most {most} at a time"
    return "PLAN_LIMIT", f"; the plan {node.name} has at most {most}"


def _pack(job: Job) -> str:
    """The pack as its user calls it."""
    return job.pack.partition("/")[2]
