"""Decides which waiting jobs start on which slots. Pure: the same arguments give the same decision.

First come, first served, per kind of slot. A fixed-size job starts with all its slots or not at all; an elastic one
starts as soon as one worker fits and takes what is free up to its maximum. Nobody overtakes the first one waiting, so
nobody starves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

CPU = "cpu"
GPU = "gpu"


@dataclass(frozen=True)
class Slot:
    """One schedulable device: a GPU, or a share of the machine's cores."""

    id: str
    kind: str
    #: What CUDA_VISIBLE_DEVICES calls it; empty for a CPU slot.
    device: str = ""


@dataclass(frozen=True)
class Request:
    """A job that waits for slots."""

    exec_id: str
    kind: str
    #: Slots per worker, at least 1.
    per_worker: int
    #: Workers without which the job cannot start; equal to `most` for a fixed-size job.
    least: int
    #: Workers that it would use at most.
    most: int
    #: When it began to wait, on the clock that `now` is read from, in seconds.
    since: float
    #: How long it may wait, None for ever.
    patience: float | None = None


@dataclass
class Decision:
    """What to do now; every job that was asked about is in exactly one of the four."""

    start: dict[str, tuple[Slot, ...]] = field(default_factory=dict)
    #: Could never be scheduled on this machine → the sentence that says why and names the cure.
    impossible: dict[str, str] = field(default_factory=dict)
    #: Waited longer than it allowed → the sentence.
    expired: dict[str, str] = field(default_factory=dict)
    #: Goes on waiting → what for.
    waiting: dict[str, str] = field(default_factory=dict)


def decide(jobs: Sequence[Request], free: Sequence[Slot], total: Sequence[Slot], now: float) -> Decision:
    """One scheduling pass over `jobs` in their order, oldest first."""
    decision = Decision()
    left = {kind: [slot for slot in free if slot.kind == kind] for kind in (CPU, GPU)}
    size = {kind: sum(slot.kind == kind for slot in total) for kind in (CPU, GPU)}
    blocked: set[str] = set()
    for job in jobs:
        pool = left[job.kind]
        if job.least * job.per_worker > size[job.kind]:
            decision.impossible[job.exec_id] = _too_big(job, size[job.kind])
        elif job.kind not in blocked and (count := _grant(job, len(pool))):
            decision.start[job.exec_id] = tuple(pool[:count])
            left[job.kind] = pool[count:]
        elif job.patience is not None and now - job.since >= job.patience:
            decision.expired[job.exec_id] = (
                f"waited longer than {job.patience:g} s (--msd-pending-timeout) for {_want(job)}"
            )
        else:
            # Said in a way that changes only for the first one whenever a slot comes or goes.
            state = "others wait before it" if job.kind in blocked else f"{len(pool)} of {size[job.kind]} free"
            decision.waiting[job.exec_id] = f"waiting for {_want(job)}; {state}"
            blocked.add(job.kind)
    return decision


def _grant(job: Request, free: int) -> int:
    """Slots that the job gets out of `free`, 0 when it cannot start."""
    workers = min(job.most, free // job.per_worker)
    return workers * job.per_worker if workers >= job.least else 0


def _want(job: Request) -> str:
    return f"{job.least * job.per_worker} {job.kind.upper()} slot{'s' if job.least * job.per_worker > 1 else ''}"


def _too_big(job: Request, size: int) -> str:
    cure = "a smaller --numWorker" if job.least > 1 else ""
    if job.per_worker > 1:
        cure += (" or " if cure else "") + "a smaller --workerDeviceNum"
    if job.kind == CPU:
        cure += (", or " if cure else "") + "a server started with a larger DLI_SLOTS"
    return f"asks for {_want(job)}, and this machine has {size}; use {cure}"
