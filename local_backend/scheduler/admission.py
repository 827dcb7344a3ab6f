"""Which jobs run: those whose floor fits, in the order in which the tree asks them. Pure.

The first one that has to wait for slots is the *head*. Elastic jobs may begin although it waits, for they make room as
soon as it can begin; a job of a fixed size may if it is over before the head can begin, or takes only what the head
leaves (EASY backfilling: Lifka, "The ANL/IBM SP scheduling system", 1995), and not when the head has waited too long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from local_backend.scheduler.model import Job
from local_backend.scheduler.packing import Fit, Shared
from local_backend.scheduler.tree import Node

#: Seconds after which nobody of a fixed size overtakes a waiting job any more.
OVERTAKING_SECONDS = 3600.0


@dataclass
class Refusal:
    """Why a job gets nothing now."""

    job: Job
    #: "slots", "queue", "plan", "memory" or "pack".
    lacks: str
    #: The plan or user whose limit it is.
    limit: Node | None = None


@dataclass
class Admission:
    """Jobs in the order in which they were asked."""

    admitted: list[Job] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    head: Job | None = None
    #: Slots that nobody needs.
    left: int = 0
    #: Where jobs go that share their slots.
    fits: dict[str, Fit] = field(default_factory=dict)


@dataclass
class _Shadow:
    """When the head can begin, as far as is known, and the slots that will be left then."""

    at: float
    spare: float


def admit(root: Node, capacity: int, memory: int, now: float, shared: Shared) -> Admission:
    """Ask all jobs of a tree whose `queue` has begun.

    `capacity`: slots that are not those of fixed jobs that run; `memory`: bytes that are not theirs.
    """
    asking = _Asking(root, Admission(left=capacity), memory, now, shared)
    while (user := root.next) is not None:
        asking.ask(user)
        root.advance()
    return asking.found


class _Asking:
    """One job after the other is let go, or is not."""

    def __init__(self, root: Node, found: Admission, memory: int, now: float, shared: Shared) -> None:
        self.found = found
        self._root = root
        self._memory = memory
        self._now = now
        self._shared = shared
        self._shadow: _Shadow | None = None

    def ask(self, user: Node) -> None:
        """Decide about the next job of a user."""
        job, found = user.job, self.found
        fit = self._shared.fit(job) if job.shares else Fit(new=job.floor)
        if fit is None:
            found.refused.append(Refusal(job, "pack"))
        elif (limit := user.limit(job.size)) is not None:
            found.refused.append(Refusal(job, "plan", limit))
        elif lacks := self._lacks(job, fit.new):
            found.refused.append(Refusal(job, lacks))
        else:
            found.admitted.append(job)
            user.take(job.size)
            found.left -= fit.new
            self._memory -= job.least * job.memory
            if job.shares:
                self._shared.take(job, fit)
                found.fits[job.exec_id] = fit

    def _lacks(self, job: Job, slots: int) -> str:
        """What a job lacks that takes so many slots which nobody is on; empty when it can be let go."""
        found = self.found
        if job.memory and job.least * job.memory > self._memory:
            return "memory"
        if slots > found.left:
            if found.head is None and not job.running:
                found.head = job
            return "slots"
        if found.head is None or job.elastic:
            return ""
        self._shadow = self._shadow or _shadow(self._root, found, self._now)
        return "" if _may_overtake(job, slots, found.head, self._shadow, self._now) else "queue"


def _shadow(root: Node, found: Admission, now: float) -> _Shadow:
    assert found.head is not None
    free, needed = float(found.left), found.head.size
    # An elastic job that was let go before the head keeps its floor; it may end, too.
    ends = [(_end(job, now), job.weight if job.fixed else job.size) for job in [*_fixed(root), *found.admitted]]
    for at, slots in sorted(ends):
        free += slots
        if free >= needed:
            return _Shadow(at, free - needed)
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


def _may_overtake(job: Job, slots: int, head: Job, shadow: _Shadow, now: float) -> bool:
    """`slots`: that nobody is on yet; a job that only joins others on theirs takes nothing from the head."""
    if now - head.since >= OVERTAKING_SECONDS:
        return False
    if not slots or (job.lasts is not None and now + job.lasts <= shadow.at):
        return True
    if job.size <= shadow.spare:
        shadow.spare -= job.size
        return True
    return False
