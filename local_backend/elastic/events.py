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
class Arrived:
    """The worker is connected and waits until it may load its data sets."""

    worker: int


@dataclass(frozen=True)
class Ready:
    """The worker has loaded its data sets."""

    worker: int
    samples: int
    #: Batches of the test set, 0 for none.
    test_batches: int


@dataclass(frozen=True)
class Stepped:
    """The worker has applied a step (counted from 0 over the whole job)."""

    worker: int
    step: int
    results: tuple[BatchResult, ...]


@dataclass(frozen=True)
class AtBoundary:
    """The worker has ended an epoch and waits for orders."""

    worker: int
    epoch: int


@dataclass(frozen=True)
class TaskDone:
    """The worker has done what it was told at the boundary, and waits for orders."""

    worker: int
    results: tuple[BatchResult, ...] = ()


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


@dataclass(frozen=True)
class Broken:
    """The worker lost a peer in the middle of a collective and waits for orders."""

    worker: int


@dataclass(frozen=True)
class Gone:
    """The worker's process has ended; all it said before has been heard."""

    worker: int
    how: str


Event = Arrived | Ready | Stepped | AtBoundary | TaskDone | Finished | Failed | Broken | Gone


# --- actions: what is to be done about it
@dataclass(frozen=True)
class Send:
    worker: int
    message: Mapping[str, Any]


@dataclass(frozen=True)
class Begin:
    """All workers are ready; this is what they are going to do."""

    plan: Plan


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
class End:
    """The job is done; `state` is what the worker sent with Finished."""

    state: bytes


@dataclass(frozen=True)
class Fail:
    """The job cannot go on. `cause` when an exception is why, else `reason` says it."""

    reason: str
    cause: Failed | None = None


Action = Send | Begin | Commit | Validated | End | Fail


def accuracy(results: tuple[BatchResult, ...]) -> float | None:
    """Fraction of samples predicted right, None where that is not known."""
    known = [result for result in results if result.correct is not None]
    count = sum(result.count for result in known)
    return sum(result.correct or 0 for result in known) / count if count else None


def mean_loss(results: tuple[BatchResult, ...]) -> float:
    """Mean over all samples, added in the order given, in double precision."""
    count = sum(result.count for result in results)
    return sum(result.loss * result.count for result in results) / count


def mean_metrics(results: tuple[BatchResult, ...]) -> dict[str, float]:
    """The user's metrics, each the mean over all samples."""
    count = sum(result.count for result in results)
    names = results[0].metrics if results else ()
    return {name: sum(result.metrics[name] * result.count for result in results) / count for name in names}
