"""Decisions of the hub between epochs and at the end of training: files, validation, the final state.

The work at a boundary is a list of tasks. The hub gives one task at a time to each idle member. If a worker dies, the
hub gives its task to another member. No task needs a second worker, so a death costs only the dead worker's task.

1. Members save files and validate.
2. The hub sends the values of the epoch to all members (`values`). Members do the work that depends on these values,
   and report the boundary again with `told`.
3. The hub decides whether training ends here. Members then save the files that follow from this decision, and the
   training state beside each checkpoint.

The hub also compares the data of workers. A worker describes its data by names ("training sample 17") and digests. It
does not compare names that
only one of two workers has sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from local_backend.elastic.hub import membership
from local_backend.elastic.hub.events import (
    Action,
    AtBoundary,
    Closed,
    End,
    Finished,
    Kill,
    Note,
    Rested,
    Send,
    Stopped,
    TaskDone,
    Validated,
)
from local_backend.elastic.hub.membership import Stage
from local_backend.elastic.hub.state import HubState, Outcome, Phase, Task, fail, then
from local_backend.elastic.hub.watching import monitored, validation_values
from local_backend.elastic.plan import batches
from local_backend.elastic.position import EpochStage, Position

#: Name → digest.
Description = Mapping[str, str]

#: First word of a name → likely cause.
_CAUSES = {
    "order": (
        "the indices of a sampler must depend only on the epoch and on the global random generators, which the engine "
        "seeds"
    ),
    "length": "datasets_function must return the same data in every worker",
}
_AT_START = (
    "datasets_function must return the same data in every worker: sort names from os.listdir, glob or a set, and draw "
    "random numbers only from generators that the script or the engine seeds"
)
_IN_EPOCH = (
    "a sample must depend only on its index and on seeded random numbers, not on the process, the time or earlier "
    "samples"
)


def difference(
    known: Description, described: Description, workers: tuple[int, int], epoch: int | None = None
) -> str | None:
    """Return the sentence that names the first difference between the data of two workers, None if there is none.

    `workers`: the numbers of the workers that sent `known` and `described`. `epoch`: the epoch that both workers have
    finished, None before training.
    """
    name = next((name for name in known if name in described and known[name] != described[name]), None)
    if name is None:
        return None
    when = "" if epoch is None else f" after epoch {epoch}"
    cause = _CAUSES.get(name.split()[0]) or (_AT_START if epoch is None else _IN_EPOCH)
    first, second = workers
    return (
        f"the data sets differ between workers{when}: {name} differs between worker {first} and worker {second}; "
        f"{cause}"
    )


def at_boundary(state: HubState, event: AtBoundary) -> Outcome:
    """Handle a worker that waits for orders. A worker that is entering a generation reports again after entering."""
    crew, worker = state.crew, event.worker
    state = replace(state, saved=state.saved or event.saved)
    if state.plan is None or worker not in state.members or worker in crew.entering:
        return state, ()
    steps = (event.epoch + 1) * state.plan.steps_per_epoch
    state = replace(state, crew=crew.put([worker], applied=max(crew.peers[worker].applied, steps)))
    state, learned = _learn(state, event)
    if not event.told and event.epoch in state.values:
        # The worker comes from an older state, or the order was lost with the generation.
        return state, (*learned, Send(worker, _values(state, event.epoch)))
    if event.epoch < state.epoch and event.epoch + 1 < state.epochs:
        return state, (*learned, Send(worker, _onward(state, event.epoch)))
    if event.epoch == state.epoch:
        for other, description in state.described.items():
            different = difference(description, event.data, (other, worker), event.epoch)
            if different is not None:
                return fail(state, different)
        state = replace(state, described={**state.described, worker: event.data})
    stop = state.stop or (event.stop and event.epoch == state.epoch)
    return replace(state, idle=state.idle | {worker}, stop=stop), learned


def _learn(state: HubState, event: AtBoundary) -> Outcome:
    """Learn the epoch and its values from a worker, in case an earlier driver died before it recorded them."""
    known = event.epoch if event.told else event.epoch - 1
    learned: tuple[Action, ...] = ()
    if known >= 0 and known not in state.values and event.values:
        state, learned = replace(state, values={**state.values, known: event.values}), (Closed(known, event.values),)
    ahead = event.epoch > state.epoch and state.phase is Phase.TRAINING
    return (replace(state, epoch=event.epoch) if ahead else state), learned


def task_done(state: HubState, event: TaskDone) -> Outcome:
    """Record a finished task. The worker is idle then, if it is a member and is not entering a generation."""
    worker = event.worker
    if worker not in state.doing:
        return state, ()
    doing = {other: task for other, task in state.doing.items() if other != worker}
    idle = {worker} & set(state.members) - state.crew.entering
    writes = state.doing[worker].message["op"] in ("save", "state")
    notes: tuple[Action, ...] = ()
    if event.trouble and not state.unsaved:
        notes = (Note(f"step {state.committed}: {event.trouble}; training continues and tries again after each epoch"),)
    state = replace(
        state, doing=doing, idle=state.idle | idle, tested=state.tested + event.results,
        unsaved=event.trouble or state.unsaved, missed=state.missed or bool(event.trouble),
        wrote=state.wrote or (writes and not event.trouble),
    )
    return state, notes


def open_boundary(state: HubState) -> Outcome:
    """Begin the boundary when all members have reported it and the last step of the epoch is committed."""
    if state.phase is not Phase.TRAINING or not state.gathered or state.plan is None:
        return state, ()
    done = min(state.epoch + 1, state.epochs)
    if state.committed < done * state.plan.steps_per_epoch:
        return state, ()
    if state.epoch == state.epochs:
        return _finish(state)
    # An earlier driver may already have recorded the values of this epoch.
    todo = () if state.epoch in state.values else _tasks(state)
    return replace(state, phase=Phase.BOUNDARY, todo=todo, tested=(), closing=False), ()


def _tasks(state: HubState) -> tuple[Task, ...]:
    """Return the tasks after the state's epoch that come before its values are known: first saving, then validation."""
    course, done = state.course, state.epoch + 1
    final = done == course.epochs
    tasks = []
    if final or _has_checkpoint(state):
        tasks.append(_save(state, "final" if final else str(done)))
    if course.validation_freq and done % course.validation_freq == 0:
        assert state.crew.data is not None
        for part in batches(state.crew.data.test_batches, course.test_chunk):
            tasks.append(Task({"op": "test", "first": part.start, "last": part.stop}))
    return tuple(tasks)


def _has_checkpoint(state: HubState) -> bool:
    """Return whether `checkpoint_freq` asks for a checkpoint after the state's epoch, or the last one is missing."""
    every = state.course.checkpoint_freq
    return every > 0 and (bool(state.unsaved) or (state.epoch + 1) % every == 0)


def _save(state: HubState, name: str) -> Task:
    return Task({"op": "save", "epoch": state.epoch + 1, "name": name}, writer=True)


def assign(state: HubState) -> Outcome:
    """Give tasks to idle members. When no task is left and all members are idle, go to the next stage."""
    pending = state.crew.pending
    if state.phase is not Phase.BOUNDARY or state.crew.entering or not state.members:
        return state, ()
    if pending is not None and state.crew.formed.issuperset(pending.members):
        # All members of the pending generation are connected: give no new task until they have entered it.
        return state, ()
    state, actions = _hand_out(state)
    if state.todo or state.doing or not state.gathered:
        return state, actions
    following = _tell if state.epoch not in state.values else _leave if state.closing else _close
    return then((state, actions), following)


def _hand_out(state: HubState) -> Outcome:
    actions: list[Action] = []
    todo, doing, idle = list(state.todo), dict(state.doing), set(state.idle)
    for worker in sorted(state.idle):
        writes = worker == min(state.members)
        task = next((task for task in todo if writes or not task.writer), None)
        if task is not None:
            todo.remove(task)
            doing[worker] = task
            idle.remove(worker)
            actions.append(Send(worker, {**task.message, "boundary": state.epoch}))
    return replace(state, todo=tuple(todo), doing=doing, idle=frozenset(idle)), tuple(actions)


def _tell(state: HubState) -> Outcome:
    """Send the values of the epoch to all members, after validation."""
    epoch, tested = state.epoch, tuple(sorted(state.tested, key=lambda result: result.number))
    values = {**state.totals.values(), **validation_values(tested)}
    actions: tuple[Action, ...] = (Validated(epoch, tested),) if tested else ()
    unknown = state.course.watch.unknown(values, bool(tested), state.validates)
    if unknown:
        state, failing = fail(state, unknown)
        return state, actions + failing
    state = replace(state, tested=(), idle=frozenset(), values={**state.values, epoch: values})
    telling = tuple(Send(worker, _values(state, epoch)) for worker in state.members)
    return state, (*actions, Closed(epoch, values), *telling)


def _close(state: HubState) -> Outcome:
    """Decide whether training ends here and which tasks are left, after all members have processed the values."""
    epoch, watch, course = state.epoch, state.course.watch, state.course
    epochs = [state.values[number] for number in sorted(state.values) if number <= epoch]
    why = "a callback has set model.stop_training" if state.stop else watch.stops(epochs, state.validates)
    early = why is not None and epoch + 1 < course.epochs
    final = early or epoch + 1 == course.epochs
    best = watch.is_best(epochs, state.validates)
    names = [name for name, saved in (("final", early), ("best", best)) if saved]
    tasks = [_save(state, name) for name in names]
    if epoch + 1 == course.epochs:
        names.append("final")
    elif _has_checkpoint(state):
        names.append(str(epoch + 1))
    if names and not state.missed:
        tasks.append(Task({"op": "state", "epoch": epoch + 1, "names": names}, writer=True))
    if final and not state.saved:
        tasks.append(Task({"op": "artifacts", "epoch": epoch}, writer=True))
    state = replace(state, closing=True, todo=tuple(tasks), ends=epoch + 1 if early else state.ends)
    stopped: tuple[Action, ...] = (Stopped(epoch, str(why)),) if early else ()
    return then((state, stopped), assign)


def _leave(state: HubState) -> Outcome:
    """End the boundary. Begin the next epoch, finish the training, or rest."""
    epoch = state.epoch
    if state.rests_here:
        return _rest(state)
    notes: tuple[Action, ...] = ()
    if state.unsaved and state.wrote and not state.missed:
        state, notes = replace(state, unsaved=""), (Note(f"step {state.committed}: checkpoints are written again"),)
    state = replace(
        state, phase=Phase.TRAINING, epoch=epoch + 1, closing=False, stop=False, described={}, wrote=False,
        missed=False,
    )
    if state.epoch == state.epochs:
        return then((state, notes), _finish)
    state = replace(state, idle=frozenset())
    return state, (*notes, *(Send(worker, _onward(state, epoch)) for worker in state.members))


def _rest(state: HubState) -> Outcome:
    """Let the members wait at the boundary, and report it once. Then the job gets another epoch for its rest, and
    trains on, or it loses its slots, and is parked where it is."""
    if state.resting:
        return state, ()
    return replace(state, resting=True), (Rested(state.epoch + 1, stored=False),)


def allot(state: HubState, slots: tuple[str, ...], rest: int | None) -> HubState:
    """Return the state with other slots of the job, and another epoch after which it rests."""
    state = replace(state, rest=rest)
    resting = state.resting and state.rests_here
    rested = state.rested and resting
    return replace(state, crew=replace(state.crew, slots=() if rested else slots), resting=resting, rested=rested)


def report_rest(state: HubState) -> Outcome:
    """Report once that a resting job needs no worker, when the last one has kept the state. If all workers died before
    that, continue from an older state to the same boundary."""
    if not state.resting or state.rested or state.members or state.parking:
        return state, ()
    assert state.plan is not None
    here = Position((state.epoch + 1) * state.plan.steps_per_epoch, EpochStage.TOLD)
    kept = state.kept
    if kept is None or kept.position != here:
        return replace(state, resting=False), ()
    state = replace(state, crew=replace(state.crew, slots=()), rested=True)
    return state, (Rested(state.epoch + 1, bool(kept.path)),)


def _values(state: HubState, epoch: int) -> dict[str, Any]:
    """Return the message that tells members the values of an epoch."""
    plateau = state.course.watch.plateau
    monitor = "" if plateau is None else monitored(plateau, state.validates)
    return {"op": "values", "epoch": epoch, "values": dict(state.values[epoch]), "monitor": monitor}


def _onward(state: HubState, epoch: int) -> dict[str, Any]:
    """Return the order that a worker gets after the boundary of an epoch: `go` or `finish`."""
    op = "finish" if epoch + 1 == state.epochs else "go"
    return {"op": op, "epoch": epoch, "writer": state.writer}


# --- the end


def _finish(state: HubState) -> Outcome:
    """Finish the training after all tasks. Membership does not change until the final state has arrived."""
    crew = state.crew
    actions: tuple[Action, ...] = ()
    if crew.pending is not None and not crew.confirmed:
        crew, actions = membership.cancel(crew)
    # Newcomers that were already called wait in the pending generation until the hub sends `bye`.
    crew = replace(crew, pending=None, formed=frozenset(), confirmed=False)
    state = replace(
        state, crew=crew, phase=Phase.FINISHING, writer=min(state.members), heir=False, idle=frozenset(),
        finished=frozenset(),
    )
    message = _onward(state, state.epochs - 1)
    return state, (*actions, *(Send(worker, message) for worker in state.members))


def finished(state: HubState, event: Finished) -> Outcome:
    """Record that a member has finished the job."""
    worker = event.worker
    if state.phase is not Phase.FINISHING or worker not in state.members:
        return state, ()
    # A member that replaces a dead writer (`heir`) reports twice: like all members, and then with the state.
    brings = worker == state.writer and (worker in state.finished or not state.heir)
    result = event.state if brings else state.result
    return replace(state, finished=state.finished | {worker}, result=result), ()


def unfinished(state: HubState) -> Outcome:
    """Go on without a member that died after the last step. Each other member has the final state."""
    alive = state.alive
    crew = replace(state.crew, active=replace(state.crew.active, members=alive))
    state = replace(state, crew=crew)
    if not alive or state.writer in alive:
        return state, ()
    return replace(state, writer=alive[0], heir=True), (Send(alive[0], {"op": "state"}),)


def conclude(state: HubState) -> Outcome:
    """End the job when all members have finished and the final state has arrived."""
    if state.phase is not Phase.FINISHING or state.result is None or not state.finished.issuperset(state.members):
        return state, ()
    peers = state.crew.peers
    away = [Kill(w) if peers[w].stage is Stage.STARTING else Send(w, {"op": "bye"}) for w in sorted(peers)]
    return replace(state, phase=Phase.ENDED), (*away, End(state.result))
