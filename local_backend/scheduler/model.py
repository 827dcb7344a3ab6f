"""Values of the scheduler: slots, jobs, resource plans, and the decision. No logic."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

CPU = "cpu"
GPU = "gpu"
#: Parts of one slot. A worker that shares no slot takes all of them.
WHOLE = 1000

#: Priority of a job that asks for none; larger is more urgent.
DEFAULT_PRIORITY = 5000


@dataclass(frozen=True)
class Slot:
    """One schedulable device: a GPU, a MIG slice of one, or a share of the machine's cores."""

    id: str
    #: CPU, GPU, or the profile of a MIG slice such as "1g.10gb".
    kind: str
    #: Name of the device in CUDA_VISIBLE_DEVICES; empty for a CPU slot.
    device: str = ""


@dataclass(frozen=True)
class Allocation:
    """Slots that an attempt of an exec may use from now on."""

    slots: tuple[Slot, ...]
    #: Increases with every change; 0 is the allocation that the attempt begins with.
    sequence: int = 0
    #: Number of finished epochs after which an elastic job rests; None: it trains to its end.
    rest: int | None = None


@dataclass(frozen=True)
class ResourcePlan:
    """A consumer of the resource plan tree. Slots of each kind are shared separately, by the same rules."""

    name: str
    #: Weight of the plan when it competes with its siblings.
    weight: float = 1.0
    #: Slots that the plan gets, once it can use them, before any plan gets more than its own reservation.
    reserved: int = 0
    #: Maximum slots of the plan, and of each of its users; None for no limit.
    most: int | None = None
    user_most: int | None = None
    #: Whether slots below the plan go to the most urgent jobs first, instead of to all jobs fairly.
    by_priority: bool = False
    #: Seconds that an owner of lent slots waits before a fixed-size job of this plan on them ends and is queued
    #: again; None for never.
    reclaim_grace: float | None = None
    children: tuple[ResourcePlan, ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulerJob:
    """A pending or running exec, on slots of one kind. Times are seconds of the clock that `now` is read from."""

    exec_id: str
    user: str
    kind: str
    #: Names of plans, from the root down.
    plan: tuple[str, ...]
    #: Time of submission.
    since: float
    #: Slots per worker, at least 1; minimum workers to run; maximum workers that the job can use.
    per_worker: int = 1
    least: int = 1
    most: int = 1
    elastic: bool = False
    #: Whether it is a service. While it runs, no other job takes its minimum; `most` is 0 while it needs no slot.
    serves: bool = False
    #: Parts of a slot that each worker takes. A job with a share below WHOLE, or in a pack, has one slot per worker,
    #: and a fixed size unless it is a service. Jobs of one pack share one slot: `slots` then names it once per worker.
    share: int = WHOLE
    pack: str = ""
    #: Jobs of a user with the same group are one consumer among the jobs of the user; "" for a job on its own.
    group: str = ""
    #: Labels that the machine must have, with their values; an empty value matches any.
    labels: tuple[tuple[str, str], ...] = ()
    priority: int = DEFAULT_PRIORITY
    #: Maximum seconds that the job may wait; None for no limit.
    patience: float | None = None
    #: Bytes of memory that are set aside for each worker.
    memory: int = 0
    #: Whether an earlier server accepted the job, perhaps on a larger machine. The job then waits for one as large.
    accepted: bool = False
    #: Whether an administrator has fixed the number of slots. The job gets as many of that number as possible.
    pinned: bool = False
    #: Whether the job has a runner. It then has slots, or is elastic and parked.
    running: bool = False
    #: Whether the job can be told to take other slots, or to end. False while the job starts, and until it has
    #: answered the last message of this kind.
    movable: bool = True
    #: Whether the job is being stopped. Its slots then become free without a decision.
    leaving: bool = False
    #: Slots that the job may use; all slots that no other job can get, including those that this job is giving up.
    slots: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    #: Time at which the job was queued again, after a run or after its data arrived; seconds that it waited before
    #: that, or was parked.
    requeued: float | None = None
    waited: float = 0.0
    #: Time at which the job got the first slots of its present run; time at which its slots last changed.
    started: float = 0.0
    changed: float = 0.0
    #: Measured: seconds that a resize pauses training, and seconds per step.
    pause: float = 0.0
    step: float = 0.0
    #: Slot-seconds used so far. Of two jobs with equal claims to a slot, the job with fewer gets the slot.
    service: float = 0.0
    #: Estimated time at which a running job ends; estimated seconds that a pending job will run; None when unknown.
    ends: float | None = None
    lasts: float | None = None

    #: Derived. Minimum slots to run, and maximum slots that the job can use, if it shares none.
    floor: int = field(init=False)
    ceiling: int = field(init=False)
    #: Whether other jobs may be on its slots.
    shares: bool = field(init=False)
    #: Minimum slots to run, and slots that the job has. Of a shared slot, only the job's part counts.
    size: float = field(init=False)
    weight: float = field(init=False)
    #: Whether the job runs and keeps its slots, until it ends or for now.
    fixed: bool = field(init=False)
    #: Time since which the job waits.
    entered: float = field(init=False)

    def __post_init__(self) -> None:
        derive = functools.partial(object.__setattr__, self)
        part = self.share / WHOLE
        derive("floor", self.least * self.per_worker)
        derive("ceiling", self.most * self.per_worker)
        derive("shares", self.share < WHOLE or bool(self.pack))
        derive("size", self.least * part if self.shares else self.floor)
        derive("weight", len(self.slots) * part if self.shares else len(self.slots))
        derive("fixed", self.running and not (self.elastic and self.movable))
        derive("entered", self.since if self.requeued is None else self.requeued)


@dataclass(frozen=True)
class Machine:
    """The slots, memory and labels of the machine."""

    slots: tuple[Slot, ...]
    #: Bytes of memory for jobs that declare their need; None when unknown.
    memory: int | None = None
    #: Ids of slots that must not be used any more → the reason, in a few words.
    drained: Mapping[str, str] = field(default_factory=dict)
    #: Labels that node selectors match.
    labels: Mapping[str, str] = field(default_factory=dict)

    def count(self, kind: str) -> int:
        """Return the number of slots of a kind."""
        return self._counts.get(kind, 0)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of slots that the machine has."""
        return frozenset(self._counts)

    def usable(self, kind: str) -> list[Slot]:
        """Return the slots of a kind that may be used."""
        return [slot for slot in self.slots if slot.kind == kind and slot.id not in self.drained]

    @cached_property
    def _counts(self) -> Counter[str]:
        return Counter(slot.kind for slot in self.slots)


@dataclass(frozen=True)
class Reason:
    """The reason why a job waits."""

    #: One of `reasons.CODES`.
    code: str
    sentence: str
    #: Position among the jobs that wait for the same kind of slot, from 1; 0 while the job does not wait for slots.
    position: int
    #: Earliest time at which the job may start; None when unknown.
    estimate: float | None = None
    #: What to do: "wait", "change" the submission, or "ask" an administrator; and what would make the job start.
    advice: str = "wait"
    starts: str = ""


@dataclass
class Decision:
    """What to do now. Each given job that does not run is in exactly one of the first four fields."""

    start: dict[str, tuple[Slot, ...]] = field(default_factory=dict)
    waiting: Mapping[str, Reason] = field(default_factory=dict)
    #: Jobs that can never be scheduled on this machine → a sentence that gives the reason and the remedy.
    impossible: dict[str, str] = field(default_factory=dict)
    #: Jobs that waited longer than they allowed → a sentence.
    expired: dict[str, str] = field(default_factory=dict)
    #: Running elastic jobs → their slots from now on, more or fewer; empty to park the job.
    resize: dict[str, tuple[Slot, ...]] = field(default_factory=dict)
    #: Running elastic jobs that have no slot and get none → the reason.
    parked: dict[str, Reason] = field(default_factory=dict)
    #: Fixed-size jobs that end now and are queued again → the job that owns their slots.
    reclaim: dict[str, str] = field(default_factory=dict)
    #: Time at which the same jobs may lead to another decision without any event; None for never.
    again: float | None = None


#: The plan tree that is used when no other is configured.
ROOT = ResourcePlan("local", children=(ResourcePlan("training"), ResourcePlan("inference")))
DEFAULT_PLAN = ("local", "training")
#: The plan of services that name none.
SERVICE_PLAN = ("local", "inference")
