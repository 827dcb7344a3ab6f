"""How many slots each job gets that was let go: its floor, and a fair part of what is left. Pure.

From the root down every node divides what it gets between its children (see `sharing`); a plan by priority gives the
most urgent job all that it can use, then the next one. Jobs that were given other slots a moment ago keep them for a
while: what moving costs (the pause, times the slots that stand still) must have been earned since, so that resizing
never takes more than half of the time, however often the wishes of others change. (The ski-rental argument: Karlin et
al., "Competitive snoopy caching", 1988.)
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence

from local_backend.scheduler.model import Job
from local_backend.scheduler.sharing import Claim, share
from local_backend.scheduler.tree import Key, Node

#: A job keeps its slots for at least so many of its steps.
STEPS = 10
#: Slot-seconds after which a slot that two have the same claim to goes to the other.
ROTATION = 60.0
_NEARLY = 1e-9


def settles(job: Job) -> float:
    """When a running job may be given other slots again, because others could make better use of them."""
    return job.changed + max(STEPS * job.step, job.pause * len(job.slots))


class Surplus:
    """Divides slots of one kind between the jobs of a tree that were admitted, and those that keep theirs."""

    def __init__(self, admitted: Sequence[Job], keys: Mapping[str, Key], memory: int, now: float) -> None:
        """`memory`: bytes that are left when every job has its floor."""
        self._keys = keys
        self.memory = memory
        self._bounds: dict[str, tuple[int, int]] = {}
        self._ranks: dict[str, float] = {}
        self._admitted = {job.exec_id: job for job in admitted}
        self._sums: dict[int, tuple[int, int]] = {}
        #: Of users: slots of jobs that keep what they have, or get what they share with others.
        self._settled: dict[int, int] = {}
        self.targets: dict[str, int] = {}
        #: When a job that keeps its slots for now may be given others.
        self.again: list[float] = []
        self._now = now

    def divide(self, root: Node, left: int) -> dict[str, int]:
        """Slots of each admitted job that shares none. `left`: slots that are left when every job has its floor."""
        for job in self._admitted.values():
            if not job.shares:
                left -= self._bound(job, left)
        capacity = self._sum(root)[0] + left
        self._share(root, capacity)
        self._spread(root, capacity)
        return self.targets

    def _bound(self, job: Job, left: int) -> int:
        """Note what a job gets at least and at most; how many of the slots that are left that takes."""
        least, most = job.floor, job.ceiling if job.elastic else job.floor
        has, kept = len(job.slots), 0
        if job.running and has and least <= has <= most and (settled := settles(job)) > self._now:
            self.again.append(settled)
            # It gives only what others need to run at all.
            kept = min(has - least, left) // job.per_worker * job.per_worker
            least, most = least + kept, has
        self._bounds[job.exec_id] = least, most
        self._ranks[job.exec_id] = job.service - (ROTATION if has > job.floor else 0.0)
        return kept

    def _sum(self, node: Node) -> tuple[int, int]:
        """What a node gets at least, and can use."""
        least = most = 0
        if node.is_user:
            parts = sum(job.weight for job in node.fixed)
            for job in node.jobs:
                if job.exec_id in self._bounds:
                    low, high = self._bounds[job.exec_id]
                    least, most = least + low, most + high
                elif job.exec_id in self._admitted:
                    parts += job.size
            # Parts of slots count as whole ones here: that what the others get is no fraction, either.
            settled = self._settled[id(node)] = math.ceil(parts - _NEARLY)
            least, most = least + settled, most + settled
        for child in node.children:
            low, high = self._sum(child)
            least, most = least + low, most + high
        if node.plan.most is not None:
            most = max(least, min(most, node.plan.most))
        self._sums[id(node)] = least, most
        return least, most

    def _share(self, node: Node, slots: int) -> None:
        if node.is_user:
            self._among_jobs(node.jobs, slots - self._settled[id(node)])
        elif node.plan.by_priority:
            self._by_priority(node, slots)
        else:
            claims = [Claim(*self._sums[id(child)], child.plan.weight, self._rank(child)) for child in node.children]
            for child, got in zip(node.children, share(slots, self._guarded(node, claims, slots)), strict=True):
                self._share(child, got)

    def _guarded(self, node: Node, claims: list[Claim], slots: int) -> list[Claim]:
        """The claims with what is reserved for each as the least it gets, as far as that is there."""
        left = slots - sum(claim.least for claim in claims)
        for i, child in enumerate(node.children):
            more = min(child.plan.reserved, claims[i].most) - claims[i].least
            if more > 0 and left > 0:
                more = min(more, left)
                left -= more
                claims[i] = Claim(claims[i].least + more, claims[i].most, claims[i].weight, claims[i].rank)
        return claims

    def _rank(self, node: Node) -> float:
        return sum(self._ranks.get(job.exec_id, 0.0) for user in _users(node) for job in user.jobs)

    def _among_jobs(self, jobs: Iterable[Job], slots: int) -> None:
        chosen = [job for job in jobs if job.exec_id in self._bounds]
        claims = [Claim(*self._bounds[job.exec_id], 1.0, self._ranks[job.exec_id]) for job in chosen]
        for job, got in zip(chosen, share(slots, claims), strict=True):
            self._give(job, got)

    def _by_priority(self, node: Node, slots: int) -> None:
        """All that the most urgent can use; limits of plans below this one hold."""
        users = list(_users(node))
        owners = {job.exec_id: user for user in users for job in user.jobs if job.exec_id in self._bounds}
        jobs = sorted((self._admitted[name] for name in owners), key=lambda job: self._keys[job.exec_id])
        slots -= sum(self._bounds[job.exec_id][0] for job in jobs) + sum(self._settled[id(user)] for user in users)
        for job in jobs:
            least, most = self._bounds[job.exec_id]
            room = [int(at.plan.most - at.used) for at in owners[job.exec_id].up() if at.plan.most is not None]
            more = max(0, min([most - least, slots, *room]))
            owners[job.exec_id].take(more)
            slots -= more
            self._give(job, least + more)

    def _give(self, job: Job, slots: int) -> None:
        """In whole workers, and as far as their memory reaches."""
        workers = slots // job.per_worker
        if job.memory:
            more = min(workers - job.least, self.memory // job.memory)
            self.memory -= more * job.memory
            workers = job.least + more
        self.targets[job.exec_id] = workers * job.per_worker

    def _spread(self, root: Node, capacity: int) -> None:
        """To others go slots that are fewer than a worker of one job takes, or that it lacks the memory for."""
        users = list(_users(root))
        totals = {id(user): self._settled[id(user)] for user in users}
        hungry: list[tuple[int, float, str, Node]] = []
        for user in users:
            for job in user.jobs:
                got = self.targets.get(job.exec_id)
                if got is not None:
                    totals[id(user)] += got
                    if got < self._bounds[job.exec_id][1]:
                        hungry.append((got, self._ranks[job.exec_id], job.exec_id, user))
        rest = capacity - sum(totals.values())
        if rest <= 0 or not hungry:
            return
        for user in users:
            for node in list(user.up())[1:]:
                totals[id(node)] = totals.get(id(node), 0) + totals[id(user)]
        heapq.heapify(hungry)
        while hungry and rest > 0:
            got, rank, name, user = heapq.heappop(hungry)
            job = self._admitted[name]
            more = job.per_worker
            limits = [node.plan.most - totals[id(node)] for node in user.up() if node.plan.most is not None]
            if more > min([rest, self._bounds[name][1] - got, *limits]) or job.memory > self.memory:
                continue
            self.memory -= job.memory
            rest -= more
            self.targets[name] = got + more
            for node in user.up():
                totals[id(node)] += more
            heapq.heappush(hungry, (got + more, rank, name, user))


def _users(node: Node) -> Iterable[Node]:
    """All users below a node."""
    stack = [node]
    while stack:
        current = stack.pop()
        if current.is_user:
            yield current
        stack += current.children
