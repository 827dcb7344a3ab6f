"""The state of the hub: its knowledge about a training. All modules of the hub use it; `hub` is their entry point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from local_backend.elastic.hub import membership
from local_backend.elastic.hub.events import Action, BatchResult, Fail, Failed, Kept
from local_backend.elastic.hub.membership import Crew, Stage
from local_backend.elastic.hub.watching import Totals, Values, Watch
from local_backend.elastic.plan import StepPlan, shard_count


class Phase(Enum):
    GATHERING = "gathering"
    TRAINING = "training"
    BOUNDARY = "boundary"
    FINISHING = "finishing"
    ENDED = "ended"


@dataclass(frozen=True)
class Course:
    """The settings that are fixed for a job before any worker has loaded its data."""

    #: Maximum number of workers.
    workers: int
    epochs: int
    batch: int
    step_samples: int
    seed: int
    validation_freq: int
    checkpoint_freq: int
    #: Validation batches in one task.
    test_chunk: int = 1
    #: An epoch covers a whole multiple of this number of samples.
    multiple: int = 1
    #: Steps over the same samples: one for each optimizer.
    phases: int = 1
    #: Maximum number of workers in each epoch; () for the same number in all epochs.
    limits: tuple[int, ...] = ()
    #: Decisions that depend on the values of epochs.
    watch: Watch = field(default_factory=Watch)
    #: Epochs that were done before this training began; their optimizer steps, and the number of training samples that
    #: they used, None when unknown.
    start: int = 0
    start_steps: int | None = None
    start_samples: int | None = None

    def most(self, epoch: int) -> int:
        """Return the maximum number of workers that have something to do in an epoch."""
        limit = self.limits[min(epoch, len(self.limits) - 1)] if self.limits else self.workers
        return min(self.workers, limit, shard_count(self.step_samples, self.batch))


@dataclass(frozen=True)
class Task:
    """A task at a boundary. The hub sends `message` to the worker."""

    message: Mapping[str, Any]
    #: Only the worker that writes files may do this task.
    writer: bool = False


@dataclass(frozen=True)
class HubState:
    """The whole state of the hub. Mappings are never changed in place."""

    course: Course
    crew: Crew
    phase: Phase = Phase.GATHERING
    plan: StepPlan | None = None
    #: Steps that every member has applied.
    committed: int = 0
    #: Step → shard → result, of steps that are not committed yet.
    reports: Mapping[int, Mapping[int, BatchResult]] = field(default_factory=dict)
    #: The epoch whose boundary comes next.
    epoch: int = 0
    #: Members that are at the boundary and have no task.
    idle: frozenset[int] = frozenset()
    #: Worker → description of its data after the epoch, for members that have been at the boundary.
    described: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    todo: tuple[Task, ...] = ()
    doing: Mapping[int, Task] = field(default_factory=dict)
    tested: tuple[BatchResult, ...] = ()
    #: Sums over the committed steps of the present epoch.
    totals: Totals = field(default_factory=Totals)
    #: Epoch → its values. The hub has sent them to the members, and may send them again.
    values: Mapping[int, Values] = field(default_factory=dict)
    #: Whether the last tasks of the boundary, which depend on the values of the epoch, are decided.
    closing: bool = False
    #: The number of finished epochs after which the job rests; None: it trains to its end.
    rest: int | None = None
    #: Whether the job rests: its members wait at the boundary, or are gone. Whether it needs no member, because its
    #: state is kept.
    resting: bool = False
    rested: bool = False
    #: Whether a callback wants training to end after the present epoch.
    stop: bool = False
    #: Number of epochs of a training that ends early, else None.
    ends: int | None = None
    #: Whether the callbacks of a worker have saved the user's own artifacts.
    saved: bool = False
    #: Why the last checkpoint or snapshot could not be written; "" if it was.
    unsaved: str = ""
    unkept: str = ""
    #: Whether files of checkpoints were written at the present boundary, and whether any could not be written.
    wrote: bool = False
    missed: bool = False
    #: Members that have finished the job.
    finished: frozenset[int] = frozenset()
    #: The member that sends the final state; whether it replaces a member that died; the state that it sent.
    writer: int = 0
    heir: bool = False
    result: bytes | None = None
    #: The state from which training continues when no member is left.
    kept: Kept | None = None
    #: Workers that all lost their slots at once, and wait until one of them has kept the state.
    parking: tuple[int, ...] = ()
    #: Those workers of `parking` that have left their generation, in this order. The first one keeps the state.
    out: tuple[int, ...] = ()
    #: Workers that have left a generation that continues without them, and wait until the hub lets them end.
    leavers: frozenset[int] = frozenset()
    #: The committed steps and the step in progress at the last break of training; how often in a row it broke there.
    broken_at: tuple[int, int] = (-1, -1)
    breaks: int = 0
    #: The committed steps when all members were last lost; how often in a row that happened there.
    lost_at: int = -1
    losses: int = 0
    #: Whether members enter a new generation after a break. Deaths that are reported meanwhile belong to this break.
    meeting: bool = False

    @property
    def members(self) -> tuple[int, ...]:
        return self.crew.active.members

    @property
    def epochs(self) -> int:
        """The number of epochs of the whole training, as far as it is known."""
        return self.course.epochs if self.ends is None else self.ends

    @property
    def validates(self) -> bool:
        """Whether at least one epoch is validated."""
        every = self.course.validation_freq
        tests = self.crew.data is not None and self.crew.data.test_batches > 0
        return tests and 0 < every <= self.course.epochs

    @property
    def running(self) -> bool:
        """Whether the training has begun and is not over."""
        return self.phase not in (Phase.GATHERING, Phase.ENDED)

    @property
    def parked(self) -> bool:
        """Whether training waits for slots."""
        return self.running and not self.members and not self.crew.slots

    @property
    def rests_here(self) -> bool:
        """Whether the job must not train on after the boundary of the present epoch."""
        return self.rest is not None and self.rest <= self.epoch + 1 < self.epochs

    @property
    def held(self) -> set[int]:
        """Leaving workers that wait for a message of the hub."""
        return {*self.parking, *self.leavers}

    @property
    def recovering(self) -> bool:
        """Whether training waits for new workers because none is left."""
        return self.running and not self.members and bool(self.crew.slots)

    @property
    def alive(self) -> tuple[int, ...]:
        """Members that still take part."""
        peers = self.crew.peers
        return tuple(w for w in self.members if w in peers and peers[w].stage is Stage.MEMBER)

    @property
    def gathered(self) -> bool:
        """Whether all members have entered the generation and are at the boundary without a task."""
        return bool(self.members) and not self.crew.entering and self.idle.issuperset(self.members)


Outcome = tuple[HubState, tuple[Action, ...]]


def then(outcome: Outcome, *following: Callable[[HubState], Outcome]) -> Outcome:
    """Make decisions one after the other, until the job has ended. Return the last state and all actions."""
    state, actions = outcome
    for decide in following:
        if state.phase is Phase.ENDED:
            break
        state, more = decide(state)
        actions += more
    return state, actions


def with_crew(state: HubState, outcome: membership.Outcome) -> Outcome:
    """Return the state with the crew that `membership` returned, and its actions."""
    return replace(state, crew=outcome[0]), outcome[1]


def requeue(state: HubState, workers: Iterable[int]) -> HubState:
    """Put the tasks of these workers at the front of `todo`, for other workers."""
    lost = [worker for worker in workers if worker in state.doing]
    doing = {worker: task for worker, task in state.doing.items() if worker not in lost}
    return replace(state, doing=doing, todo=(*(state.doing[worker] for worker in lost), *state.todo))


def fail(state: HubState, reason: str, cause: Failed | None = None) -> Outcome:
    """End the job with a failure."""
    return replace(state, phase=Phase.ENDED), (Fail(reason, cause),)
