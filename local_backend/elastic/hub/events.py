"""Events that the hub receives, actions that the hub decides, and results of batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from local_backend.elastic.plan import StepPlan
from local_backend.elastic.position import Position


@dataclass(frozen=True)
class BatchResult:
    """The result of one batch: of shard `number` in training, of batch `number` in validation."""

    number: int
    count: int
    #: Mean loss over the batch.
    loss: float
    #: Number of samples predicted right; None if it is unknown, as in regression.
    correct: int | None
    #: The user's metrics, by name.
    metrics: Mapping[str, float] = field(default_factory=dict)


# --- events: inputs of the hub
@dataclass(frozen=True)
class Allocated:
    """The job may use these slots from now on. No slot occurs twice."""

    slots: tuple[str, ...]
    #: Number of finished epochs after which the job rests; None: it trains to its end.
    rest: int | None = None


@dataclass(frozen=True)
class Arrived:
    """The worker is connected and waits for the order to load its data sets."""

    worker: int


@dataclass(frozen=True)
class Ready:
    """The worker has loaded its data sets and can take part."""

    worker: int
    samples: int
    #: Batches of the test set, 0 for none.
    test_batches: int
    #: Description of the data: name → digest.
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Impatient:
    """The wait for the first generation has been long enough. The workers that are ready begin."""


@dataclass(frozen=True)
class Published:
    """A value that a member publishes, so that the members of a generation can connect to each other."""

    worker: int
    generation: int
    key: str
    value: bytes


@dataclass(frozen=True)
class Formed:
    """The worker is connected to all other members of a generation."""

    worker: int
    generation: int


@dataclass(frozen=True)
class Entered:
    """The worker has entered the generation. It has the state of all members, with `applied` steps."""

    worker: int
    generation: int
    applied: int


@dataclass(frozen=True)
class Stepped:
    """The worker has computed its shards of `step` (counted from 0 over the whole job) and applied all earlier ones."""

    worker: int
    step: int
    results: tuple[BatchResult, ...]
    #: Seconds that the worker computed in its previous step of this generation; 0 in the first step.
    seconds: float = 0.0


@dataclass(frozen=True)
class Applied:
    """The worker has applied `steps` steps. Sent only after its first step in a generation; see `Stepped`."""

    worker: int
    steps: int


@dataclass(frozen=True)
class AtBoundary:
    """The worker has ended an epoch and waits for orders."""

    worker: int
    epoch: int
    #: Whether the callbacks of this worker have saved the user's own artifacts.
    saved: bool = False
    #: Description of the data after the epoch: name → digest.
    data: Mapping[str, str] = field(default_factory=dict)
    #: Whether the worker has received the values of the epoch and done the work that depends on them.
    told: bool = False
    #: Whether a callback wants training to end after this epoch.
    stop: bool = False
    #: The values that the worker has received last; {} before the first ones.
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskDone:
    """The worker has done its task at the boundary and waits for orders."""

    worker: int
    results: tuple[BatchResult, ...] = ()
    #: Why files could not be written, if training can go on without them.
    trouble: str = ""


@dataclass(frozen=True)
class NotKept:
    """A snapshot could not be written. Training goes on without it."""

    worker: int
    why: str


@dataclass(frozen=True)
class Kept:
    """A state to resume from when no worker is left: in the file `path`, or in `blob` if no file could be written."""

    worker: int
    position: Position
    path: str = ""
    blob: bytes = b""


@dataclass(frozen=True)
class Left:
    """The worker has left its generation and waits for the order to end."""

    worker: int


@dataclass(frozen=True)
class Finished:
    """The worker has finished the job. One of the workers sends the trained state."""

    worker: int
    state: bytes = b""


@dataclass(frozen=True)
class Failed:
    """An exception in the worker: from the user's code or from the engine."""

    worker: int
    summary: str
    traceback: str
    exception: bytes = b""
    #: The state trained until then, for `replica.take_over`; empty if there is none.
    trained: bytes = b""


@dataclass(frozen=True)
class Broken:
    """The worker lost a peer during a collective and waits for orders."""

    worker: int
    generation: int


@dataclass(frozen=True)
class Lost:
    """The worker's connection has ended, but its process may still run. The worker must not take part any more."""

    worker: int


@dataclass(frozen=True)
class Hung(Lost):
    """The worker hangs: it keeps other workers waiting for too long, or does not answer."""

    why: str = ""


@dataclass(frozen=True)
class Gone:
    """The worker's process has ended. The hub has received all messages of the worker."""

    worker: int
    how: str


@dataclass(frozen=True)
class Unbalanced:
    """The members would be faster with these shard counts, in the order of the members."""

    counts: tuple[int, ...]


Event = (
    Allocated | Applied | Arrived | Ready | Impatient | Published | Formed | Entered | Stepped | AtBoundary | TaskDone
    | Kept | NotKept | Left | Finished | Failed | Broken | Lost | Hung | Gone | Unbalanced
)


# --- actions: decisions of the hub
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
    """Training begins with this plan."""

    plan: StepPlan


@dataclass(frozen=True)
class Switched:
    """All members of a generation have entered it. `before`: members of the previous generation."""

    generation: int
    before: tuple[int, ...]
    members: tuple[int, ...]
    counts: tuple[int, ...]
    #: Number of steps that all members have applied.
    step: int
    #: Whether the generation was planned. False if the loss of a member was the reason.
    planned: bool = True


@dataclass(frozen=True)
class Note:
    """A line for the job's history."""

    text: str


@dataclass(frozen=True)
class Commit:
    """Every member has applied step `step` of `epoch`. The results are in order of shards."""

    epoch: int
    step: int
    results: tuple[BatchResult, ...]


@dataclass(frozen=True)
class Validated:
    """The model was validated after `epoch`. The results are in order of batches."""

    epoch: int
    results: tuple[BatchResult, ...]


@dataclass(frozen=True)
class Closed:
    """The values of an epoch are known: values of training and, if the epoch was validated, of validation."""

    epoch: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Stopped:
    """Training ends after `epoch`, before the last epoch of the plan."""

    epoch: int
    why: str


@dataclass(frozen=True)
class Rested:
    """The job rests after this number of finished epochs: its members wait for another number, or for the loss of
    their slots. Reported again when no worker is left and the state is kept. `stored`: it is in a file, not only in the
    memory of the driver."""

    epochs: int
    stored: bool


@dataclass(frozen=True)
class End:
    """The job is done. `state`: the state that the worker sent with Finished."""

    state: bytes


@dataclass(frozen=True)
class Fail:
    """The job cannot go on. `reason` says why. `cause`: the exception in a worker, if that is the reason."""

    reason: str
    cause: Failed | None = None


Action = Send | Spawn | Kill | Begin | Switched | Note | Commit | Validated | Closed | Stopped | Rested | End | Fail


def accuracy(results: tuple[BatchResult, ...]) -> float | None:
    """Return the fraction of samples predicted right, or None if it is unknown."""
    known = [result for result in results if result.correct is not None]
    count = sum(result.count for result in known)
    return sum(result.correct or 0 for result in known) / count if count else None


def mean_loss(results: tuple[BatchResult, ...]) -> float:
    """Return the mean loss over all samples, added in the given order in double precision."""
    if len(results) == 1:
        return results[0].loss
    count = sum(result.count for result in results)
    return sum(result.loss * result.count for result in results) / count


def mean_metrics(results: tuple[BatchResult, ...]) -> dict[str, float]:
    """Return the user's metrics, each as the mean over all samples."""
    if len(results) == 1:
        return dict(results[0].metrics)
    count = sum(result.count for result in results)
    names = results[0].metrics if results else ()
    return {name: sum(result.metrics[name] * result.count for result in results) / count for name in names}


def results_to_wire(results: list[BatchResult]) -> list[list[Any]]:
    """Return results as JSON, which keeps every bit of a double."""
    return [[r.number, r.count, r.loss, r.correct, dict(r.metrics)] for r in results]


def results_from_wire(rows: list[list[Any]]) -> tuple[BatchResult, ...]:
    """Return results from their JSON. Inverse of `results_to_wire`."""
    return tuple(BatchResult(*row) for row in rows)
