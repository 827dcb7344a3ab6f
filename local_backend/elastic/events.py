"""What the hub hears (events), what it decides (actions), and what computing a batch gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from local_backend.elastic.plan import Plan


@dataclass(frozen=True)
class BatchResult:
    """What computing one batch gave: of shard `number` in training, of batch `number` in validation."""

    number: int
    count: int
    #: Mean over the batch.
    loss: float
    #: Samples predicted right; None where nothing is known about it (the user's own test function).
    correct: int | None
    #: The user's metrics, by name.
    metrics: Mapping[str, float] = field(default_factory=dict)


# --- events: what happened
@dataclass(frozen=True)
class Allocated:
    """The job may use these slots from now on, none of them twice."""

    slots: tuple[str, ...]


@dataclass(frozen=True)
class Arrived:
    """The worker is connected and waits until it may load its data sets."""

    worker: int


@dataclass(frozen=True)
class Ready:
    """The worker has loaded its data sets and can take part."""

    worker: int
    samples: int
    #: Batches of the test set, 0 for none.
    test_batches: int
    #: What the data is like: name → digest.
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Impatient:
    """The first generation has been waited for long enough: whoever is ready begins."""


@dataclass(frozen=True)
class Published:
    """A value by which the members of a generation find each other."""

    worker: int
    generation: int
    key: str
    value: bytes


@dataclass(frozen=True)
class Formed:
    """The worker is connected with all other members of a generation."""

    worker: int
    generation: int


@dataclass(frozen=True)
class Entered:
    """The worker is in the generation now, and its state is that of all members: `applied` steps are in it."""

    worker: int
    generation: int
    applied: int


@dataclass(frozen=True)
class Stepped:
    """The worker has computed its shards of `step` (counted from 0 over the whole job) and applied all steps before."""

    worker: int
    step: int
    results: tuple[BatchResult, ...]
    #: Seconds that computing the shards took.
    seconds: float = 0.0


@dataclass(frozen=True)
class Applied:
    """The worker has applied `steps` steps. It says so after its first step in a generation only; see `Stepped`."""

    worker: int
    steps: int


@dataclass(frozen=True)
class AtBoundary:
    """The worker has ended an epoch and waits for orders."""

    worker: int
    epoch: int
    #: It was the one whose callbacks saved the user's own artefacts.
    saved: bool = False
    #: What the data is like after the epoch: name → digest.
    data: Mapping[str, str] = field(default_factory=dict)
    #: It has been told the values of the epoch, and has done what depends on them.
    told: bool = False
    #: A callback wants training to end after this epoch.
    stop: bool = False
    #: The values that it was told last; {} before it was told any.
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskDone:
    """The worker has done what it was told at the boundary, and waits for orders."""

    worker: int
    results: tuple[BatchResult, ...] = ()


@dataclass(frozen=True)
class Kept:
    """A state from which training can go on when no worker is left: in a file, or here when none could be written."""

    worker: int
    version: int
    path: str = ""
    blob: bytes = b""


@dataclass(frozen=True)
class Left:
    """The worker is out of its generation and waits to be let go."""

    worker: int


@dataclass(frozen=True)
class Finished:
    """The worker is done with the job; one of them brings the trained state."""

    worker: int
    state: bytes = b""


@dataclass(frozen=True)
class Failed:
    """An exception in the worker: of the user's code, or something that the engine refuses."""

    worker: int
    summary: str
    traceback: str
    exception: bytes = b""
    #: What was trained until then, for `handover.take_over`; empty where there is nothing.
    trained: bytes = b""


@dataclass(frozen=True)
class Broken:
    """The worker lost a peer in the middle of a collective and waits for orders."""

    worker: int
    generation: int


@dataclass(frozen=True)
class Lost:
    """The worker's connection has ended, without or before its process; it must not take part any more."""

    worker: int


@dataclass(frozen=True)
class Hung(Lost):
    """The worker keeps the others waiting for too long."""

    why: str = ""


@dataclass(frozen=True)
class Gone:
    """The worker's process has ended; all it said before has been heard."""

    worker: int
    how: str


@dataclass(frozen=True)
class Unbalanced:
    """The members would be faster with these numbers of shards each, in their order."""

    counts: tuple[int, ...]


Event = (
    Allocated | Applied | Arrived | Ready | Impatient | Published | Formed | Entered | Stepped | AtBoundary | TaskDone
    | Kept | Left | Finished | Failed | Broken | Lost | Hung | Gone | Unbalanced
)


# --- actions: what is to be done about it
@dataclass(frozen=True)
class Send:
    worker: int
    message: Mapping[str, Any]
    attachment: bytes = b""


@dataclass(frozen=True)
class Spawn:
    """Start a worker on a slot."""

    worker: int
    slot: str


@dataclass(frozen=True)
class Kill:
    """End a worker's process at once."""

    worker: int


@dataclass(frozen=True)
class Begin:
    """Training begins; this is what is going to be done."""

    plan: Plan


@dataclass(frozen=True)
class Switched:
    """A generation is in place: all its members have entered it. `before` are the members of the one before."""

    generation: int
    before: tuple[int, ...]
    members: tuple[int, ...]
    counts: tuple[int, ...]
    #: Applied steps that all of them have.
    step: int
    #: Whether it was wanted, not made because a member was lost.
    planned: bool = True


@dataclass(frozen=True)
class Note:
    """Something for the job's history."""

    text: str


@dataclass(frozen=True)
class Commit:
    """Step `step` of `epoch` is done by every member; results in order of shards."""

    epoch: int
    step: int
    results: tuple[BatchResult, ...]


@dataclass(frozen=True)
class Validated:
    """The model was validated after `epoch`; results in order of batches."""

    epoch: int
    results: tuple[BatchResult, ...]


@dataclass(frozen=True)
class Closed:
    """The values of an epoch are known: those of training and, where it was validated, of validation."""

    epoch: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Stopped:
    """Training ends after `epoch`, before the last one of the plan."""

    epoch: int
    why: str


@dataclass(frozen=True)
class End:
    """The job is done; `state` is what the worker sent with Finished."""

    state: bytes


@dataclass(frozen=True)
class Fail:
    """The job cannot go on. `cause` when an exception is why, else `reason` says it."""

    reason: str
    cause: Failed | None = None


Action = Send | Spawn | Kill | Begin | Switched | Note | Commit | Validated | Closed | Stopped | End | Fail


def accuracy(results: tuple[BatchResult, ...]) -> float | None:
    """Fraction of samples predicted right, None where that is not known."""
    known = [result for result in results if result.correct is not None]
    count = sum(result.count for result in known)
    return sum(result.correct or 0 for result in known) / count if count else None


def mean_loss(results: tuple[BatchResult, ...]) -> float:
    """Mean over all samples, added in the order given, in double precision."""
    if len(results) == 1:
        return results[0].loss
    count = sum(result.count for result in results)
    return sum(result.loss * result.count for result in results) / count


def mean_metrics(results: tuple[BatchResult, ...]) -> dict[str, float]:
    """The user's metrics, each the mean over all samples."""
    if len(results) == 1:
        return dict(results[0].metrics)
    count = sum(result.count for result in results)
    names = results[0].metrics if results else ()
    return {name: sum(result.metrics[name] * result.count for result in results) / count for name in names}
