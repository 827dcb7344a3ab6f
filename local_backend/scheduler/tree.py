"""The resource plan tree with jobs on it, and in which order these are asked: who has least of its share comes first.

Every node passes on the job that it would let go first. Between plans that is the one whose slots per weight are the
fewest, after those that have less than is reserved for them; among the users of a plan the most urgent job counts
first. (Slots per weight as the order is the hierarchical fair scheduler of Hadoop YARN; DRF with one resource.)
"""

from __future__ import annotations

import bisect
import functools
import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence

from local_backend.scheduler.model import Job, Plan

#: A job that waits gets this much more urgent every so many seconds, and keeps that while it runs.
AGEING, AGEING_SECONDS = 1000, 3600.0

Key = tuple[float, ...]
_NEARLY = 1e-9


def urgency(job: Job, now: float) -> int:
    """Priority and what waiting has added to it."""
    waited = max(0.0, (job.started if job.running else now) - job.since)
    if job.running and not job.slots:
        waited += max(0.0, now - job.changed)
    return job.priority + AGEING * int(waited // AGEING_SECONDS)


class Node:
    """A plan, or a user of one. `plan` holds its limits."""

    def __init__(self, plan: Plan, parent: Node | None = None) -> None:
        self.plan = plan
        self.parent = parent
        self.children: list[Node] = []
        #: Of a user: jobs that are asked, most urgent first; and those that keep what they have.
        self.jobs: list[Job] = []
        self.fixed: list[Job] = []
        self.is_user = False
        #: Slots of jobs that were let go, which they need at least.
        self.used = 0.0
        #: While jobs are asked: the user below this node whose job is the next, None when all have been.
        self.next: Node | None = None
        self._plans: dict[str, Node] = {}
        self._users: dict[str, Node] = {}
        self._asked = 0
        self._heap: list[tuple[Key, int, Node]] = []
        self._keys: dict[str, Key] = {}

    @property
    def name(self) -> str:
        """Absolute, as jobs and clients name it."""
        return f"{self.parent.name if self.parent else ''}/{self.plan.name}"

    def find(self, path: Sequence[str]) -> Node:
        """The node of a plan, or of the nearest one above it that there is."""
        node = self
        for name in path[1:]:
            if name not in node._plans:
                break
            node = node._plans[name]
        return node

    def user(self, name: str) -> Node:
        """The node of a user of this plan."""
        if name not in self._users:
            user = Node(Plan(name, most=self.plan.user_most), self)
            user.is_user = True
            self._users[name] = user
            self.children.append(user)
        return self._users[name]

    def up(self) -> Iterator[Node]:
        """This node and those above it."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def take(self, slots: float) -> None:
        """Count slots as used, here and above."""
        node: Node | None = self
        while node is not None:
            node.used += slots
            node = node.parent

    def limit(self, slots: float) -> Node | None:
        """The nearest node whose limit forbids so many more, None when none does."""
        node: Node | None = self
        while node is not None:
            most = node.plan.most
            if most is not None and node.used + slots > most + _NEARLY:
                return node
            node = node.parent
        return None

    # --- whose turn it is

    def queue(self, keys: dict[str, Key]) -> None:
        """Begin to ask: `keys` say of each job how urgent it is."""
        self._keys = keys
        self._asked = 0
        if self.is_user:
            self.jobs.sort(key=lambda job: keys[job.exec_id])
            self.next = self if self.jobs else None
            return
        for child in self.children:
            child.queue(keys)
        self._heap = [(self._key(child), i, child) for i, child in enumerate(self.children) if child.next]
        heapq.heapify(self._heap)
        self.next = self._heap[0][2].next if self._heap else None

    @property
    def job(self) -> Job:
        """Of a user who is `next`: the job."""
        return self.jobs[self._asked]

    def advance(self) -> None:
        """That job has had its turn."""
        if self.is_user:
            self._asked += 1
            self.next = self if self._asked < len(self.jobs) else None
            return
        _, number, child = self._heap[0]
        child.advance()
        if child.next is not None:
            heapq.heapreplace(self._heap, (self._key(child), number, child))
        else:
            heapq.heappop(self._heap)
        self.next = self._heap[0][2].next if self._heap else None

    def _key(self, child: Node) -> Key:
        assert child.next is not None
        urgent, held = self._keys[child.next.job.exec_id], child.used / child.plan.weight
        if self.plan.by_priority:
            return (child.used >= child.plan.reserved, *urgent)
        if self._plans:
            return (child.used >= child.plan.reserved, held, *urgent)
        return (*urgent[:2], held, *urgent[2:])


def grow(plan: Plan, jobs: Iterable[Job], parent: Node | None = None) -> Node:
    """The tree of `plan` with these jobs on it."""
    node = Node(plan, parent)
    for child in plan.children:
        node._plans[child.name] = grow(child, (), node)
        node.children.append(node._plans[child.name])
    for job in jobs:
        user = node.find(job.plan).user(job.user)
        if job.fixed:
            user.fixed.append(job)
            user.take(job.weight)
        else:
            user.jobs.append(job)
    return node


def order(jobs: Sequence[Job], now: float) -> dict[str, Key]:
    """How urgent each job is: most urgent first, of equal ones those that run, then the oldest.

    A job that began on slots that one which waits longer could not use has no such precedence: it is the first to go
    when that one can begin.
    """
    levels = {job.exec_id: urgency(job, now) for job in jobs}
    waiting = sorted((job for job in jobs if not job.running), key=lambda job: job.since)
    since = [job.since for job in waiting]
    highest = list(itertools.accumulate((levels[job.exec_id] for job in waiting), max))
    keys: dict[str, Key] = {}
    for job in jobs:
        level = levels[job.exec_id]
        before = bisect.bisect_left(since, job.started) if job.running else 0
        firm = job.running and not (before and highest[before - 1] >= level)
        keys[job.exec_id] = (-level, not firm, job.since, _number(job.exec_id))
    return keys


@functools.lru_cache(maxsize=100_000)
def _number(exec_id: str) -> float:
    digits = exec_id.rpartition("-")[2]
    return float(digits) if digits.isdecimal() else 0.0
