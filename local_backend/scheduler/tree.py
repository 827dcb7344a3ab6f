"""The resource plan tree with jobs on it, and the order in which jobs are considered: least served first.

Each node offers its parent the job that it would admit first. Among plans, a plan with less than its reservation
comes first, then the plan with the fewest slots per weight. Among the users of a plan, the most urgent job comes
first. The jobs of a group count as one job of their user. (Ordering by slots per weight is the hierarchical fair
scheduler of Hadoop YARN; DRF with one resource.)
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from local_backend.scheduler.model import ResourcePlan, SchedulerJob
from local_backend.scheduler.sharing import NEARLY, Claim, parts
from local_backend.scheduler.urgency import Key

_FIRST = operator.itemgetter(0)


class PlanNode:
    """A plan, a user of a plan, or jobs of a user with groups. `plan` holds its limits."""

    def __init__(self, plan: ResourcePlan, parent: PlanNode | None = None, *, is_user: bool = False) -> None:
        self.plan = plan
        self.parent = parent
        self.is_user = is_user
        #: Whether the node holds jobs: a user without groups, or a part of a user with groups.
        self.is_leaf = is_user
        #: Of a user with groups: group → its jobs, "" → the jobs on their own.
        self.groups: dict[str, PlanNode] = {}
        #: Whether this node or a node above has a limit.
        self.limited: bool = plan.most is not None or (parent is not None and parent.limited)
        self.children: list[PlanNode] = []
        #: Of a leaf: jobs to consider; jobs that keep their slots.
        self.jobs: list[SchedulerJob] = []
        self.fixed: list[SchedulerJob] = []
        #: Of a leaf: slots of jobs that share slots, as counted: parts of slots, and the whole slot of a pack once.
        self.parts = 0.0
        #: Slots reserved for this plan, or for the plans below it together.
        self.reserved = plan.reserved
        #: Slots that are in use or promised; maximum slots that its jobs want.
        self.used = 0.0
        self.wanted = 0.0
        #: Fair part of all slots that is due to this node, given what all nodes want; see `divide`.
        self.due = math.inf
        #: Room below its limit that is kept for jobs that have waited for it for long.
        self.kept = 0.0
        #: The leaf below this node whose job is considered next; None when all jobs have been considered.
        self.next: PlanNode | None = None
        #: Of the root: whether some jobs need no slot of their own.
        self.joins = False
        self._plans: dict[str, PlanNode] = {}
        self._users: dict[str, PlanNode] = {}
        #: Of a plan with plans below it: the node of its own users. They compete with these plans as one of them.
        self._own: PlanNode | None = None
        #: Of a leaf: its jobs in reverse order; the next one to consider is last.
        self._line: list[tuple[Key, SchedulerJob]] = []
        self._heap: list[tuple[tuple[float, ...], int, PlanNode]] = []

    @property
    def name(self) -> str:
        """Absolute path of the plan, as jobs and clients write it."""
        if self.parent is None:
            return f"/{self.plan.name}"
        return self.parent.name + (f"/{self.plan.name}" if self.parent._own is not self else "")

    def grow(self, plans: Iterable[ResourcePlan]) -> None:
        """Add plans below this one."""
        for plan in plans:
            node = self._plans[plan.name] = PlanNode(plan, self)
            node.grow(plan.children)
            self.children.append(node)
        self.reserved = max(self.reserved, sum(child.reserved for child in self.children))

    def find(self, path: Sequence[str]) -> PlanNode:
        """Return the node of a plan, or of the nearest existing plan above it."""
        node = self
        for name in path[1:]:
            if name not in node._plans:
                break
            node = node._plans[name]
        return node

    def user(self, name: str) -> PlanNode:
        """Return the node of a user of this plan; add it if it is missing."""
        if self._plans:
            if self._own is None:
                own = ResourcePlan(self.plan.name, user_most=self.plan.user_most, by_priority=self.plan.by_priority)
                self._own = PlanNode(own, self)
                self.children.append(self._own)
            return self._own.user(name)
        if name not in self._users:
            plan = ResourcePlan(name, most=self.plan.user_most, by_priority=self.plan.by_priority)
            self._users[name] = PlanNode(plan, self, is_user=True)
            self.children.append(self._users[name])
        return self._users[name]

    def part(self, group: str) -> PlanNode:
        """Return the part of this user with the jobs of a group, or with those on their own (""); add it if it is
        missing."""
        self.is_leaf = False
        if group not in self.groups:
            found = self.groups[group] = PlanNode(ResourcePlan(group, by_priority=self.plan.by_priority), self)
            found.is_leaf = True
            self.children.append(found)
        return self.groups[group]

    @property
    def user_of(self) -> PlanNode:
        """The user of a leaf."""
        assert self.is_user or self.parent is not None
        return self if self.is_user or self.parent is None else self.parent

    @property
    def is_group(self) -> bool:
        """Whether this leaf holds the jobs of a group."""
        return self.is_leaf and not self.is_user and bool(self.plan.name)

    @property
    def counted(self) -> float:
        """Slots of a leaf, for the order among the leaves of a user: those of its group."""
        return self.used if self.is_group and not self.plan.by_priority else 0.0

    def up(self) -> Iterator[PlanNode]:
        """Yield this node and the nodes above it."""
        node: PlanNode | None = self
        while node is not None:
            yield node
            node = node.parent

    def leaves(self) -> Iterator[PlanNode]:
        """Yield this node or the nodes below it that hold jobs."""
        stack = [self]
        while stack:
            node = stack.pop()
            if node.is_leaf:
                yield node
            stack += node.children

    def take(self, slots: float) -> None:
        """Count slots as used, by this node and the nodes above it."""
        node: PlanNode | None = self
        while node is not None:
            node.used += slots
            node = node.parent

    def limit(self, slots: float, *, heed: bool = False) -> PlanNode | None:
        """Return the nearest node whose limit forbids `slots` more slots; None if no limit does. With `heed`, count
        the room that is kept for other jobs, too."""
        node: PlanNode | None = self if self.limited else None
        while node is not None:
            most = node.plan.most
            if most is not None and node.used + slots + (node.kept if heed else 0.0) > most + NEARLY:
                return node
            node = node.parent
        return None

    @property
    def room(self) -> float:
        """Slots that the limits of this node and the nodes above leave."""
        return min((node.plan.most - node.used for node in self.up() if node.plan.most is not None), default=math.inf)

    @property
    def owed(self) -> float:
        """Slots that are reserved for this plan or the plans below it, and wanted, but not in use."""
        if not self.reserved:
            return 0.0
        own = min(self.plan.reserved, self.wanted) - self.used
        return max(0.0, own, sum(child.owed for child in self.children))

    def owed_to_others(self) -> float:
        """Return the slots that jobs of this user must leave to plans that have less than their reservation."""
        total, node = 0.0, self
        # Stop at the first plan whose reservation as a whole is not met: this user may use that part, too.
        while node.parent is not None and not node.owed > sum(child.owed for child in node.children):
            if node.parent.reserved:
                total += sum(other.owed for other in node.parent.children if other is not node)
            node = node.parent
        return total

    def dissolve(self) -> None:
        """Remove the reference cycles, so that all memory is freed at once and without the garbage collector."""
        for child in self.children:
            child.dissolve()
        self.parent = self.next = None
        self._heap.clear()

    def add_up(self) -> None:
        """Compute the wanted slots of the nodes above the leaves, within the limits."""
        for child in self.children:
            child.add_up()
        if not self.is_leaf:
            self.wanted = sum(child.wanted for child in self.children)
        if self.plan.most is not None:
            self.wanted = min(self.wanted, self.plan.most)

    def divide(self, slots: float) -> None:
        """Set the fair part of `slots` that is due to every node below; it may be a fraction.

        Max-min by weight: reserved slots first, and never more than a node wants and may have. Below a plan by
        priority, each node may have all slots.
        """
        self.due = slots
        if self.groups:
            self._divide_groups(slots)
            return
        claims = []
        for child in self.children:
            most = min(child.wanted, slots if child.plan.most is None else child.plan.most)
            claims.append(Claim(min(child.reserved, most), most, child.plan.weight))
        shares = [claim.most for claim in claims] if self.plan.by_priority else parts(slots, claims)
        for child, part in zip(self.children, shares, strict=True):
            child.divide(part)

    def _divide_groups(self, slots: float) -> None:
        """Set the part that is due to each group of this user: as much as to a job on its own."""
        single = self.groups.get("")
        claims = [Claim(0.0, min(job.ceiling, slots)) for job in (single.jobs if single else ())]
        claims += [Claim(0.0, min(job.weight, slots)) for job in (single.fixed if single else ())]
        groups = [node for name, node in self.groups.items() if name]
        claims += [Claim(0.0, min(node.wanted, slots)) for node in groups]
        shares = [claim.most for claim in claims] if self.plan.by_priority else parts(slots, claims)
        for node, share in zip(groups, shares[len(claims) - len(groups) :], strict=True):
            node.due = share

    @property
    def is_full(self) -> bool:
        """Whether the jobs of this node need all slots that are due to them. Of a group, whole slots count, at least
        one: if every group took the part of a slot that is due to it as a whole slot, others would lack it."""
        due = max(1, math.floor(self.due + NEARLY)) if self.is_group and self.due < math.inf else self.due
        return self.used >= due - NEARLY

    @property
    def has_its_part(self) -> bool:
        """Whether this node, or one above, is full."""
        node: PlanNode | None = self
        while node is not None:
            if node.is_full:
                return True
            node = node.parent
        return False

    # --- order of consideration

    def queue(self, keys: Mapping[str, Key], without: Collection[str] = ()) -> None:
        """Start with the first job. `keys` say how urgent each job is. Jobs with the ids in `without` are not
        considered."""
        if self.is_leaf:
            self._line = [(keys[job.exec_id], job) for job in self.jobs if job.exec_id not in without]
            self._line.sort(key=_FIRST, reverse=True)
            self.next = self if self._line else None
            return
        for child in self.children:
            child.queue(keys, without)
        self._heap = [(self._key(child), i, child) for i, child in enumerate(self.children) if child.next]
        heapq.heapify(self._heap)
        self.next = self._heap[0][2].next if self._heap else None

    @property
    def job(self) -> SchedulerJob:
        """The next job of a leaf that is `next`."""
        return self._line[-1][1]

    @property
    def urgency(self) -> float:
        """The urgency of that job."""
        return -self._line[-1][0][0]

    def advance(self) -> None:
        """Remove the considered job, which is the next one of the leaf `next`. This node must be the root."""
        child = self.next
        assert child is not None
        child._line.pop()
        if not child._line:
            child.next = None
        node = child.parent
        while node is not None:  # each node on this path is the first in the heap of its parent
            heap = node._heap
            if child.next is None:
                heapq.heappop(heap)
            elif len(heap) > 1:
                heapq.heapreplace(heap, (node._key(child), heap[0][1], child))
            node.next = heap[0][2].next if heap else None
            child, node = node, node.parent

    def unasked(self) -> Unasked | None:
        """Return the jobs not considered yet; used when no slots are left to admit a job. None while several plans
        compete: their state then decides which job is next."""
        node = self
        while len(node._heap) == 1 and not node._heap[0][2].is_leaf:
            node = node._heap[0][2]
        if node._plans:
            return None
        found = []
        for _, _, child in node._heap:
            used = 0.0 if node.plan.by_priority or node.groups else child.used
            found += [(leaf, used, leaf.counted) for leaf in ([child] if child.is_leaf else child.leaves())]
        return Unasked(found)

    def _key(self, child: PlanNode) -> tuple[float, ...]:
        level, place = child.next._line[-1][0]  # type: ignore[union-attr]
        if self.groups:
            return level, child.counted, place
        if not self._plans and not self.plan.by_priority:
            return level, child.used, child.next.counted, place  # type: ignore[union-attr]
        served = not child.reserved or child.owed <= 0
        return served, 0.0 if self.plan.by_priority else child.used / child.plan.weight, place


class Unasked:
    """The jobs that have not been considered, sorted on demand: thousands of jobs may be left when no slots are
    left, and their order is rarely read. Safe to use from any thread."""

    def __init__(self, leaves: Sequence[tuple[PlanNode, float, float]]) -> None:
        """`leaves` hold jobs, each with the numbers that order equally urgent jobs before their positions do: slots of
        the user, and of the group."""
        self._leaves = leaves

    def __len__(self) -> int:
        return sum(len(leaf._line) for leaf, _, _ in self._leaves)

    def __iter__(self) -> Iterator[tuple[PlanNode, SchedulerJob]]:
        line = [
            (level, used, counted, place, leaf, job)
            for leaf, used, counted in self._leaves for (level, place), job in leaf._line
        ]
        line.sort()
        return ((leaf, job) for *_, leaf, job in line)

    @property
    def limited(self) -> bool:
        """Whether a limit may refuse any of the jobs."""
        return any(leaf.limited for leaf, _, _ in self._leaves)

    @property
    def jobs(self) -> Iterator[SchedulerJob]:
        """The jobs, in no order."""
        return (job for leaf, _, _ in self._leaves for _, job in leaf._line)


def grow(plan: ResourcePlan, jobs: Iterable[SchedulerJob]) -> PlanNode:
    """Build the tree of `plan` with these jobs on it."""
    root = PlanNode(plan)
    root.grow(plan.children)
    known: dict[tuple[Sequence[str], str, str], tuple[PlanNode, float]] = {}
    packs: set[str] = set()
    jobs = list(jobs)
    for job in jobs:
        if job.group:
            root.find(job.plan).user(job.user).part(job.group)
    for job in jobs:
        found = known.get((job.plan, job.user, job.group))
        if found is None:
            user = root.find(job.plan).user(job.user)
            leaf = user if user.is_leaf else user.part(job.group)
            found = known[job.plan, job.user, job.group] = leaf, leaf.room
        leaf, room = found
        wanted: float = job.ceiling
        if job.shares:
            wanted = job.size
            if job.pack:
                wanted = 0.0 if job.pack in packs else 1.0
                packs.add(job.pack)
        if job.fixed:
            has = wanted if job.shares else job.weight
            if not job.elastic or job.leaving:
                wanted = has
            leaf.fixed.append(job)
            leaf.parts += has if job.shares else 0.0
            leaf.take(has)
        else:
            leaf.jobs.append(job)
            root.joins = root.joins or job.shares or not job.floor
        # A job that asks for more than its limit never starts, so it has no claim to reserved slots.
        leaf.wanted += wanted if job.size <= room or job.fixed else 0.0
    root.add_up()
    return root
