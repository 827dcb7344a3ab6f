"""Which jobs run: those whose floor fits, in the order in which the tree asks them. Pure.

The first one that has to wait for slots is the *head*. Elastic jobs may begin although it waits, for they make room as
soon as it can begin; a job of a fixed size may if it is over before the head can begin, or takes only what the head
leaves (EASY backfilling: Lifka, "The ANL/IBM SP scheduling system", 1995), and not when the head has waited too long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from local_backend.scheduler.model import Job
from local_backend.scheduler.tree import Node

#: Seconds after which nobody of a fixed size overtakes a waiting job any more.
OVERTAKING_SECONDS = 3600.0


@dataclass
class Refusal:
    """Why a job gets nothing now."""

    job: Job
    #: "slots", "queue", "plan" or "memory".
    lacks: str
    #: The plan or user whose limit it is.
    limit: Node | None = None


@dataclass
class Admission:
    """Jobs in the order in which they were asked."""

    admitted: list[Job] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    head: Job | None = None


@dataclass
class _Shadow:
    """When the head can begin, as far as is known, and the slots that will be left then."""

    at: float
    spare: int


def admit(root: Node, capacity: int, memory: int, now: float) -> Admission:
    """Ask all jobs of a tree whose `queue` has begun.

    `capacity`: slots that are not those of fixed jobs that run; `memory`: bytes that are not theirs.
    """
    found = Admission()
    shadow: _Shadow | None = None
    while (job := root.peek()) is not None:
        user = root.user_of_next()
        limit = user.limit(job.floor)
        if limit is not None:
            found.refused.append(Refusal(job, "plan", limit))
        elif job.least * job.memory > memory:
            found.refused.append(Refusal(job, "memory"))
        elif job.floor > capacity:
            found.refused.append(Refusal(job, "slots"))
            if found.head is None and not job.running:
                found.head, shadow = job, None
        else:
            if found.head is not None and not job.elastic:
                shadow = shadow or _shadow(root, found.head, found.admitted, capacity, now)
                if not _may_overtake(job, found.head, shadow, now):
                    found.refused.append(Refusal(job, "queue"))
                    root.advance()
                    continue
            found.admitted.append(job)
            user.take(job.floor)
            capacity -= job.floor
            memory -= job.least * job.memory
        root.advance()
    return found


def _shadow(root: Node, head: Job, admitted: list[Job], free: int, now: float) -> _Shadow:
    """`free`: slots that nobody needs."""
    # An elastic job that was let go before the head keeps its floor; it may end, too.
    ends = [(_end(job, now), len(job.slots) if job.fixed else job.floor) for job in [*_fixed(root), *admitted]]
    for at, slots in sorted(ends):
        free += slots
        if free >= head.floor:
            return _Shadow(at, free - head.floor)
    return _Shadow(math.inf, 0)


def _fixed(root: Node) -> list[Job]:
    """Fixed jobs that run; the tree holds them apart from those that are asked."""
    found, nodes = [], [root]
    while nodes:
        node = nodes.pop()
        found += node.fixed
        nodes += node.children
    return found


def _end(job: Job, now: float) -> float:
    if job.running:
        return math.inf if job.ends is None else max(job.ends, now)
    return math.inf if job.lasts is None else now + job.lasts


def _may_overtake(job: Job, head: Job, shadow: _Shadow, now: float) -> bool:
    if now - head.since >= OVERTAKING_SECONDS:
        return False
    if job.lasts is not None and now + job.lasts <= shadow.at:
        return True
    if job.floor <= shadow.spare:
        shadow.spare -= job.floor
        return True
    return False
