"""Surplus: how many slots each admitted job gets, its floor and a fair part of the slots that are left. Pure.

From the root down, each node divides its slots between its children (see `sharing`). A plan by priority gives the
most urgent job all slots that it can use, then the next job. A job whose slots have just changed keeps them for a
while: it must first have earned the cost of the move. A move costs the pause, times the slots that stand still, in
slot-seconds. One moved slot earns 1 slot-second per second. So resizing never costs more than half of what it earns,
however often the demand of other jobs changes. (The ski-rental argument: Karlin et al., "Competitive snoopy caching",
1988.)
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence, Set

from local_backend.scheduler.admission import Admission, Memory, settles
from local_backend.scheduler.model import SchedulerJob
from local_backend.scheduler.sharing import NEARLY, Claim, share
from local_backend.scheduler.tree import PlanNode
from local_backend.scheduler.urgency import Key

#: Difference in slot-seconds after which a slot with two equal claims goes to the other claim.
ROTATION = 60.0


class Surplus:
    """Divides slots of one kind between the admitted jobs of a tree, next to the jobs that keep their slots."""

    def __init__(
        self, root: PlanNode, admission: Admission, keys: Mapping[str, Key], memory: Memory, now: float
    ) -> None:
        self._root = root
        self._keys = keys
        self._memory = memory
        self._now = now
        self._jobs = {job.exec_id: job for job in admission.admitted if not job.shares}
        self._owners = admission.owners
        self._bounds: dict[str, tuple[int, int]] = {}
        #: Minimum, maximum, rank and present slots of every node.
        self._sums: dict[int, tuple[int, int, float, int]] = {}
        #: Of users: jobs that get slots here; most users may have none.
        self._chosen: dict[int, list[SchedulerJob]] = {}
        #: Of users: slots of jobs that keep their slots, or that share slots with others.
        self._settled: dict[int, int] = {}
        #: Slots of each job; slots that no job can use.
        self.targets: dict[str, int] = {}
        self.rest = 0
        #: Part of `rest` that jobs which keep their slots for now can use soon.
        self.later = sum(self._later(job, user) for user in root.leaves() for job in user.fixed)
        self._taken: dict[str, int] = {}
        #: Times at which a job that keeps its slots for now may be given others.
        self.again: list[float] = []
        left = admission.left
        due = self._due_to_services()
        for job in self._jobs.values():
            left -= self._bound(job, left if job.serves else max(0, left - due))
        capacity = self._sum(root, set(self._owners.values()))[0] + left
        self._share(root, capacity)
        self._spread(capacity)
        self._take()

    def join(self, jobs: Iterable[SchedulerJob], left: int) -> None:
        """Add jobs that start on slots that no other job could use; divide what they leave of these `left` slots."""
        found = [job for job in jobs if not job.shares]
        for job in found:
            self._jobs[job.exec_id] = job
            self._bounds[job.exec_id] = job.floor, job.ceiling if job.elastic else job.floor
            self.targets[job.exec_id] = job.floor
        if found:
            self._sum(self._root, set(self._owners.values()))
            before = sum(self.targets.values()) - sum(job.floor for job in found)
            self._spread(before + sum(self._settled.values()) + left)
            self._take()

    def _take(self) -> None:
        """Count as used the slots that jobs get beyond their floors."""
        for name, job in self._jobs.items():
            more = self.targets[name] - job.floor
            self._owners[name].take(more - self._taken.get(name, 0))
            self._taken[name] = more

    def _bound(self, job: SchedulerJob, left: int) -> int:
        """Record the minimum and maximum slots of a job. Return how many of the `left` slots its minimum takes."""
        least, most = job.floor, job.ceiling if job.elastic else job.floor
        has, kept = len(job.slots), 0
        if job.running and has and least <= has <= most and (settled := settles(job)) > self._now:
            self.again.append(settled)
            kept = self._kept(job, left)
            self.later += self._later(job, self._owners[job.exec_id])
            least, most = least + kept, has
        self._bounds[job.exec_id] = least, most
        return kept

    def _due_to_services(self) -> int:
        """Return the slots beyond their floors that services want, and that are due to their users. Services do not
        wait until other jobs have earned the cost of their last move: requests wait."""
        due = 0
        for user in set(self._owners.values()):
            services = [job for job in user.jobs if job.serves and job.exec_id in self._jobs]
            if services:
                wanted = sum(job.ceiling for job in services)
                due += max(0, math.floor(min(user.due, wanted) + NEARLY) - sum(job.floor for job in services))
        return due

    def _later(self, job: SchedulerJob, owner: PlanNode) -> int:
        """Return how many slots an elastic job can use beyond its own, once it can be resized."""
        if not job.elastic or job.shares or job.leaving:
            return 0
        most = int(min(job.ceiling - len(job.slots), owner.room))
        if job.memory:
            most = min(most, max(0, self._memory.left) // job.memory * job.per_worker)
        return max(0, most)

    def _kept(self, job: SchedulerJob, left: int) -> int:
        """Return how many slots a job keeps beyond its floor: it gives up only what others need to run at all."""
        owner = self._owners[job.exec_id]
        workers = int(min(len(job.slots) - job.floor, left, max(0.0, owner.room))) // job.per_worker
        if job.memory:
            workers = max(0, min(workers, self._memory.left // job.memory))
            self._memory.left -= workers * job.memory
        self._taken[job.exec_id] = workers * job.per_worker
        owner.take(workers * job.per_worker)
        return workers * job.per_worker

    def _sum(self, node: PlanNode, busy: Set[PlanNode]) -> tuple[int, int, float, int]:
        """Return the minimum and maximum slots of a node, and the slot-seconds and present slots of its jobs. `busy`
        are users with jobs that get slots here."""
        least = most = has = 0
        rank = 0.0
        if node.is_leaf:
            parts = node.parts + sum(job.weight for job in node.fixed if not job.shares)
            self._chosen[id(node)] = self._choose(node) if node in busy else []
            for job in self._chosen[id(node)]:
                low, high = self._bounds[job.exec_id]
                least, most, rank, has = least + low, most + high, rank + _rank(job), has + len(job.slots)
            # Round parts of slots up to whole slots, so that the other jobs get whole slots, too.
            settled = self._settled[id(node)] = math.ceil(parts - NEARLY)
            least, most, has = least + settled, most + settled, has + settled
        for child in node.children:
            low, high, served, there = self._sum(child, busy)
            least, most, rank, has = least + low, most + high, rank + served, has + there
        if node.plan.most is not None:
            most = max(least, min(most, node.plan.most))
        self._sums[id(node)] = least, most, rank, has
        return self._sums[id(node)]

    def _choose(self, user: PlanNode) -> list[SchedulerJob]:
        return [self._jobs[job.exec_id] for job in user.jobs if job.exec_id in self._bounds]

    def _share(self, node: PlanNode, slots: int) -> None:
        if node.is_leaf:
            self._among_jobs(self._chosen[id(node)], slots - self._settled[id(node)])
        elif node.groups:
            self._among_groups(node, slots)
        elif node.plan.by_priority:
            self._by_priority(node, slots)
        else:
            claims = []
            for child in node.children:
                least, most, rank, has = self._sums[id(child)]
                claims.append(Claim(least, most, child.plan.weight, rank, has))
            shares = share(slots, self._guarded(node, claims, slots), ROTATION)
            for child, got in zip(node.children, shares, strict=True):
                self._share(child, got)

    def _guarded(self, node: PlanNode, claims: list[Claim], slots: int) -> list[Claim]:
        """Return the claims with each minimum raised to what is reserved for the child, as far as slots are left."""
        if not node.reserved:
            return claims
        left = slots - sum(claim.least for claim in claims)
        for i, (child, claim) in enumerate(zip(node.children, claims, strict=True)):
            more = min(child.reserved, claim.most) - claim.least
            if more > 0 and left > 0:
                more = min(more, left)
                left -= more
                claims[i] = Claim(claim.least + more, claim.most, claim.weight, claim.rank, claim.has)
        return claims

    def _among_jobs(self, chosen: Sequence[SchedulerJob], slots: int) -> None:
        if len(chosen) == 1:
            least, most = self._bounds[chosen[0].exec_id]
            self._give(chosen[0], max(least, min(most, slots)))
            return
        claims = [self._claim(job) for job in chosen]
        for job, got in zip(chosen, share(slots, claims, ROTATION), strict=True):
            self._give(job, got)

    def _among_groups(self, user: PlanNode, slots: int) -> None:
        """Give each group of a user as much as each of its jobs on their own."""
        single = user.groups.get("")
        jobs = self._chosen[id(single)] if single else []
        groups = [node for name, node in user.groups.items() if name]
        claims = [self._claim(job) for job in jobs]
        for group in groups:
            least, most, rank, has = self._sums[id(group)]
            claims.append(Claim(least, most, 1.0, rank, has))
        shares = share(slots - (self._settled[id(single)] if single else 0), claims, ROTATION)
        for job, got in zip(jobs, shares, strict=False):
            self._give(job, got)
        for group, got in zip(groups, shares[len(jobs) :], strict=True):
            self._share(group, got)

    def _claim(self, job: SchedulerJob) -> Claim:
        return Claim(*self._bounds[job.exec_id], 1.0, _rank(job), len(job.slots))

    def _by_priority(self, node: PlanNode, slots: int) -> None:
        """Give reserved slots to the plans below, then all usable slots to the most urgent jobs, within limits."""
        users = list(node.leaves())
        names = [job.exec_id for user in users for job in self._chosen[id(user)]]
        names.sort(key=self._keys.__getitem__)
        got = {name: self._bounds[name][0] for name in names}
        slots -= sum(got.values()) + sum(self._settled[id(user)] for user in users)
        for reserved in (True, False):
            for name in names:
                owner = self._owners[name]
                more = min(self._bounds[name][1] - got[name], slots, owner.room)
                if reserved:
                    more = min(more, max(0.0, *(at.reserved - at.used for at in _below(owner, node))))
                more = max(0, int(more))
                self._taken[name] = self._taken.get(name, 0) + more
                owner.take(more)
                slots -= more
                got[name] += more
        for name in names:
            self._give(self._jobs[name], got[name])

    def _give(self, job: SchedulerJob, slots: int) -> None:
        """Set the slots of a job: whole workers only, and only as many as their memory allows."""
        workers, least = slots // job.per_worker, self._bounds[job.exec_id][0] // job.per_worker
        if job.memory:
            more = min(workers - least, max(0, self._memory.left) // job.memory)
            self._memory.left -= more * job.memory
            workers = least + more
        self.targets[job.exec_id] = workers * job.per_worker

    def _spread(self, capacity: int) -> None:
        """Give other jobs the slots that are too few for a worker of one job, or that it lacks the memory for."""
        totals = {id(user): self._settled[id(user)] for user in self._root.leaves()}
        hungry: list[tuple[int, float, str]] = []
        for name, job in self._jobs.items():
            got, rank = self.targets[name], _rank(job)
            totals[id(self._owners[name])] += got
            if got < self._bounds[name][1]:
                hungry.append((got, rank - (ROTATION if len(job.slots) > got else 0.0), name))
        rest = self.rest = capacity - sum(totals.values())
        if rest <= 0 or not hungry:
            return
        for user in self._root.leaves():
            for node in list(user.up())[1:]:
                totals[id(node)] = totals.get(id(node), 0) + totals[id(user)]
        heapq.heapify(hungry)
        while hungry and rest > 0:
            got, rank, name = heapq.heappop(hungry)
            job, owner = self._jobs[name], self._owners[name]
            more = job.per_worker
            limits = [node.plan.most - totals[id(node)] for node in owner.up() if node.plan.most is not None]
            if more > min([rest, self._bounds[name][1] - got, *limits]) or job.memory > max(0, self._memory.left):
                continue
            self._memory.left -= job.memory
            rest -= more
            self.targets[name] = got + more
            for node in owner.up():
                totals[id(node)] += more
            heapq.heappush(hungry, (got + more, rank, name))
        self.rest = rest


def _rank(job: SchedulerJob) -> float:
    """Return the rank of a job among equal claims. Services come before other jobs, and do not exchange slots in turn:
    a kernel that moves is started again."""
    return -math.inf if job.serves else job.service


def _below(node: PlanNode, top: PlanNode) -> Iterable[PlanNode]:
    """Yield a node and the nodes above it that are below `top`."""
    for found in node.up():
        if found is top:
            return
        yield found
