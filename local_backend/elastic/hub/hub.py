"""The decisions of a job's hub: `step(state, event)` returns the next state and the actions.

Pure functions: no clock, no socket, no torch. `hub_server` turns messages of workers into events, and `driver` carries
out the actions. First a handler (`_HANDLERS`) records an event in the state. Then the rules (`_RULES`) look at the
whole state, in their order, and do what the state allows.

The phases of a training are GATHERING (the first workers load their data) → TRAINING ⇄ BOUNDARY (after each epoch:
save, validate) → FINISHING (the hub waits for the final state) → ENDED. In all phases but the first and the last,
workers join, leave and die. Without members, the job is parked (no slots) or recovering (no worker is left). Training
then continues from the newest kept state.

A step is *committed* when every member has applied it. Only committed steps are logged, validated or saved. A committed
step stays committed: steps that are trained again after a recovery are not logged twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from local_backend.elastic.hub import boundary, deaths, membership
from local_backend.elastic.hub.events import (
    Action,
    Allocated,
    Applied,
    Arrived,
    AtBoundary,
    Begin,
    Broken,
    Commit,
    Entered,
    Event,
    Failed,
    Finished,
    Formed,
    Gone,
    Hung,
    Impatient,
    Kept,
    Left,
    Lost,
    NotKept,
    Published,
    Ready,
    Send,
    Stepped,
    TaskDone,
    Unbalanced,
)
from local_backend.elastic.hub.membership import Crew, Stage
from local_backend.elastic.hub.state import Course, HubState, Outcome, Phase, Task, fail, requeue, then, with_crew
from local_backend.elastic.hub.watching import Totals, Values
from local_backend.elastic.plan import StepPlan, shard_count


def stepped(state: HubState, event: Stepped) -> Outcome:
    """Record the results of some shards. Results of a worker that was removed meanwhile are valid, too."""
    peer = state.crew.peers[event.worker]
    state = replace(state, crew=state.crew.put([event.worker], applied=max(peer.applied, event.step)))
    if event.step >= state.committed:
        of_step = {**state.reports.get(event.step, {}), **{result.number: result for result in event.results}}
        state = replace(state, reports={**state.reports, event.step: of_step})
    return state, ()


def applied(state: HubState, event: Applied) -> Outcome:
    """Record how many steps a worker has applied.

    So after the death of a worker, a step is committed before the next one is computed.
    """
    peer = state.crew.peers[event.worker]
    return replace(state, crew=state.crew.put([event.worker], applied=max(peer.applied, event.steps))), ()


def commit(state: HubState) -> Outcome:
    """Commit every step that all members have applied, in order."""
    crew = state.crew
    if state.plan is None or not state.members or crew.entering:
        return state, ()
    applied = min(crew.peers[worker].applied for worker in state.members)
    if applied <= state.committed:
        return state, ()
    actions: list[Action] = []
    reports, committed, totals = dict(state.reports), state.committed, state.totals
    while committed < applied:
        epoch, within = divmod(committed, state.plan.steps_per_epoch)
        results, shards = reports.get(committed, {}), range(state.plan.active_shards(within))
        if any(shard not in results for shard in shards):
            if crew.at(Stage.LEAVING):
                break  # a removed worker's results are still on their way: it sent them before others could apply
            return fail(state, f"step {committed} was applied but not reported; this is a bug in the engine")
        reports.pop(committed)
        in_order = tuple(results[shard] for shard in shards)
        totals = (totals if within else Totals()).add(in_order)
        actions.append(Commit(epoch, within, in_order))
        committed += 1
    return replace(state, committed=committed, reports=reports, totals=totals), tuple(actions)


__all__ = ["Course", "HubState", "Outcome", "Phase", "Task", "begin", "step"]


def begin(
    course: Course,
    kept: Kept | None = None,
    committed: int = 0,
    epoch: int = 0,
    next_worker: int = 1,
    *,
    values: Mapping[int, Values] | None = None,
    totals: Totals = Totals(),
) -> HubState:
    """Return the first state of a job. The optional arguments hold the progress of an earlier driver of the job.

    `values` are the values of the epochs that are over. `totals` are the totals of the committed steps of the present
    epoch. A `kept` state that is ahead of `committed` is of no use: the results of the steps in between were lost with
    that driver.
    """
    if kept is not None and kept.position.steps > committed:
        kept = None
    shards = shard_count(course.step_samples, course.batch)
    crew = Crew(course.most(epoch), shards, spawned=next_worker - 1)
    return HubState(course, crew, kept=kept, committed=committed, epoch=epoch, values=values or {}, totals=totals)


def step(state: HubState, event: Event) -> Outcome:
    """Return the state after the event, and the actions in order. Events after the end, and events of workers whose
    process has ended, are ignored."""
    worker = getattr(event, "worker", None)
    if state.phase is Phase.ENDED or (worker is not None and worker not in state.crew.peers):
        return state, ()
    outcome = _HANDLERS[type(event)](state, event)
    # Most events are steps. While no member is at a boundary, steps lead only to commits: skip the other rules.
    return then(outcome, commit if isinstance(event, (Stepped, Applied)) and not state.idle else arrange)


def arrange(state: HubState) -> Outcome:
    """Apply all rules to the state, without an event."""
    arranged = then((state, ()), *_RULES)
    # A new epoch may have its own maximum number of workers.
    return arranged if arranged[0].epoch == state.epoch else then(arranged, *_RULES)


# --- rules


def _staff(state: HubState) -> Outcome:
    """Start workers on free slots, stop workers that lost their slot before they became members, and let connected
    workers load. In FINISHING, change nothing while there are members."""
    if state.phase is Phase.FINISHING and state.members:
        return state, ()
    crew = replace(state.crew, most=state.course.most(state.epoch))
    epoch = min(state.epoch, state.course.epochs - 1)
    return with_crew(state, membership.staff(crew, asdict(state.plan) if state.plan else None, epoch))


def _gather(state: HubState) -> Outcome:
    """Begin training when all workers that were started are ready."""
    crew = state.crew
    if state.phase is not Phase.GATHERING:
        return state, ()
    if crew.slots and not crew.usable:
        return fail(state, membership.unusable(crew))
    if not crew.at(Stage.READY) or crew.at(Stage.STARTING, Stage.WAITING, Stage.LOADING):
        return state, ()
    return _start(state)


def _start(state: HubState) -> Outcome:
    course = state.course
    assert state.crew.data is not None
    plan = StepPlan(
        state.crew.data.samples, course.batch, course.step_samples, course.epochs, course.seed,
        multiple=course.multiple, phases=course.phases,
    )
    done = course.start * plan.steps_per_epoch
    if course.start_samples not in (None, plan.samples) or course.start_steps not in (None, done):
        return fail(
            state,
            f"the checkpoint of resume_from was made with {course.start_samples} training samples and "
            f"{(course.start_steps or 0) // max(1, course.start)} steps per epoch, but this training has "
            f"{plan.samples} and {plan.steps_per_epoch}: use the same data, sampler and drop_last as before",
        )
    unvalidated = None if state.validates else course.watch.unvalidated()
    if unvalidated:
        return fail(state, unvalidated)
    state = replace(state, committed=max(state.committed, done), epoch=max(state.epoch, course.start))
    return replace(state, phase=Phase.TRAINING, plan=plan), (Begin(plan),)


def _propose(state: HubState) -> Outcome:
    """Propose a generation with the target members, unless they are the present members."""
    crew = state.crew
    if state.phase not in (Phase.TRAINING, Phase.BOUNDARY) or not crew.settled or not state.members:
        return state, ()
    members = membership.wanted(crew)
    return (state, ()) if members == state.members else with_crew(state, membership.propose(crew, members))


def _switch(state: HubState) -> Outcome:
    """Switch to the pending generation when its members are connected. At a boundary, call all members once they have
    no task; otherwise let the old members agree on a step."""
    crew = state.crew
    if crew.pending is None or not crew.formed.issuperset(crew.pending.members):
        return state, ()
    if state.phase is Phase.BOUNDARY and (state.idle or state.doing):
        if not state.gathered:
            return state, ()
        crew, actions = membership.call(crew)
        return deaths.depart(state, crew), actions
    return (state, ()) if crew.confirmed else with_crew(state, membership.confirm(crew))


_RULES: tuple[Callable[[HubState], Outcome], ...] = (
    boundary.conclude,
    boundary.report_rest,
    _staff,
    _gather,
    deaths.revive,
    deaths.release,
    commit,
    boundary.open_boundary,
    _propose,
    _switch,
    boundary.assign,
)


# --- handlers of events from workers and the scheduler


def _allocated(state: HubState, event: Allocated) -> Outcome:
    state = boundary.allot(state, event.slots, event.rest)
    crew = replace(state.crew, failures={})
    state = replace(state, crew=crew)
    # Do not wait for a pending generation that may no longer be wanted.
    if crew.pending is not None and not crew.confirmed:
        return with_crew(state, membership.cancel(state.crew))
    return state, ()


def _arrived(state: HubState, event: Arrived) -> Outcome:
    if state.crew.peers[event.worker].stage is not Stage.STARTING:
        return state, ()
    return replace(state, crew=state.crew.put([event.worker], stage=Stage.WAITING)), ()


def _ready(state: HubState, event: Ready) -> Outcome:
    crew, known = state.crew, state.crew.data or event
    if crew.peers[event.worker].stage is not Stage.LOADING:
        return state, ()
    if (event.samples, event.test_batches) != (known.samples, known.test_batches):
        return fail(
            state,
            f"the data sets differ between workers: worker {known.worker} has {known.samples} training samples and "
            f"{known.test_batches} test batches, worker {event.worker} has {event.samples} and {event.test_batches}; "
            "datasets_function must return the same data in every worker",
        )
    different = boundary.difference(known.data, event.data, (known.worker, event.worker))
    if different is not None:
        return fail(state, different)
    return replace(state, crew=replace(crew.put([event.worker], stage=Stage.READY), data=known)), ()


def _impatient(state: HubState, _: Impatient) -> Outcome:
    """Begin training with the workers that are ready. The other workers join later."""
    if state.phase is not Phase.GATHERING or not state.crew.at(Stage.READY):
        return state, ()
    return _start(state)


def _published(state: HubState, event: Published) -> Outcome:
    crew = state.crew
    for generation in filter(None, (crew.pending, crew.active)):
        if generation.number == event.generation and event.worker in generation.members:
            message = {"op": "address", "generation": event.generation, "key": event.key}
            others = [worker for worker in generation.members if worker != event.worker and worker in crew.peers]
            return state, tuple(Send(worker, message, event.value) for worker in others)
    return state, ()


def _formed(state: HubState, event: Formed) -> Outcome:
    crew = state.crew
    if crew.pending is None or crew.pending.number != event.generation:
        return state, ()
    return replace(state, crew=replace(crew, formed=crew.formed | {event.worker})), ()


def _entered(state: HubState, event: Entered) -> Outcome:
    crew, actions = membership.enter(state.crew, event.worker, event.generation, event.applied)
    if crew.active.number != state.crew.active.number:
        state = deaths.depart(state, crew)
    if event.worker in state.crew.entering and event.worker not in crew.entering:
        # The worker will not finish a task that it had before it entered the generation.
        state = requeue(state, [event.worker])
    return replace(state, crew=crew, meeting=state.meeting and bool(crew.entering)), actions


def _unbalanced(state: HubState, event: Unbalanced) -> Outcome:
    crew = state.crew
    fits = len(event.counts) == len(state.members) and sum(event.counts) == crew.shards
    if state.phase is not Phase.TRAINING or not crew.settled or not fits or event.counts == crew.active.counts:
        return state, ()
    return with_crew(state, membership.propose(crew, state.members, event.counts))


_HANDLERS: dict[type, Callable[[HubState, Any], Outcome]] = {
    Allocated: _allocated,
    Arrived: _arrived,
    Ready: _ready,
    Impatient: _impatient,
    Published: _published,
    Formed: _formed,
    Entered: _entered,
    Stepped: stepped,
    Applied: applied,
    AtBoundary: boundary.at_boundary,
    TaskDone: boundary.task_done,
    Kept: deaths.kept,
    NotKept: deaths.not_kept,
    Left: deaths.left,
    Finished: boundary.finished,
    Failed: deaths.failed,
    Broken: deaths.broken,
    Lost: deaths.lost,
    Hung: deaths.lost,
    Gone: deaths.gone,
    Unbalanced: _unbalanced,
}
