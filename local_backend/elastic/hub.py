"""The hub of a job decides; this is the decision alone: `step(state, event)` gives the next state and what to do.

Pure: no clock, no socket, no torch. `hub_io` feeds it what workers say, `driver` carries out the actions.

A training goes GATHERING (the first workers load their data) → TRAINING ⇄ BOUNDARY (after each epoch: save, validate)
→ FINISHING (the final state comes in) → ENDED. In all but the first and the last, workers come, go and die; without any
the job is parked (no slots) or recovering (no worker is left), and goes on from the newest state that was kept.

A step is *committed* when every member has applied it; only committed steps are logged, validated or saved. What is
committed stays so: steps that are trained again after a recovery are not logged twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from local_backend.elastic import membership
from local_backend.elastic.events import (
    Action,
    Allocated,
    Arrived,
    AtBoundary,
    BatchResult,
    Begin,
    Broken,
    Commit,
    End,
    Entered,
    Event,
    Fail,
    Failed,
    Finished,
    Formed,
    Gone,
    Hung,
    Impatient,
    Kept,
    Kill,
    Left,
    Lost,
    Note,
    Published,
    Ready,
    Send,
    Stepped,
    TaskDone,
    Unbalanced,
    Validated,
    accuracy,
)
from local_backend.elastic.membership import NOBODY, Crew, Stage
from local_backend.elastic.plan import Plan, batches, shard_count

#: The job fails when it was broken off this many times without getting on.
BREAKS = 3


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
    idle: frozenset[int] = frozenset()
    todo: tuple[Task, ...] = ()
    doing: Mapping[int, Task] = field(default_factory=dict)
    tested: tuple[BatchResult, ...] = ()
    #: Whether the callbacks of some worker have saved the user's own artefacts.
    saved: bool = False
    #: Members that are done with the job.
    finished: frozenset[int] = frozenset()
    #: The member that brings the final state, and what it brought.
    writer: int = 0
    result: bytes = b""
    #: From where training goes on when no member is left.
    kept: Kept | None = None
    #: Workers that have left for lack of slots and hold the newest state; the first one is keeping it.
    parking: tuple[int, ...] = ()
    #: Where training was last broken off, and how many times.
    broken_at: int = -1
    breaks: int = 0

    @property
    def members(self) -> tuple[int, ...]:
        return self.crew.active.members

    @property
    def parked(self) -> bool:
        """Whether training waits for slots."""
        return not self.members and not self.crew.slots and self.phase not in (Phase.GATHERING, Phase.ENDED)

    @property
    def recovering(self) -> bool:
        """Whether training waits for new workers because none is left."""
        return not self.members and bool(self.crew.slots) and self.phase not in (Phase.GATHERING, Phase.ENDED)


Outcome = tuple[State, tuple[Action, ...]]


def begin(course: Course, kept: Kept | None = None, committed: int = 0, epoch: int = 0) -> State:
    """The state before anything has happened; the rest when an earlier driver of the job got that far."""
    shards = shard_count(course.step_samples, course.batch)
    crew = Crew(min(course.workers, shards), shards)
    return State(course, crew, kept=kept, committed=committed, epoch=epoch)


def step(state: State, event: Event) -> Outcome:
    """The state after the event, and what to do, in order. Events after the end, and of the dead, are ignored."""
    worker = getattr(event, "worker", None)
    if state.phase is Phase.ENDED or (worker is not None and worker not in state.crew.peers):
        return state, ()
    return _then(_HANDLERS[type(event)](state, event), _arrange)


def _then(outcome: Outcome, *following: Callable[[State], Outcome]) -> Outcome:
    """One decision after the other, as long as the job goes on."""
    state, actions = outcome
    for decide in following:
        if state.phase is Phase.ENDED:
            break
        state, more = decide(state)
        actions += more
    return state, actions


def _crew(state: State, outcome: membership.Outcome) -> Outcome:
    return replace(state, crew=outcome[0]), outcome[1]


# --- workers and generations


def _arrange(state: State) -> Outcome:
    """Bring about what slots and workers allow: processes, generations."""
    plan = asdict(state.plan) if state.plan else None
    outcome = _crew(state, membership.staff(state.crew, plan, trained=state.plan is not None))
    return _then(outcome, _gather, _revive, _propose, _assign)


def _gather(state: State) -> Outcome:
    """The first generation begins when all workers that were started are ready."""
    crew = state.crew
    if state.phase is not Phase.GATHERING:
        return state, ()
    if crew.slots and not crew.usable:
        return _fail(state, "no worker could be started on any slot of the job; the launcher log says why")
    if not crew.at(Stage.READY) or crew.at(Stage.STARTING, Stage.WAITING, Stage.LOADING):
        return state, ()
    return _start(state)


def _start(state: State) -> Outcome:
    course = state.course
    assert state.crew.data is not None
    plan = Plan(state.crew.data.samples, course.batch, course.step_samples, course.epochs, course.seed)
    return replace(state, phase=Phase.TRAINING, plan=plan), (Begin(plan),)


def _revive(state: State) -> Outcome:
    """Without members, those who are ready go on from the state that was kept, or begin."""
    crew = state.crew
    running = state.phase in (Phase.TRAINING, Phase.BOUNDARY, Phase.FINISHING)
    if not running or state.members or crew.entering or state.parking:
        return state, ()
    if crew.slots and not crew.usable:
        return _fail(state, "no worker could be started on any slot of the job; the launcher log says why")
    ready = crew.at(Stage.READY)[: crew.most]
    if not ready:
        return state, ()
    kept, notes = state.kept, ()
    restore = None if kept is None else {"path": kept.path, "version": kept.version}
    if kept is None and state.committed:
        notes = (Note("no snapshot was taken yet: training begins again, and gives the same results"),)
    phase = Phase.TRAINING if state.phase is Phase.FINISHING else state.phase
    if phase is Phase.BOUNDARY:
        # The boundary is come to again, and only the rest of its work is done.
        state = replace(state, todo=(*state.doing.values(), *state.todo), doing={})
    state = replace(state, phase=phase, idle=frozenset(), finished=frozenset())
    outcome = membership.regroup(crew, ready, restore, kept.blob if kept else b"")
    return _crew(state, (outcome[0], (*notes, *outcome[1])))


def _propose(state: State) -> Outcome:
    """A generation with those who should take part, if these are others than those who do."""
    crew = state.crew
    if state.phase not in (Phase.TRAINING, Phase.BOUNDARY) or not crew.settled or not state.members:
        return state, ()
    members = membership.wanted(crew)
    if members == state.members:
        return state, ()
    return _then(_crew(state, membership.propose(crew, members)), _switch)


def _switch(state: State) -> Outcome:
    """When all members of the pending generation are connected: let the old ones agree on a step, or call them."""
    crew = state.crew
    if crew.pending is None or not crew.formed.issuperset(crew.pending.members):
        return state, ()
    if state.phase is Phase.BOUNDARY and not state.doing and state.idle.issuperset(state.members):
        state = replace(state, idle=frozenset(), parking=_parking(state))
        return _then(_crew(state, membership.call(crew)))
    return (state, ()) if crew.confirmed else _crew(state, membership.confirm(crew))


def _parking(state: State) -> tuple[int, ...]:
    """Who has to keep the state when the pending generation has no members."""
    pending = state.crew.pending
    return () if pending is None or pending.members else state.members


def _allocated(state: State, event: Allocated) -> Outcome:
    crew = replace(state.crew, slots=event.slots, failures={})
    state = replace(state, crew=crew)
    # One that is no longer wanted is not waited for.
    if crew.pending is not None and not crew.confirmed and state.phase is not Phase.FINISHING:
        return _crew(state, membership.cancel(crew))
    return state, ()


def _arrived(state: State, event: Arrived) -> Outcome:
    return replace(state, crew=state.crew.put([event.worker], stage=Stage.WAITING)), ()


def _ready(state: State, event: Ready) -> Outcome:
    crew, known = state.crew, state.crew.data or event
    if crew.peers[event.worker].stage is Stage.LEAVING:
        return state, ()
    if (event.samples, event.test_batches) != (known.samples, known.test_batches):
        return _fail(
            state,
            f"the data sets differ between workers: worker {known.worker} has {known.samples} training samples and "
            f"{known.test_batches} test batches, worker {event.worker} has {event.samples} and {event.test_batches}; "
            "datasets_function must return the same data everywhere",
        )
    return replace(state, crew=replace(crew.put([event.worker], stage=Stage.READY), data=known)), ()


def _impatient(state: State, _: Impatient) -> Outcome:
    """Whoever is not ready yet joins later."""
    if state.phase is not Phase.GATHERING or not state.crew.at(Stage.READY):
        return state, ()
    return _start(state)


def _published(state: State, event: Published) -> Outcome:
    crew = state.crew
    candidates = [generation for generation in (crew.pending, crew.active) if generation is not None]
    for generation in candidates:
        if generation.number == event.generation:
            message = {"op": "address", "generation": event.generation, "key": event.key}
            others = [worker for worker in generation.members if worker != event.worker and worker in crew.peers]
            return state, tuple(Send(worker, message, event.value) for worker in others)
    return state, ()


def _formed(state: State, event: Formed) -> Outcome:
    crew = state.crew
    if crew.pending is None or crew.pending.number != event.generation:
        return state, ()
    return _switch(replace(state, crew=replace(crew, formed=crew.formed | {event.worker})))


def _entered(state: State, event: Entered) -> Outcome:
    pending = state.crew.pending
    if pending is not None and pending.number == event.generation:
        state = replace(state, idle=frozenset())
    outcome = membership.enter(state.crew, event.worker, event.generation, event.applied)
    return _then(_crew(state, outcome), _commit, _open)


def _left(state: State, event: Left) -> Outcome:
    """Out of a generation that went on without it, or that has ended for lack of slots."""
    if state.crew.pending is not None and event.worker in state.members:
        state = replace(state, parking=_parking(state), idle=frozenset(), crew=membership.activate(state.crew))
    if event.worker in state.parking:
        return (state, (Send(event.worker, {"op": "keep"}),)) if event.worker == state.parking[0] else (state, ())
    return replace(state, crew=state.crew.put([event.worker], stage=Stage.LEAVING)), (Send(event.worker, {"op": "bye"}),)


def _kept(state: State, event: Kept) -> Outcome:
    if state.kept is None or event.version >= state.kept.version:
        state = replace(state, kept=event)
    if event.worker not in state.parking:
        return state, ()
    away = tuple(Send(worker, {"op": "bye"}) for worker in state.parking)
    return replace(state, parking=()), (*away, Note("parked: the job has no slots; its state is kept"))


def _unbalanced(state: State, event: Unbalanced) -> Outcome:
    crew = state.crew
    if state.phase is not Phase.TRAINING or not crew.settled or len(event.counts) != len(state.members):
        return state, ()
    return _crew(state, membership.propose(crew, state.members, event.counts))


# --- the end of workers


def _broken(state: State, event: Broken) -> Outcome:
    """Whoever is to blame: the members meet again. The dead are told apart by their own events."""
    if event.generation != state.crew.active.number or state.phase is Phase.FINISHING:
        return state, ()
    return _regroup(state, f"worker-{event.worker} lost the connection to a member")


def _lost(state: State, event: Lost) -> Outcome:
    """It takes part no more; its slot is free when its process has ended."""
    crew, worker = state.crew, event.worker
    why = event.why if isinstance(event, Hung) else "is lost"
    if crew.peers[worker].stage is Stage.LEAVING and worker not in state.parking:
        return state, (Kill(worker),)
    return _then(_without(state, worker, why), lambda s: (s, (Kill(worker),)))


def _gone(state: State, event: Gone) -> Outcome:
    worker = event.worker
    state, actions = _without(state, worker, event.how)
    if state.phase is Phase.ENDED:
        return state, actions
    crew, more = membership.bury(state.crew, worker, event.how)
    return replace(state, crew=crew), (*actions, *more)


def _without(state: State, worker: int, how: str) -> Outcome:
    """Go on without a worker, whatever its part was. Harmless when that has been done already."""
    crew = state.crew
    if worker in state.parking:
        rest = tuple(other for other in state.parking if other != worker)
        more = (Send(rest[0], {"op": "keep"}),) if rest and worker == state.parking[0] else ()
        return replace(state, parking=rest), more
    if worker in state.members and crew.peers[worker].stage is Stage.MEMBER:
        crew = crew.put([worker], stage=Stage.LEAVING)
        state = replace(state, crew=replace(crew, deaths=crew.deaths + (state.phase is not Phase.GATHERING)))
        if state.phase is Phase.FINISHING:
            return _unfinished(state, worker, how)
        return _regroup(state, f"worker-{worker} {how}")
    if crew.pending is not None and worker in crew.pending.members:
        state, actions = _crew(state, membership.cancel(crew))
        return _then((state, actions), *([lambda s: _regroup(s, f"worker-{worker} {how}")] if crew.confirmed else []))
    return state, ()


def _regroup(state: State, why: str) -> Outcome:
    """The members that are left meet again; whoever is behind copies from whoever is ahead."""
    breaks = state.breaks + 1 if state.broken_at == state.committed else 1
    state = replace(state, broken_at=state.committed, breaks=breaks)
    if breaks >= BREAKS:
        return _fail(state, f"{why}; training was broken off {breaks} times at step {state.committed} and did not get on")
    crew = state.crew
    alive = tuple(w for w in state.members if w in crew.peers and crew.peers[w].stage is Stage.MEMBER)
    lost = [task for worker, task in state.doing.items() if worker not in alive]
    doing = {worker: task for worker, task in state.doing.items() if worker in alive}
    state = replace(state, todo=(*lost, *state.todo), doing=doing, idle=frozenset())
    note = Note(f"step {state.committed}: {why}" + ("" if alive else "; no worker is left"))
    if crew.pending is not None:
        crew = replace(crew, pending=None, formed=frozenset(), confirmed=False)
    if not alive:
        crew = replace(crew, active=replace(NOBODY, number=crew.active.number), entering=frozenset())
        return replace(state, crew=crew, doing={}, todo=(*doing.values(), *state.todo)), (note,)
    return _then((state, (note,)), lambda s: _crew(s, membership.regroup(crew, alive)))


def _unfinished(state: State, worker: int, how: str) -> Outcome:
    """A member died after the last step: the others have all there is to have."""
    alive = [w for w in state.members if w in state.crew.peers and state.crew.peers[w].stage is Stage.MEMBER]
    note = Note(f"step {state.committed}: worker-{worker} {how} after the last step")
    if not alive:
        crew = replace(state.crew, active=replace(NOBODY, number=state.crew.active.number))
        return replace(state, crew=crew), (note,)
    crew = replace(state.crew, active=replace(state.crew.active, members=tuple(alive)))
    state = replace(state, crew=crew, finished=state.finished - {worker})
    if worker == state.writer:
        state = replace(state, writer=alive[0], finished=state.finished - {alive[0]})
        return state, (note, Send(alive[0], {"op": "state"}))
    return _then((state, (note,)), _conclude)


def _failed(state: State, event: Failed) -> Outcome:
    return _fail(state, f"worker {event.worker}: {event.summary}", event)


def _fail(state: State, reason: str, cause: Failed | None = None) -> Outcome:
    return replace(state, phase=Phase.ENDED), (Fail(reason, cause),)


# --- steps


def _stepped(state: State, event: Stepped) -> Outcome:
    peer = state.crew.peers[event.worker]
    state = replace(state, crew=state.crew.put([event.worker], applied=max(peer.applied, event.step)))
    if event.step >= state.committed:
        of_step = {**state.reports.get(event.step, {}), **{result.number: result for result in event.results}}
        state = replace(state, reports={**state.reports, event.step: of_step})
    return _commit(state)


def _commit(state: State) -> Outcome:
    """Commits every step that all members have applied, in order."""
    if state.plan is None or not state.members or state.crew.entering:
        return state, ()
    actions: list[Action] = []
    reports = dict(state.reports)
    committed, applied = state.committed, min(state.crew.peers[worker].applied for worker in state.members)
    while committed < applied:
        epoch, within = divmod(committed, state.plan.steps_per_epoch)
        results = reports.pop(committed, {})
        shards = range(state.plan.active_shards(within))
        if any(shard not in results for shard in shards):
            return _fail(state, f"step {committed} was applied but not reported; this is a bug of the engine")
        actions.append(Commit(epoch, within, tuple(results[shard] for shard in shards)))
        committed += 1
    return replace(state, committed=committed, reports=reports), tuple(actions)


# --- boundaries


def _at_boundary(state: State, event: AtBoundary) -> Outcome:
    assert state.plan is not None
    peer, steps = state.crew.peers[event.worker], (event.epoch + 1) * state.plan.steps_per_epoch
    saved = state.saved or event.saved
    state = replace(state, saved=saved, crew=state.crew.put([event.worker], applied=max(peer.applied, steps)))
    outcome = _commit(state)
    if event.epoch < state.epoch and event.epoch + 1 < state.course.epochs:
        # It comes from an older state, or had not heard it.
        return _then(outcome, lambda s: (s, (Send(event.worker, _onward(s, event.epoch, None)),)))
    idle = {event.worker} - set(state.doing)
    return _then(outcome, lambda s: (replace(s, idle=s.idle | idle), ()), _open)


def _open(state: State) -> Outcome:
    """The boundary begins when all members are at it."""
    assert state.plan is not None
    if state.phase is not Phase.TRAINING or state.crew.entering or not state.idle.issuperset(state.members):
        return state, ()
    if state.epoch == state.course.epochs:
        return _finish(state, None)
    state = replace(state, phase=Phase.BOUNDARY, todo=_tasks(state), tested=())
    return _switch(state)


def _tasks(state: State) -> tuple[Task, ...]:
    """What is to be done after the state's epoch: saving comes before validation."""
    course, done = state.course, state.epoch + 1
    final = done == course.epochs
    tasks = []
    if final and not state.saved:
        tasks.append(Task({"op": "artifacts", "epoch": state.epoch}, writer=True))
    if final or (course.checkpoint_freq and done % course.checkpoint_freq == 0):
        tasks.append(Task({"op": "save", "epoch": done, "final": final}, writer=True))
    if course.validation_freq and done % course.validation_freq == 0:
        assert state.crew.data is not None
        for part in batches(state.crew.data.test_batches, course.test_chunk):
            tasks.append(Task({"op": "test", "first": part.start, "last": part.stop}))
    return tuple(tasks)


def _task_done(state: State, event: TaskDone) -> Outcome:
    if event.worker not in state.doing:
        return state, ()
    doing = {worker: task for worker, task in state.doing.items() if worker != event.worker}
    state = replace(
        state, doing=doing, idle=state.idle | {event.worker}, tested=state.tested + event.results
    )
    return _switch(state)


def _assign(state: State) -> Outcome:
    """Gives work to the idle; when none is left and all are idle, ends the boundary."""
    if state.phase is not Phase.BOUNDARY or state.crew.entering or not state.members or _about_to_switch(state):
        return state, ()
    actions: list[Action] = []
    todo, doing, idle = list(state.todo), dict(state.doing), set(state.idle)
    for worker in sorted(state.idle & set(state.members)):
        writes = worker == min(state.members)
        task = next((task for task in todo if writes or not task.writer), None)
        if task is not None:
            todo.remove(task)
            doing[worker] = task
            idle.remove(worker)
            actions.append(Send(worker, {**task.message, "boundary": state.epoch}))
    state = replace(state, todo=tuple(todo), doing=doing, idle=frozenset(idle))
    if todo or doing or not state.idle.issuperset(state.members):
        return state, tuple(actions)
    return _leave_boundary(state)


def _about_to_switch(state: State) -> bool:
    """The pending generation stands: no new work until everybody has entered it."""
    pending = state.crew.pending
    return pending is not None and state.crew.formed.issuperset(pending.members)


def _leave_boundary(state: State) -> Outcome:
    tested = tuple(sorted(state.tested, key=lambda result: result.number))
    validated = (Validated(state.epoch, tested),) if tested else ()
    epoch = state.epoch
    state = replace(state, phase=Phase.TRAINING, epoch=epoch + 1, tested=())
    if state.epoch == state.course.epochs:
        return _then((state, validated), lambda s: _finish(s, accuracy(tested)))
    message = _onward(state, epoch, accuracy(tested))
    state = replace(state, idle=frozenset())
    return state, (*validated, *(Send(worker, message) for worker in state.members))


def _finish(state: State, last: float | None) -> Outcome:
    """All that was to be done is done; members stay as they are until the final state is here."""
    outcome: Outcome = (state, ())
    if state.crew.pending is not None:
        outcome = _crew(state, membership.cancel(state.crew))
    state = replace(outcome[0], phase=Phase.FINISHING, writer=min(state.members), idle=frozenset(), finished=frozenset())
    message = _onward(state, state.course.epochs - 1, last)
    return state, (*outcome[1], *(Send(worker, message) for worker in state.members))


def _onward(state: State, epoch: int, accuracy: float | None) -> dict[str, Any]:
    """What a worker does after the boundary of an epoch."""
    op = "finish" if epoch + 1 == state.course.epochs else "go"
    return {"op": op, "epoch": epoch, "accuracy": accuracy, "writer": state.writer}


# --- the end


def _finished(state: State, event: Finished) -> Outcome:
    if state.phase is not Phase.FINISHING:
        return state, ()
    result = event.state if event.worker == state.writer else state.result
    return _conclude(replace(state, finished=state.finished | {event.worker}, result=result))


def _conclude(state: State) -> Outcome:
    """The end, when all members are done and the final state is here."""
    if not state.finished.issuperset(state.members) or state.writer not in state.finished:
        return state, ()
    away = tuple(Send(worker, {"op": "bye"}) for worker in sorted(state.crew.peers))
    return replace(state, phase=Phase.ENDED), (*away, End(state.result))


_HANDLERS: dict[type, Callable[[State, Any], Outcome]] = {
    Allocated: _allocated,
    Arrived: _arrived,
    Ready: _ready,
    Impatient: _impatient,
    Published: _published,
    Formed: _formed,
    Entered: _entered,
    Stepped: _stepped,
    AtBoundary: _at_boundary,
    TaskDone: _task_done,
    Kept: _kept,
    Left: _left,
    Finished: _finished,
    Failed: _failed,
    Broken: _broken,
    Lost: _lost,
    Hung: _lost,
    Gone: _gone,
    Unbalanced: _unbalanced,
}
