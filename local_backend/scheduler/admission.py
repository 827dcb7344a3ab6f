"""Admission: select the jobs that run. The tree gives the order, and each job whose floor fits is admitted. Pure.

The first job that has to wait for slots is the *head*. Elastic jobs may start before the head, because they make
room as soon as the head can start. A fixed-size job may start if it ends before the head can start, or takes only
slots that the head leaves (EASY backfilling: Lifka, "The ANL/IBM SP scheduling system", 1995). No fixed-size job
starts before a head that has waited too long.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from local_backend.scheduler.model import SchedulerJob
from local_backend.scheduler.packing import Fit, Shared
from local_backend.scheduler.tree import PlanNode, Unasked
from local_backend.scheduler.urgency import Key, waited

#: A job keeps its slots for at least this many of its steps.
STEPS = 10
#: Seconds. A job whose slots last changed this soon after its start still has its first slots.
_BEGINNING = 0.1
_LEVEL = operator.itemgetter(0)
#: Seconds of waiting after which no fixed-size job overtakes a job any more.
OVERTAKING_SECONDS = 3600.0


def settles(job: SchedulerJob) -> float:
    """Return when a running job may be given other slots, because other jobs could make better use of them. A job's
    first slots have cost no resize, so they may change at once. A moved slot earns 1 slot-second per second, so
    the cost of a move in slot-seconds is also the wait in seconds."""
    if job.changed - job.started < _BEGINNING:
        return job.changed
    return job.changed + max(STEPS * job.step, job.pause * len(job.slots))


@dataclass(slots=True)
class Refusal:
    """A job that gets nothing now, and why."""

    job: SchedulerJob
    #: "slots", "queue", "plan", "reserved", "share", "memory" or "pack"; "leaving" while others give up its slots.
    lacks: str
    #: The user of the job.
    owner: PlanNode
    #: The plan or user whose limit refuses the job.
    limit: PlanNode | None = None


@dataclass
class Admission:
    """Admitted and refused jobs, in the order in which they were considered."""

    admitted: list[SchedulerJob] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    #: Refused jobs that come after these: they were left when no slot was free, and lack nothing but slots.
    rest: Unasked | None = None
    head: SchedulerJob | None = None
    #: Slots that no admitted job needs.
    left: int = 0
    #: Exec id → user of an admitted job; exec id → bins of an admitted job that shares slots.
    owners: dict[str, PlanNode] = field(default_factory=dict)
    fits: dict[str, Fit] = field(default_factory=dict)
    #: Times at which a running job of a group may be parked in favor of others.
    again: list[float] = field(default_factory=list)

    @property
    def all_refused(self) -> list[Refusal]:
        """All refused jobs, in order. See `refusals`."""
        return [*self.refused, *refusals(self.rest)]

    @property
    def waiting(self) -> Iterator[SchedulerJob]:
        """All refused jobs, in no order."""
        yield from (one.job for one in self.refused)
        yield from self.rest.jobs if self.rest is not None else ()


def refusals(rest: Unasked | None) -> Iterator[Refusal]:
    """Yield the jobs of `Admission.rest`, in order. Sorting takes time if there are many."""
    return (Refusal(job, "slots", user) for user, job in rest or ())


@dataclass
class Memory:
    """Bytes of memory for jobs that declare their need."""

    #: Bytes that no job has.
    left: int
    #: Part of these bytes that is kept for jobs that have waited for memory for long.
    kept: int = 0


@dataclass
class _Shadow:
    """Estimated time at which the head can start, and the slots that are left then."""

    at: float
    spare: float


class Asking:
    """Considers jobs one after the other, and admits or refuses each."""

    def __init__(  # noqa: PLR0917
        self, root: PlanNode, capacity: int, total: int, memory: Memory, now: float, shared: Shared
    ) -> None:
        """`total` slots may be used; `capacity` is this number without the slots of running fixed jobs."""
        self.found = Admission(left=capacity)
        self._root = root
        self._total = total
        self._memory = memory
        self._now = now
        self._shared = shared
        self._shadow: _Shadow | None = None
        #: Leaves with jobs that could grow, and the urgency of the most urgent such job, the highest first.
        self._growing: list[tuple[float, PlanNode]] = []
        #: Jobs that were held back in favor of others; whether they are considered again (`_again`), and whether all
        #: of them, not only elastic ones, may then borrow reserved slots (`_lend`).
        self._held: list[tuple[PlanNode, SchedulerJob]] = []
        self._again = self._lend = False
        #: Whether running services are being considered.
        self._serving = False

    def ask_services(self, keys: Mapping[str, Key]) -> frozenset[str]:
        """Admit the running services with slots before any other job, so that no job takes their minimum. Return their
        ids. Call this before the tree is queued and divided into jobs to consider."""
        found = [
            (keys[job.exec_id], user, job) for user in self._root.leaves() for job in user.jobs
            if job.serves and job.running and job.slots
        ]
        self._serving = True
        for _, user, job in sorted(found, key=_LEVEL):
            self._ask(user, job)
        self._serving = False
        return frozenset(job.exec_id for _, _, job in found)

    def ask_all(self, growing: Mapping[PlanNode, float]) -> None:
        """Consider all jobs of a tree whose `queue` was called.

        A user or plan that has its share starts no more jobs while elastic jobs of others could grow instead, unless
        the job is more urgent than theirs. The same holds for a group. `growing` has the urgency of each leaf's most
        urgent job that could grow.
        """
        self._growing = sorted(((level, leaf) for leaf, level in growing.items()), key=_LEVEL, reverse=True)
        while (user := self._root.next) is not None:
            if self._is_over and (rest := self._root.unasked()) is not None:
                self._refuse(rest)
                return
            self._ask(user, user.job)
            self._root.advance()

    @property
    def _is_over(self) -> bool:
        """Whether no other job can be admitted."""
        return self.found.left <= 0 and self.found.head is not None and not self._root.joins

    def _refuse(self, rest: Unasked) -> None:
        """Refuse all remaining jobs; one by one if some may lack more than slots, or have a time limit."""
        if rest.limited or not all(_waits_for_slots(job) for job in rest.jobs):
            for user, job in rest:
                self._ask(user, job)
        else:
            self.found.rest = rest

    def ask_again(self, left: int) -> list[SchedulerJob]:
        """Consider again the jobs that were held back, for `left` slots that no other job could use.

        Elastic jobs may then borrow reserved slots, because they make room within a step. Other jobs may borrow them
        only if no job that the slots are reserved for waits for slots. Return the jobs that start.
        """
        found, before = self.found, len(self.found.admitted)
        found.left = left
        if not self._held:
            return []
        found.refused, found.rest = found.all_refused, None
        self._again = True
        self._lend = not self._root.reserved or not any(
            one.lacks == "slots" and any(node.owed for node in one.owner.up()) for one in found.refused
        )
        refused, found.refused = found.refused, []
        asked = set()
        for user, job in self._held:
            if found.left > 0 or job.shares:
                asked.add(job.exec_id)
                self._ask(user, job)
        found.refused = [*(one for one in refused if one.job.exec_id not in asked), *found.refused]
        return found.admitted[before:]

    def _ask(self, user: PlanNode, job: SchedulerJob) -> None:
        """Admit or refuse a job of a user."""
        found = self.found
        if job.pinned:
            job = self._fitted(job, user)
        fit = self._shared.fit(job) if job.shares else None
        slots = job.floor if fit is None else fit.new
        # A pack has its slot for itself: the whole slot counts for the first job of the pack.
        size = slots if job.pack else job.size
        if job.shares and fit is None:
            found.refused.append(Refusal(job, "pack", user))
        elif (limit := user.limit(size, heed=not (job.elastic or job.running))) is not None:
            found.refused.append(Refusal(job, "plan", user, limit))
            self._keep(limit, job)
        elif lacks := self._lacks(job, slots, user):
            found.refused.append(Refusal(job, lacks, user))
            if lacks in ("share", "reserved") and not self._again:
                self._held.append((user, job))
        else:
            found.admitted.append(job)
            found.owners[job.exec_id] = user
            user.take(size)
            found.left -= slots
            self._memory.left -= job.least * job.memory
            if fit is not None:
                user.parts += size
                self._shared.take(job, fit)
                found.fits[job.exec_id] = fit

    def _fitted(self, job: SchedulerJob, user: PlanNode) -> SchedulerJob:
        """Return a pinned job, reduced to as many workers as slots, limits and memory allow."""
        if not job.least:
            return job
        there = [job.least, int(self.found.left - user.owed_to_others()) // job.per_worker]
        if (room := user.room) < job.floor:
            there.append(int(room // job.per_worker))
        if job.memory:
            there.append(self._memory.left // job.memory)
        workers = max(1, min(there))
        return job if workers == job.least else replace(job, least=workers, most=workers)

    def _keep(self, limit: PlanNode, job: SchedulerJob) -> None:
        """Keep room below a limit for a job that has waited for long. Later fixed-size jobs cannot use this room."""
        if self._waits_long(job) and not job.running and job.size <= (limit.plan.most or 0):
            limit.kept += job.size

    def _waits_long(self, job: SchedulerJob) -> bool:
        return waited(job, self._now) >= OVERTAKING_SECONDS

    def _lacks(self, job: SchedulerJob, slots: int, user: PlanNode) -> str:
        """Return what a job lacks; empty if it can be admitted. `slots` are those it needs that no job is on yet."""
        found = self.found
        if job.memory and not self._has_memory(job):
            return "memory"
        if slots > found.left:
            if found.head is None and slots <= self._total and not (self._again or self._is_modest(job, user)):
                found.head = job
            return "slots"
        lent = self._again and (self._lend or job.elastic)
        if self._root.reserved and not (lent or self._serving) and slots > found.left - user.owed_to_others():
            return "reserved"
        if self._is_modest(job, user):
            return "share"
        if found.head is None or job.elastic:
            return ""
        self._shadow = self._shadow or _shadow(self._root, found, self._now)
        return "" if _may_overtake(job, slots, found.head, self._shadow, self._now) else "queue"

    def _is_modest(self, job: SchedulerJob, user: PlanNode) -> bool:
        """Return whether a job that could start leaves the slots to others, because its group or its user has its
        share."""
        if self._serving or self._again or not self._growing or not self._may_yield(job):
            return False
        if user.is_group and user.is_full:
            level = next((level for level, rival in self._growing if rival is not user), -math.inf)
            if user.urgency <= level:
                return True
        if not user.user_of.has_its_part:
            return False
        level = next((level for level, rival in self._growing if rival.user_of is not user.user_of), -math.inf)
        return user.urgency <= level

    def _may_yield(self, job: SchedulerJob) -> bool:
        """Return whether a job may have to leave its slots to growing jobs: jobs that start, and jobs of groups, which
        would otherwise keep more than their part because they are many."""
        if not job.running:
            return True
        if job.group and job.slots and (settled := settles(job)) > self._now:
            self.found.again.append(settled)
            return False
        return bool(job.group)

    def _has_memory(self, job: SchedulerJob) -> bool:
        memory, follows = job.least * job.memory, not job.elastic and not job.running
        if memory <= self._memory.left - (self._memory.kept if follows else 0):
            return True
        if self._waits_long(job) and not job.running:
            self._memory.kept += memory
        return False


def _waits_for_slots(job: SchedulerJob) -> bool:
    """Return whether a job can lack only slots, and may wait without a time limit."""
    return not (job.memory or job.pinned or job.running) and job.patience is None


def _shadow(root: PlanNode, found: Admission, now: float) -> _Shadow:
    assert found.head is not None
    free, needed = float(found.left), found.head.size
    # An elastic job that was admitted before the head keeps its floor, but it may end, too.
    ends = [(_end(job, now), job.weight if job.fixed else job.size) for job in [*_fixed(root), *found.admitted]]
    for at, slots in sorted(ends):
        free += slots
        if free >= needed:
            return _Shadow(at, free - needed)
    return _Shadow(math.inf, 0)


def _fixed(root: PlanNode) -> list[SchedulerJob]:
    """Return the running fixed jobs. The tree holds them apart from the jobs that are considered."""
    return [job for user in root.leaves() for job in user.fixed]


def _end(job: SchedulerJob, now: float) -> float:
    if job.running:
        return math.inf if job.ends is None else max(job.ends, now)
    return math.inf if job.lasts is None else now + job.lasts


def _may_overtake(job: SchedulerJob, slots: int, head: SchedulerJob, shadow: _Shadow, now: float) -> bool:
    """Return whether a job may start before the head. `slots` are those it needs that no job is on yet: a job that
    only joins others on shared slots takes nothing from the head."""
    if waited(head, now) >= OVERTAKING_SECONDS:
        return False
    if not slots or (job.lasts is not None and now + job.lasts <= shadow.at < math.inf):
        return True
    if job.size <= shadow.spare:
        shadow.spare -= job.size
        return True
    return False
