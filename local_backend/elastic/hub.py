"""The hub of a job decides; this is the decision alone: `step(state, event)` gives the next state and what to do.

Pure: no clock, no socket, no torch. `hub_io` feeds it what workers say, `driver` carries out the actions.

A training goes GATHERING (workers load their data) → TRAINING ⇄ BOUNDARY (after each epoch: save, validate) →
FINISHING (the final state comes in) → ENDED. A step is *committed* when every member has reported it; only committed
steps are logged, validated or saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from local_backend.elastic.plan import Plan, batches


class Phase(Enum):
    GATHERING = "gathering"
    TRAINING = "training"
    BOUNDARY = "boundary"
    FINISHING = "finishing"
    ENDED = "ended"


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


Event = Ready | Stepped | AtBoundary | TaskDone | Finished | Failed | Broken | Gone


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


@dataclass(frozen=True)
class Course:
    """What is fixed for a job before any worker has loaded its data."""

    workers: tuple[int, ...]
    epochs: int
    batch: int
    step_samples: int
    seed: int
    validation_freq: int
    checkpoint_freq: int
    #: Port of the store where workers meet; 0 when there is one worker.
    store: int = 0
    #: Validation batches handed out at a time.
    test_chunk: int = 1


@dataclass(frozen=True)
class Task:
    """A piece of work at a boundary. `message` is what the worker is told."""

    message: Mapping[str, Any]
    #: Only this worker may do it; None for any.
    only: int | None = None


@dataclass(frozen=True)
class State:
    """All that the hub knows. Mappings are never changed in place."""

    course: Course
    phase: Phase = Phase.GATHERING
    generation: int = 1
    plan: Plan | None = None
    ready: Mapping[int, Ready] = field(default_factory=dict)
    #: Steps that every member has reported.
    committed: int = 0
    #: Step → worker → results, of steps that are not committed yet.
    reports: Mapping[int, Mapping[int, tuple[BatchResult, ...]]] = field(default_factory=dict)
    #: The epoch whose boundary comes next.
    epoch: int = 0
    idle: frozenset[int] = frozenset()
    todo: tuple[Task, ...] = ()
    doing: Mapping[int, Task] = field(default_factory=dict)
    tested: tuple[BatchResult, ...] = ()
    finished: frozenset[int] = frozenset()
    result: bytes = b""

    @property
    def writer(self) -> int:
        """The one worker that writes files."""
        return min(self.course.workers)


Outcome = tuple[State, tuple[Action, ...]]


def step(state: State, event: Event) -> Outcome:
    """The state after the event, and what to do, in order. Events after the end are ignored."""
    if state.phase is Phase.ENDED:
        return state, ()
    return _HANDLERS[type(event)](state, event)


def _failed(state: State, event: Failed) -> Outcome:
    return _fail(state, f"worker {event.worker}: {event.summary}", event)


def _broken(state: State, event: Broken) -> Outcome:
    """A peer is gone, and its own event says why. As long as workers cannot be replaced there is nothing to order."""
    return state, ()


def _fail(state: State, reason: str, cause: Failed | None = None) -> Outcome:
    return replace(state, phase=Phase.ENDED), (Fail(reason, cause),)


def _ready(state: State, event: Ready) -> Outcome:
    if state.phase is not Phase.GATHERING:
        return _unexpected(state, event)
    ready = {**state.ready, event.worker: event}
    first = next(iter(ready.values()))
    if (event.samples, event.test_batches) != (first.samples, first.test_batches):
        return _fail(
            state,
            f"the data sets differ between workers: worker {first.worker} has {first.samples} training samples and "
            f"{first.test_batches} test batches, worker {event.worker} has {event.samples} and {event.test_batches}; "
            "datasets_function must return the same data everywhere",
        )
    state = replace(state, ready=ready)
    return _start(state) if len(ready) == len(state.course.workers) else (state, ())


def _start(state: State) -> Outcome:
    course = state.course
    plan = Plan(state.ready[state.writer].samples, course.batch, course.step_samples, course.epochs, course.seed)
    message = {
        "op": "start",
        "generation": state.generation,
        "members": list(course.workers),
        "store": course.store,
        "plan": {
            "samples": plan.samples,
            "batch": plan.batch,
            "step_samples": plan.step_samples,
            "epochs": plan.epochs,
            "seed": plan.seed,
        },
    }
    state = replace(state, phase=Phase.TRAINING, plan=plan)
    return state, (Begin(plan), *(Send(worker, message) for worker in course.workers))


def _stepped(state: State, event: Stepped) -> Outcome:
    if state.phase is not Phase.TRAINING or event.step < state.committed:
        return _unexpected(state, event)
    of_step = {**state.reports.get(event.step, {}), event.worker: event.results}
    return _commit(replace(state, reports={**state.reports, event.step: of_step}))


def _commit(state: State) -> Outcome:
    """Commits every step that all members have reported, in order."""
    assert state.plan is not None
    actions: list[Action] = []
    reports = dict(state.reports)
    committed = state.committed
    while len(reports.get(committed, ())) == len(state.course.workers):
        results = [result for part in reports.pop(committed).values() for result in part]
        epoch, within = divmod(committed, state.plan.steps_per_epoch)
        actions.append(Commit(epoch, within, tuple(sorted(results, key=lambda result: result.number))))
        committed += 1
    return replace(state, committed=committed, reports=reports), tuple(actions)


def _at_boundary(state: State, event: AtBoundary) -> Outcome:
    if state.phase is not Phase.TRAINING or event.epoch != state.epoch:
        return _unexpected(state, event)
    state = replace(state, idle=state.idle | {event.worker})
    if len(state.idle) < len(state.course.workers):
        return state, ()
    # A worker reports its steps before it comes to the boundary: with all here, the epoch is committed.
    if state.plan is None or state.committed != (state.epoch + 1) * state.plan.steps_per_epoch:
        return _unexpected(state, event)
    return _assign(replace(state, phase=Phase.BOUNDARY, todo=_tasks(state), tested=()))


def _tasks(state: State) -> tuple[Task, ...]:
    """What is to be done after the state's epoch: saving comes before validation."""
    course, done = state.course, state.epoch + 1
    final = done == course.epochs
    tasks = []
    if final or (course.checkpoint_freq and done % course.checkpoint_freq == 0):
        tasks.append(Task({"op": "save", "epoch": done, "final": final}, state.writer))
    if course.validation_freq and done % course.validation_freq == 0:
        for part in batches(state.ready[state.writer].test_batches, course.test_chunk):
            tasks.append(Task({"op": "test", "first": part.start, "last": part.stop}))
    return tuple(tasks)


def _task_done(state: State, event: TaskDone) -> Outcome:
    if event.worker not in state.doing:
        return _unexpected(state, event)
    doing = {worker: task for worker, task in state.doing.items() if worker != event.worker}
    return _assign(
        replace(state, doing=doing, idle=state.idle | {event.worker}, tested=state.tested + event.results)
    )


def _assign(state: State) -> Outcome:
    """Gives work to the idle; when none is left and all are idle, ends the boundary."""
    actions: list[Action] = []
    todo, doing, idle = list(state.todo), dict(state.doing), set(state.idle)
    for worker in sorted(state.idle):
        task = next((task for task in todo if task.only in (None, worker)), None)
        if task is not None:
            todo.remove(task)
            doing[worker] = task
            idle.remove(worker)
            actions.append(Send(worker, task.message))
    state = replace(state, todo=tuple(todo), doing=doing, idle=frozenset(idle))
    if todo or doing:
        return state, tuple(actions)
    return _leave_boundary(state)


def _leave_boundary(state: State) -> Outcome:
    actions: list[Action] = []
    tested = tuple(sorted(state.tested, key=lambda result: result.number))
    if tested:
        actions.append(Validated(state.epoch, tested))
    message: dict[str, Any] = {"op": "go", "accuracy": accuracy(tested)}
    phase = Phase.TRAINING
    if state.epoch + 1 == state.course.epochs:
        message, phase = {**message, "op": "finish", "writer": state.writer}, Phase.FINISHING
    actions += [Send(worker, message) for worker in state.course.workers]
    return replace(state, phase=phase, epoch=state.epoch + 1, idle=frozenset(), tested=()), tuple(actions)


def _finished(state: State, event: Finished) -> Outcome:
    if state.phase is not Phase.FINISHING:
        return _unexpected(state, event)
    state = replace(state, finished=state.finished | {event.worker}, result=event.state or state.result)
    if len(state.finished) < len(state.course.workers):
        return state, ()
    return replace(state, phase=Phase.ENDED), (End(state.result),)


def _gone(state: State, event: Gone) -> Outcome:
    if event.worker in state.finished:
        return state, ()
    return _fail(state, f"worker {event.worker} {event.how}")


def _unexpected(state: State, event: Event) -> Outcome:
    return _fail(state, f"worker {event.worker} said {type(event).__name__} while {state.phase.value}; this is a bug")


_HANDLERS: dict[type, Callable[[State, Any], Outcome]] = {
    Ready: _ready,
    Stepped: _stepped,
    AtBoundary: _at_boundary,
    TaskDone: _task_done,
    Finished: _finished,
    Failed: _failed,
    Broken: _broken,
    Gone: _gone,
}


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
