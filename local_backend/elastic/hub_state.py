"""What the hub knows about a training. The rooms of the hub pass it on; `hub` is their front."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from local_backend.elastic import membership
from local_backend.elastic.events import Action, BatchResult, Fail, Failed, Kept
from local_backend.elastic.membership import Crew, Stage
from local_backend.elastic.plan import Plan, shard_count
from local_backend.elastic.watching import Totals, Values, Watch


class Phase(Enum):
    GATHERING = "gathering"
    TRAINING = "training"
    BOUNDARY = "boundary"
    FINISHING = "finishing"
    ENDED = "ended"


@dataclass(frozen=True)
class Course:
    """What is fixed for a job before any worker has loaded its data."""

    #: Most workers.
    workers: int
    epochs: int
    batch: int
    step_samples: int
    seed: int
    validation_freq: int
    checkpoint_freq: int
    #: Validation batches handed out at a time.
    test_chunk: int = 1
    #: An epoch covers a whole multiple of this number of samples.
    multiple: int = 1
    #: Steps over the same samples: one for each optimizer.
    phases: int = 1
    #: Most workers in each epoch, () for the same in all.
    limits: tuple[int, ...] = ()
    #: What depends on the values of epochs.
    watch: Watch = field(default_factory=Watch)
    #: Epochs that were done before this training began, the optimizer steps in them and the samples of the training set
    #: that they were made with, where these are known.
    start: int = 0
    start_steps: int | None = None
    start_samples: int | None = None

    def most(self, epoch: int) -> int:
        """Workers that can have something to do in an epoch."""
        limit = self.limits[min(epoch, len(self.limits) - 1)] if self.limits else self.workers
        return min(self.workers, limit, shard_count(self.step_samples, self.batch))


@dataclass(frozen=True)
class Task:
    """A piece of work at a boundary. `message` is what the worker is told."""

    message: Mapping[str, Any]
    #: Only the worker that writes files may do it.
    writer: bool = False


@dataclass(frozen=True)
class State:
    """All that the hub knows. Mappings are never changed in place."""

    course: Course
    crew: Crew
    phase: Phase = Phase.GATHERING
    plan: Plan | None = None
    #: Steps that every member has applied.
    committed: int = 0
    #: Step → shard → result, of steps that are not committed yet.
    reports: Mapping[int, Mapping[int, BatchResult]] = field(default_factory=dict)
    #: The epoch whose boundary comes next.
    epoch: int = 0
    #: Members that are at the boundary and have nothing to do.
    idle: frozenset[int] = frozenset()
    #: Worker → what it says about its data after the epoch; of members that have been at the boundary.
    described: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    todo: tuple[Task, ...] = ()
    doing: Mapping[int, Task] = field(default_factory=dict)
    tested: tuple[BatchResult, ...] = ()
    #: Sums over the committed steps of the present epoch.
    totals: Totals = field(default_factory=Totals)
    #: Epoch → its values, which members were told and may be told again.
    values: Mapping[int, Values] = field(default_factory=dict)
    #: It is decided what is left to be done at the boundary, now that the values of the epoch are known.
    closing: bool = False
    #: A callback wants training to end after the present epoch.
    stop: bool = False
    #: Number of epochs of a training that ends early.
    ends: int | None = None
    #: Whether the callbacks of some worker have saved the user's own artefacts.
    saved: bool = False
    #: Members that are done with the job.
    finished: frozenset[int] = frozenset()
    #: The member that brings the final state, whether it inherited that duty, and what it brought.
    writer: int = 0
    heir: bool = False
    result: bytes | None = None
    #: From where training goes on when no member is left.
    kept: Kept | None = None
    #: Workers that lost their slots all at once and wait until one of them has kept the state.
    parking: tuple[int, ...] = ()
    #: Those of them that are out of their generation, in the order in which they left; the first one keeps the state.
    out: tuple[int, ...] = ()
    #: Those who have left a generation that goes on without them, and wait to be let go.
    leavers: frozenset[int] = frozenset()
    #: Steps that were committed when training was last broken off, and the step that it was at; and how many times.
    broken_at: tuple[int, int] = (-1, -1)
    breaks: int = 0
    #: What was committed when all members were lost, and how many times that happened.
    lost_at: int = -1
    losses: int = 0
    #: Members meet again after a break; deaths of which is heard meanwhile belong to it.
    meeting: bool = False

    @property
    def members(self) -> tuple[int, ...]:
        return self.crew.active.members

    @property
    def epochs(self) -> int:
        """Epochs of the whole training, as far as that is known."""
        return self.course.epochs if self.ends is None else self.ends

    @property
    def validates(self) -> bool:
        """Whether some epoch is validated."""
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
    def held(self) -> set[int]:
        """Workers on their way out that wait for the hub's word."""
        return {*self.parking, *self.leavers}

    @property
    def recovering(self) -> bool:
        """Whether training waits for new workers because none is left."""
        return self.running and not self.members and bool(self.crew.slots)

    @property
    def alive(self) -> tuple[int, ...]:
        """Members that take part still."""
        peers = self.crew.peers
        return tuple(w for w in self.members if w in peers and peers[w].stage is Stage.MEMBER)

    @property
    def gathered(self) -> bool:
        """Whether all members are in the generation, at the boundary, with nothing to do."""
        return bool(self.members) and not self.crew.entering and self.idle.issuperset(self.members)


Outcome = tuple[State, tuple[Action, ...]]


def then(outcome: Outcome, *following: Callable[[State], Outcome]) -> Outcome:
    """One decision after the other, as long as the job goes on."""
    state, actions = outcome
    for decide in following:
        if state.phase is Phase.ENDED:
            break
        state, more = decide(state)
        actions += more
    return state, actions


def with_crew(state: State, outcome: membership.Outcome) -> Outcome:
    """The state with what `membership` made of the crew."""
    return replace(state, crew=outcome[0]), outcome[1]


def requeue(state: State, workers: Iterable[int]) -> State:
    """What these workers had to do is to be done by whoever comes first."""
    lost = [worker for worker in workers if worker in state.doing]
    doing = {worker: task for worker, task in state.doing.items() if worker not in lost}
    return replace(state, doing=doing, todo=(*(state.doing[worker] for worker in lost), *state.todo))


def fail(state: State, reason: str, cause: Failed | None = None) -> Outcome:
    """The job cannot go on."""
    return replace(state, phase=Phase.ENDED), (Fail(reason, cause),)
