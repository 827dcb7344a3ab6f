"""What the hub has done between epochs, and at the end: files, validation, the final state.

The work of a boundary is a list of tasks, handed out one at a time to idle members. Tasks of the dead are handed out
again; none needs another worker, so a death costs no more than its task. Files and validation come first. Then all
members are told the values of the epoch (`values`), do what depends on them, and come to the boundary again as `told`.
Then it is decided whether training ends here; what is to be saved for that reason follows, and the training state
beside each checkpoint.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from local_backend.elastic import likeness, membership
from local_backend.elastic.events import (
    Action,
    AtBoundary,
    Closed,
    End,
    Finished,
    Kill,
    Send,
    Stopped,
    TaskDone,
    Validated,
)
from local_backend.elastic.hub_state import Outcome, Phase, State, Task, fail, then
from local_backend.elastic.membership import Stage
from local_backend.elastic.plan import batches
from local_backend.elastic.watching import monitored, validation_values


def at_boundary(state: State, event: AtBoundary) -> Outcome:
    """A worker waits for orders. One that enters a generation meanwhile says so again when it is in it."""
    crew, worker = state.crew, event.worker
    state = replace(state, saved=state.saved or event.saved)
    if state.plan is None or worker not in state.members or worker in crew.entering:
        return state, ()
    steps = (event.epoch + 1) * state.plan.steps_per_epoch
    state = replace(state, crew=crew.put([worker], applied=max(crew.peers[worker].applied, steps)))
    state = _learn(state, event)
    if not event.told and event.epoch in state.values:
        # It comes from an older state, or its order was lost with its generation.
        return state, (Send(worker, _values(state, event.epoch)),)
    if event.epoch < state.epoch and event.epoch + 1 < state.epochs:
        return state, (Send(worker, _onward(state, event.epoch)),)
    if event.epoch == state.epoch:
        for other, description in state.described.items():
            different = likeness.difference(description, event.data, (other, worker), event.epoch)
            if different is not None:
                return fail(state, different)
        state = replace(state, described={**state.described, worker: event.data})
    stop = state.stop or (event.stop and event.epoch == state.epoch)
    return replace(state, idle=state.idle | {worker}, stop=stop), ()


def _learn(state: State, event: AtBoundary) -> State:
    """What a worker's state holds of epochs that an earlier driver did not write down before it died."""
    known = event.epoch if event.told else event.epoch - 1
    if known >= 0 and known not in state.values and event.values:
        state = replace(state, values={**state.values, known: event.values})
    ahead = event.epoch > state.epoch and state.phase is Phase.TRAINING
    return replace(state, epoch=event.epoch) if ahead else state


def task_done(state: State, event: TaskDone) -> Outcome:
    """A task is done, and maybe the worker waits for another one."""
    worker = event.worker
    if worker not in state.doing:
        return state, ()
    doing = {other: task for other, task in state.doing.items() if other != worker}
    idle = {worker} & set(state.members) - state.crew.entering
    return replace(state, doing=doing, idle=state.idle | idle, tested=state.tested + event.results), ()


def open_boundary(state: State) -> Outcome:
    """The boundary begins when all members are at it and the epoch's last step is committed."""
    if state.phase is not Phase.TRAINING or not state.gathered or state.plan is None:
        return state, ()
    done = min(state.epoch + 1, state.epochs)
    if state.committed < done * state.plan.steps_per_epoch:
        return state, ()
    if state.epoch == state.epochs:
        return _finish(state)
    # An earlier driver may have got as far as the values.
    todo = () if state.epoch in state.values else _tasks(state)
    return replace(state, phase=Phase.BOUNDARY, todo=todo, tested=(), closing=False), ()


def _tasks(state: State) -> tuple[Task, ...]:
    """What is to be done after the state's epoch before its values are known: saving comes before validation."""
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


def _has_checkpoint(state: State) -> bool:
    """Whether the epochs after which files are saved include the state's epoch."""
    every = state.course.checkpoint_freq
    return every > 0 and (state.epoch + 1) % every == 0


def _save(state: State, name: str) -> Task:
    return Task({"op": "save", "epoch": state.epoch + 1, "name": name}, writer=True)


def assign(state: State) -> Outcome:
    """Gives work to the idle; when none is left and all are idle, takes the boundary on."""
    pending = state.crew.pending
    if state.phase is not Phase.BOUNDARY or state.crew.entering or not state.members:
        return state, ()
    if pending is not None and state.crew.formed.issuperset(pending.members):
        # It stands: no new work until everybody is in it.
        return state, ()
    state, actions = _hand_out(state)
    if state.todo or state.doing or not state.gathered:
        return state, actions
    following = _tell if state.epoch not in state.values else _leave if state.closing else _close
    return then((state, actions), following)


def _hand_out(state: State) -> Outcome:
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


def _tell(state: State) -> Outcome:
    """Validation is over: all members are told the values of the epoch."""
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


def _close(state: State) -> Outcome:
    """All members have done what depends on the values: what is left to do, and whether training ends here."""
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
    if names:
        tasks.append(Task({"op": "state", "epoch": epoch + 1, "names": names}, writer=True))
    if final and not state.saved:
        tasks.append(Task({"op": "artifacts", "epoch": epoch}, writer=True))
    state = replace(state, closing=True, todo=tuple(tasks), ends=epoch + 1 if early else state.ends)
    stopped: tuple[Action, ...] = (Stopped(epoch, str(why)),) if early else ()
    return then((state, stopped), assign)


def _leave(state: State) -> Outcome:
    """The boundary is over: on with the next epoch, or to the end."""
    epoch = state.epoch
    state = replace(state, phase=Phase.TRAINING, epoch=epoch + 1, closing=False, stop=False, described={})
    if state.epoch == state.epochs:
        return _finish(state)
    state = replace(state, idle=frozenset())
    return state, tuple(Send(worker, _onward(state, epoch)) for worker in state.members)


def _values(state: State, epoch: int) -> dict[str, Any]:
    """What members are told of an epoch."""
    plateau = state.course.watch.plateau
    monitor = "" if plateau is None else monitored(plateau, state.validates)
    return {"op": "values", "epoch": epoch, "values": dict(state.values[epoch]), "monitor": monitor}


def _onward(state: State, epoch: int) -> dict[str, Any]:
    """What a worker does after the boundary of an epoch."""
    op = "finish" if epoch + 1 == state.epochs else "go"
    return {"op": op, "epoch": epoch, "writer": state.writer}


# --- the end


def _finish(state: State) -> Outcome:
    """All that was to be done is done; members stay as they are until the final state is here."""
    crew = state.crew
    actions: tuple[Action, ...] = ()
    if crew.pending is not None and not crew.confirmed:
        crew, actions = membership.cancel(crew)
    # Newcomers that were called already wait inside until they are told to end.
    crew = replace(crew, pending=None, formed=frozenset(), confirmed=False)
    state = replace(
        state, crew=crew, phase=Phase.FINISHING, writer=min(state.members), heir=False, idle=frozenset(),
        finished=frozenset(),
    )
    message = _onward(state, state.epochs - 1)
    return state, (*actions, *(Send(worker, message) for worker in state.members))


def finished(state: State, event: Finished) -> Outcome:
    """A member is done with the job."""
    worker = event.worker
    if state.phase is not Phase.FINISHING or worker not in state.members:
        return state, ()
    # An heir says first that it is done, for all were told to be, and then brings the state.
    brings = worker == state.writer and (worker in state.finished or not state.heir)
    result = event.state if brings else state.result
    return replace(state, finished=state.finished | {worker}, result=result), ()


def unfinished(state: State) -> Outcome:
    """A member died after the last step: the others have all there is to have."""
    alive = state.alive
    crew = replace(state.crew, active=replace(state.crew.active, members=alive))
    state = replace(state, crew=crew)
    if not alive or state.writer in alive:
        return state, ()
    return replace(state, writer=alive[0], heir=True), (Send(alive[0], {"op": "state"}),)


def conclude(state: State) -> Outcome:
    """The end, when all members are done and the final state is here."""
    if state.phase is not Phase.FINISHING or state.result is None or not state.finished.issuperset(state.members):
        return state, ()
    peers = state.crew.peers
    away = [Kill(w) if peers[w].stage is Stage.STARTING else Send(w, {"op": "bye"}) for w in sorted(peers)]
    return replace(state, phase=Phase.ENDED), (*away, End(state.result))
