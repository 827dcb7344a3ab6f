"""Lent slots that fixed-size jobs are on: taken back when their owner has waited as long as the plan grants. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from local_backend.scheduler.admission import Admission
from local_backend.scheduler.model import Job
from local_backend.scheduler.sharing import Claim, share
from local_backend.scheduler.tree import Node


def reclaim(root: Node, admission: Admission, fixed: Sequence[Job], capacity: int, now: float) -> dict[str, str]:
    """Jobs that have to end and wait again → the exec that gets their slots.

    Only for jobs that lack slots, whose plan stays within its share with them; only from plans that have more than
    theirs and a reclaim grace, which the job must have waited; the youngest first, and only if that is enough. Who
    shares a slot keeps it: that one of several leaves it makes room for nobody.
    """
    lacking = [refusal.job for refusal in admission.refused if refusal.lacks == "slots" and not refusal.job.running]
    if not lacking or not any(_grace(root, job) is not None for job in fixed):
        return {}
    due = _due(root, [*fixed, *admission.admitted, *lacking], capacity)
    held: dict[Node, float] = {}
    for job in [*fixed, *admission.admitted]:
        plan = root.find(job.plan)
        held[plan] = held.get(plan, 0) + (job.weight if job.fixed else job.size)
    for job in lacking:
        plan = root.find(job.plan)
        if held.get(plan, 0) + job.size > due.get(plan, 0):
            continue
        victims: list[Job] = []
        found = admission.left
        for victim in sorted(fixed, key=lambda one: -one.started):
            grace, owner = _grace(root, victim), root.find(victim.plan)
            over = held[owner] - sum(v.weight for v in victims if root.find(v.plan) is owner)
            if victim.shares or grace is None or now - job.since < grace:
                continue
            if over - victim.floor < due.get(owner, 0):
                continue
            victims.append(victim)
            found += victim.floor
            if found >= job.size:
                return {victim.exec_id: job.exec_id for victim in victims}
    return {}


def graces(root: Node, admission: Admission, fixed: Iterable[Job]) -> list[float]:
    """Moments at which a grace is over."""
    found = {grace for job in fixed if (grace := _grace(root, job)) is not None}
    lacking = [refusal.job for refusal in admission.refused if refusal.lacks == "slots"]
    return [job.since + grace for job in lacking for grace in found]


def _grace(root: Node, job: Job) -> float | None:
    return root.find(job.plan).plan.reclaim_grace


def _due(root: Node, jobs: Iterable[Job], capacity: int) -> dict[Node, int]:
    """The slots that are each plan's own while all of these jobs want some: by weight, at least what is reserved."""
    wanted: dict[Node, int] = {}
    for job in jobs:
        for node in root.find(job.plan).user(job.user).up():
            wanted[node] = wanted.get(node, 0) + (math.ceil(job.size) if job.shares else job.ceiling)
    found: dict[Node, int] = {}

    def divide(node: Node, slots: int) -> None:
        found[node] = slots
        claims = []
        for child in node.children:
            most = min(wanted.get(child, 0), capacity if child.plan.most is None else child.plan.most)
            claims.append(Claim(min(child.plan.reserved, most), most, child.plan.weight))
        for child, got in zip(node.children, share(slots, claims), strict=True):
            divide(child, got)

    divide(root, capacity)
    return found
