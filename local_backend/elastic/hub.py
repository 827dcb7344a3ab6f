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

from local_backend.elastic.events import (
    Action,
    Arrived,
    AtBoundary,
    BatchResult,
    Begin,
    Broken,
    Commit,
    End,
    Event,
    Fail,
    Failed,
    Finished,
    Gone,
    Ready,
    Send,
    Stepped,
    TaskDone,
    Validated,
    accuracy,
)
from local_backend.elastic.plan import Plan, batches


class Phase(Enum):
    GATHERING = "gathering"
    TRAINING = "training"
    BOUNDARY = "boundary"
    FINISHING = "finishing"
    ENDED = "ended"


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
    arrived: frozenset[int] = frozenset()
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


def _arrived(state: State, event: Arrived) -> Outcome:
    """The first worker loads its data sets alone, for it may have to download them; the others follow together."""
    if state.phase is not Phase.GATHERING:
        return _unexpected(state, event)
    may_load = bool(state.ready) or not state.arrived
    state = replace(state, arrived=state.arrived | {event.worker})
    return state, (_load(event.worker),) if may_load else ()


def _load(worker: int) -> Send:
    return Send(worker, {"op": "load"})


def _ready(state: State, event: Ready) -> Outcome:
    if state.phase is not Phase.GATHERING:
        return _unexpected(state, event)
    waiting = () if state.ready else tuple(_load(worker) for worker in sorted(state.arrived - {event.worker}))
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
    return _start(state) if len(ready) == len(state.course.workers) else (state, waiting)


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
    Arrived: _arrived,
    Ready: _ready,
    Stepped: _stepped,
    AtBoundary: _at_boundary,
    TaskDone: _task_done,
    Finished: _finished,
    Failed: _failed,
    Broken: _broken,
    Gone: _gone,
}
