"""What the scheduler decides about: slots, jobs, resource plans; and what it decides. Values only."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

CPU = "cpu"
GPU = "gpu"
#: Parts of a slot that a worker with a slot of its own takes.
WHOLE = 1000

#: Priority of a job that asks for none; larger is more urgent.
DEFAULT_PRIORITY = 5000


@dataclass(frozen=True)
class Slot:
    """One schedulable device: a GPU, a MIG slice of one, or a share of the machine's cores."""

    id: str
    #: CPU, GPU, or the profile of a MIG slice such as "1g.10gb".
    kind: str
    #: What CUDA_VISIBLE_DEVICES calls it; empty for a CPU slot.
    device: str = ""


@dataclass(frozen=True)
class Plan:
    """A consumer of the resource plan tree. Slots of every kind are shared alike, each kind by itself."""

    name: str
    #: Of what its siblings and it compete for.
    weight: float = 1.0
    #: Slots that it gets before anybody gets more than what is reserved for them, as soon as it can use them.
    reserved: int = 0
    #: Slots that it never exceeds; None for no limit. The same for each of its users.
    most: int | None = None
    user_most: int | None = None
    #: Below it slots go to the most urgent first, instead of to all alike.
    by_priority: bool = False
    #: Seconds after which a fixed-size job on a slot that is lent to it ends and waits again; None for never.
    reclaim_grace: float | None = None
    children: tuple[Plan, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """An exec that waits or runs, in slots of one kind. Times are seconds of the clock that `now` is read from."""

    exec_id: str
    user: str
    kind: str
    #: Names of plans from the root down.
    plan: tuple[str, ...]
    #: When it was submitted.
    since: float
    #: Slots per worker, at least 1; workers without which it cannot run; workers that it can use.
    per_worker: int = 1
    least: int = 1
    most: int = 1
    elastic: bool = False
    #: Parts of a slot that each worker takes. Below WHOLE, and in a pack, it is of a fixed size, with one slot per
    #: worker; jobs of one pack share one slot.
    share: int = WHOLE
    pack: str = ""
    #: Labels that the machine must have, with their values; an empty value stands for any.
    labels: tuple[tuple[str, str], ...] = ()
    priority: int = DEFAULT_PRIORITY
    #: How long it may wait, None for ever.
    patience: float | None = None
    #: Bytes of memory of a worker that are set aside for it.
    memory: int = 0
    #: It was taken when the machine may have been larger: then it waits until it is so again.
    accepted: bool = False
    #: An administrator has fixed its slots: it gets so many, or as many of them as there can be.
    pinned: bool = False
    #: It has a runner: it has slots, or is elastic and parked.
    running: bool = False
    #: It can be told to take other slots, or to end; not while it begins, or has not answered to what it was told.
    movable: bool = True
    #: It is being stopped: its slots come free by themselves.
    leaving: bool = False
    #: Slots that it may use, and all that nobody else can have: those that it gives up, too.
    slots: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    #: When it was queued again, after having run; and seconds that it waited before, or was parked.
    requeued: float | None = None
    waited: float = 0.0
    #: When it first got slots, and when it was last given others.
    started: float = 0.0
    changed: float = 0.0
    #: Measured: seconds that training stands still for a resize, and seconds of a step.
    pause: float = 0.0
    step: float = 0.0
    #: Slot-seconds that it has had: of two with the same claim to one slot, it goes to who has had less.
    service: float = 0.0
    #: Estimated moment of its end when it runs, estimated seconds that it will run when it waits; None when unknown.
    ends: float | None = None
    lasts: float | None = None

    #: Derived. Slots without which it cannot run, and that it can use, when it shares none.
    floor: int = field(init=False)
    ceiling: int = field(init=False)
    #: Whether others may be on its slots.
    shares: bool = field(init=False)
    #: Slots without which it cannot run, and that it has, as they count: of those that it shares, its part.
    size: float = field(init=False)
    weight: float = field(init=False)
    #: It runs and keeps the slots that it has to its end, or for now.
    fixed: bool = field(init=False)
    #: Since when it waits.
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
    """What there is to share."""

    slots: tuple[Slot, ...]
    #: Bytes of memory for jobs that say what they need; None when that is not known.
    memory: int | None = None
    #: Ids of slots that must not be used any more → why, in a few words.
    drained: Mapping[str, str] = field(default_factory=dict)
    #: What node selectors choose by.
    labels: Mapping[str, str] = field(default_factory=dict)

    def count(self, kind: str) -> int:
        """How many slots of a kind there are."""
        return self._counts.get(kind, 0)

    def usable(self, kind: str) -> list[Slot]:
        """Slots of a kind that may be used."""
        return [slot for slot in self.slots if slot.kind == kind and slot.id not in self.drained]

    @cached_property
    def _counts(self) -> Counter[str]:
        return Counter(slot.kind for slot in self.slots)


@dataclass(frozen=True)
class Reason:
    """Why a job waits."""

    #: One of `reasons.CODES`.
    code: str
    sentence: str
    #: Its place among those that wait for the same kind of slot, from 1; 0 for one that does not wait for slots yet.
    position: int
    #: The earliest moment at which it may start, None when nothing is known that would tell.
    estimate: float | None = None
    #: What can be done: "wait", "change" the submission, or "ask" an administrator; and what would make it start.
    advice: str = "wait"
    starts: str = ""


@dataclass
class Decision:
    """What to do now. Every job that was asked about and does not run is in exactly one of the first four."""

    start: dict[str, tuple[Slot, ...]] = field(default_factory=dict)
    waiting: Mapping[str, Reason] = field(default_factory=dict)
    #: Could never be scheduled on this machine → the sentence that says why and names the cure.
    impossible: dict[str, str] = field(default_factory=dict)
    #: Waited longer than it allowed → the sentence.
    expired: dict[str, str] = field(default_factory=dict)
    #: Running elastic jobs → their slots from now on, fewer or more; none to park them.
    resize: dict[str, tuple[Slot, ...]] = field(default_factory=dict)
    #: Running elastic jobs that have no slot and get none → what they wait for.
    parked: dict[str, Reason] = field(default_factory=dict)
    #: Fixed-size jobs that end now and wait again → whose slots they are on.
    reclaim: dict[str, str] = field(default_factory=dict)
    #: When the same jobs may lead to another decision, though nothing has happened.
    again: float | None = None


#: The tree that is used when no other is configured.
ROOT = Plan("local", children=(Plan("training"),))
DEFAULT_PLAN = ("local", "training")
