"""The resource plan tree with jobs on it, and in which order these are asked: who has least of its share comes first.

Every node passes on the job that it would let go first. Between plans that is the one whose slots per weight are the
fewest, after those that have less than is reserved for them; among the users of a plan the most urgent job counts
first. (Slots per weight as the order is the hierarchical fair scheduler of Hadoop YARN; DRF with one resource.)
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence

from local_backend.scheduler.model import Job, Plan
from local_backend.scheduler.sharing import NEARLY, Claim, parts
from local_backend.scheduler.urgency import Key

_FIRST = operator.itemgetter(0)


class Node:
    """A plan, or a user of one. `plan` holds its limits."""

    def __init__(self, plan: Plan, parent: Node | None = None, *, is_user: bool = False) -> None:
        self.plan = plan
        self.parent = parent
        self.is_user = is_user
        #: Whether there is a limit, here or above.
        self.limited: bool = plan.most is not None or (parent is not None and parent.limited)
        self.children: list[Node] = []
        #: Of a user: jobs that are asked; and those that keep what they have.
        self.jobs: list[Job] = []
        self.fixed: list[Job] = []
        #: Of a user: slots of those who share them, as they count: parts of them, and the whole slot of a pack once.
        self.parts = 0.0
        #: What is reserved for this plan, or for those below it together.
        self.reserved = plan.reserved
        #: Slots that are in use or were promised, and that its jobs want at most.
        self.used = 0.0
        self.wanted = 0.0
        #: The part of all slots that is its own when all want some, see `divide`.
        self.due = math.inf
        #: Room below its limit that is kept for jobs which wait for it since long.
        self.kept = 0.0
        #: While jobs are asked: the user below this node whose job is the next, None when all have been.
        self.next: Node | None = None
        #: Of the root: there are jobs that need no slot of their own.
        self.joins = False
        self._plans: dict[str, Node] = {}
        self._users: dict[str, Node] = {}
        #: Of a plan with others below it: where its own users are. They compete with those plans as one of them.
        self._own: Node | None = None
        #: Of a user: its jobs in the order in which they are asked, the next one last.
        self._line: list[tuple[Key, Job]] = []
        self._heap: list[tuple[tuple[float, ...], int, Node]] = []

    @property
    def name(self) -> str:
        """Absolute, as jobs and clients name it."""
        if self.parent is None:
            return f"/{self.plan.name}"
        return self.parent.name + (f"/{self.plan.name}" if self.parent._own is not self else "")

    def grow(self, plans: Iterable[Plan]) -> None:
        """Put plans below this one."""
        for plan in plans:
            node = self._plans[plan.name] = Node(plan, self)
            node.grow(plan.children)
            self.children.append(node)
        self.reserved = max(self.reserved, sum(child.reserved for child in self.children))

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
        if self._plans:
            if self._own is None:
                own = Plan(self.plan.name, user_most=self.plan.user_most, by_priority=self.plan.by_priority)
                self._own = Node(own, self)
                self.children.append(self._own)
            return self._own.user(name)
        if name not in self._users:
            self._users[name] = Node(Plan(name, most=self.plan.user_most), self, is_user=True)
            self.children.append(self._users[name])
        return self._users[name]

    def up(self) -> Iterator[Node]:
        """This node and those above it."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def users(self) -> Iterator[Node]:
        """All users below this node."""
        stack = [self]
        while stack:
            node = stack.pop()
            if node.is_user:
                yield node
            stack += node.children

    def take(self, slots: float) -> None:
        """Count slots as used, here and above."""
        node: Node | None = self
        while node is not None:
            node.used += slots
            node = node.parent

    def limit(self, slots: float, *, heed: bool = False) -> Node | None:
        """The nearest node whose limit forbids so many more, None when none does; with `heed` the room that is kept for
        others counts, too."""
        node: Node | None = self if self.limited else None
        while node is not None:
            most = node.plan.most
            if most is not None and node.used + slots + (node.kept if heed else 0.0) > most + NEARLY:
                return node
            node = node.parent
        return None

    @property
    def room(self) -> float:
        """Slots that the limits from here up leave."""
        return min((node.plan.most - node.used for node in self.up() if node.plan.most is not None), default=math.inf)

    @property
    def owed(self) -> float:
        """Slots that are reserved for this plan and those below it, and wanted, and not in use."""
        if not self.reserved:
            return 0.0
        own = min(self.plan.reserved, self.wanted) - self.used
        return max(0.0, own, sum(child.owed for child in self.children))

    def owed_to_others(self) -> float:
        """Slots that jobs of this user must leave to plans that have less than is reserved for them."""
        total, node = 0.0, self
        # Up to the first plan that has not got what is reserved for it as a whole: that is for this user, too.
        while node.parent is not None and not node.owed > sum(child.owed for child in node.children):
            if node.parent.reserved:
                total += sum(other.owed for other in node.parent.children if other is not node)
            node = node.parent
        return total

    def dissolve(self) -> None:
        """The end: without cycles all is given back at once, and no garbage collector has to look for it."""
        for child in self.children:
            child.dissolve()
        self.parent = self.next = None
        self._heap.clear()

    def add_up(self) -> None:
        """What is wanted above the users."""
        for child in self.children:
            child.add_up()
        if not self.is_user:
            self.wanted = sum(child.wanted for child in self.children)
        if self.plan.most is not None:
            self.wanted = min(self.wanted, self.plan.most)

    def divide(self, slots: float) -> None:
        """Note the fair part of so many slots that is due to every node below, in fractions of a slot, too.

        Max-min by weight, what is reserved first, not more than is wanted and allowed. Below a plan by priority all
        may have all.
        """
        self.due = slots
        claims = []
        for child in self.children:
            most = min(child.wanted, slots if child.plan.most is None else child.plan.most)
            claims.append(Claim(min(child.reserved, most), most, child.plan.weight))
        shares = [claim.most for claim in claims] if self.plan.by_priority else parts(slots, claims)
        for child, part in zip(self.children, shares, strict=True):
            child.divide(part)

    @property
    def has_its_part(self) -> bool:
        """Whether jobs of this user, or of a plan above, need all that is due to them."""
        node: Node | None = self
        while node is not None:
            if node.used >= node.due - NEARLY:
                return True
            node = node.parent
        return False

    # --- whose turn it is

    def queue(self, keys: Mapping[str, Key]) -> None:
        """Begin to ask: `keys` say of each job how urgent it is."""
        if self.is_user:
            self._line = [(keys[job.exec_id], job) for job in self.jobs]
            self._line.sort(key=_FIRST, reverse=True)
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
        return self._line[-1][1]

    @property
    def urgency(self) -> float:
        """Of that job."""
        return -self._line[-1][0][0]

    def advance(self) -> None:
        """The job of the user who is `next` below this node, the root, has had its turn."""
        child = self.next
        assert child is not None
        child._line.pop()
        if not child._line:
            child.next = None
        node = child.parent
        while node is not None:  # on this way everybody is the first of the heap above
            heap = node._heap
            if child.next is None:
                heapq.heappop(heap)
            elif len(heap) > 1:
                heapq.heapreplace(heap, (node._key(child), heap[0][1], child))
            node.next = heap[0][2].next if heap else None
            child, node = node, node.parent

    def unasked(self) -> Unasked | None:
        """Who has not had a turn yet, for when nobody takes anything any more; None while plans compete: then it
        depends on these who is asked next."""
        node = self
        while len(node._heap) == 1 and not node._heap[0][2].is_user:
            node = node._heap[0][2]
        if node._plans:
            return None
        return Unasked([(user, 0.0 if node.plan.by_priority else user.used) for _, _, user in node._heap])

    def _key(self, child: Node) -> tuple[float, ...]:
        level, place = child.next._line[-1][0]  # type: ignore[union-attr]
        if not self._plans and not self.plan.by_priority:
            return level, child.used, place
        served = not child.reserved or child.owed <= 0
        return served, 0.0 if self.plan.by_priority else child.used / child.plan.weight, place


class Unasked:
    """Who has had no turn, in an order that is made when somebody wants to know it: thousands may be left when nothing
    else is, and hardly anybody asks whose turn it would have been. From any thread."""

    def __init__(self, users: Sequence[tuple[Node, float]]) -> None:
        """Users, and what counts among them before the places of their jobs that are equally urgent."""
        self.users = users

    def __len__(self) -> int:
        return sum(len(user._line) for user, _ in self.users)

    def __iter__(self) -> Iterator[tuple[Node, Job]]:
        line = [(level, used, place, user, job) for user, used in self.users for (level, place), job in user._line]
        line.sort()
        return ((user, job) for _, _, _, user, job in line)

    @property
    def jobs(self) -> Iterator[Job]:
        """In no order."""
        return (job for user, _ in self.users for _, job in user._line)


def grow(plan: Plan, jobs: Iterable[Job]) -> Node:
    """The tree of `plan` with these jobs on it."""
    root = Node(plan)
    root.grow(plan.children)
    users: dict[tuple[Sequence[str], str], tuple[Node, float]] = {}
    packs: set[str] = set()
    for job in jobs:
        found = users.get((job.plan, job.user))
        if found is None:
            user = root.find(job.plan).user(job.user)
            found = users[job.plan, job.user] = user, user.room
        user, room = found
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
            user.fixed.append(job)
            user.parts += has if job.shares else 0.0
            user.take(has)
        else:
            user.jobs.append(job)
            root.joins = root.joins or job.shares or not job.floor
        # Who asks for more than its limit never gets it, and has no claim to what is reserved.
        user.wanted += wanted if job.size <= room or job.fixed else 0.0
    root.add_up()
    return root
