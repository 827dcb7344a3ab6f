"""Hub rules for members that the training loses.

After a death, the remaining members form a new generation, or new workers start from the kept state. When the job has
no slots, its last members leave: the job is parked, and one member keeps the state first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from local_backend.elastic.hub import membership
from local_backend.elastic.hub.boundary import unfinished
from local_backend.elastic.hub.events import (
    Action,
    Broken,
    Failed,
    Gone,
    Hung,
    Kept,
    Kill,
    Left,
    Lost,
    Note,
    NotKept,
    Send,
)
from local_backend.elastic.hub.membership import Crew, Stage
from local_backend.elastic.hub.state import HubState, Outcome, Phase, fail, requeue, then, with_crew


def depart(state: HubState, crew: Crew) -> HubState:
    """Return the state with a crew whose pending generation was activated. If it has no members, park the old ones."""
    parked = () if crew.active.members else state.members
    return replace(state, crew=crew, idle=frozenset(), parking=parked, out=())


def left(state: HubState, event: Left) -> Outcome:
    """Handle a worker that left its generation. The generation continues without it, or has ended for lack of slots."""
    crew, worker = state.crew, event.worker
    pending = crew.pending
    if worker in state.members and pending is not None and crew.confirmed and worker not in pending.members:
        state = depart(state, membership.activate(crew))
    if worker in state.parking:
        if worker in state.out:
            return state, ()
        state = replace(state, out=(*state.out, worker))
        return state, ((Send(worker, {"op": "keep"}),) if state.out == (worker,) else ())
    if state.crew.peers[worker].stage is not Stage.LEAVING:
        # The worker was called back meanwhile.
        return state, ()
    return replace(state, leavers=state.leavers | {worker}), ()


def release(state: HubState) -> Outcome:
    """Let workers that have left end, once the others have entered a new generation. Before that, another member may
    still be in a sum with them. The end of their connections would break this sum."""
    if not state.leavers or state.crew.entering:
        return state, ()
    here = sorted(state.leavers & set(state.crew.at(Stage.LEAVING)))
    return replace(state, leavers=frozenset()), tuple(Send(worker, {"op": "bye"}) for worker in here)


def abandoned(state: HubState, worker: int) -> Outcome:
    """Handle the death of a worker that was to be parked: another worker keeps the state.

    Workers that are still in their generation may wait for the dead one, in the step in which all were to leave.
    """
    keeper = state.out[:1]
    out = tuple(other for other in state.out if other != worker)
    state = replace(state, parking=tuple(other for other in state.parking if other != worker), out=out)
    if not state.parking:
        return state, (Note(f"step {state.committed}: no worker is left"),)
    actions = [membership.summon(other, state.crew.active.number) for other in state.parking if other not in out]
    if out and out[:1] != keeper:
        actions.append(Send(out[0], {"op": "keep"}))
    return state, tuple(actions)


def kept(state: HubState, event: Kept) -> Outcome:
    """Note a state from which training can continue. If it is the last state of workers to be parked, let them end."""
    if state.kept is None or event.position >= state.kept.position:
        state = replace(state, kept=event, unkept="")
    # This may be a snapshot of an earlier step that was still on its way.
    late = event.position.steps < state.crew.peers[event.worker].applied
    if event.worker not in state.out[:1] or late:
        return state, ()
    away = tuple(Send(worker, {"op": "bye"}) for worker in state.parking)
    what = "parked; the state is kept until a slot is free"
    if state.resting:
        what = f"rests after epoch {state.epoch + 1}; the state is kept"
    note = Note(f"step {state.committed}: {what}")
    return replace(state, parking=(), out=()), (*away, note)


def not_kept(state: HubState, event: NotKept) -> Outcome:
    """Report once that snapshots cannot be written."""
    notes = () if state.unkept else (Note(f"step {state.committed}: {event.why}"),)
    return replace(state, unkept=event.why), notes


#: The job fails when training was interrupted this many times without progress.
BREAKS = 3


def broken(state: HubState, event: Broken) -> Outcome:
    """Handle a connection lost between members. Separate events report which worker died."""
    crew, worker, generation = state.crew, event.worker, event.generation
    if crew.peers[worker].stage is Stage.LEAVING:
        return (state, ()) if worker in state.parking else (state, (Send(worker, {"op": "bye"}),))
    if state.phase is Phase.FINISHING:
        return state, ()
    live = [crew.active, *([crew.pending] if crew.pending is not None and crew.confirmed else [])]
    within = any(generation == one.number and worker in one.members for one in live)
    behind = generation < crew.active.number and worker in crew.entering and not crew.told
    if not (within or behind):
        return state, ()
    return _regroup(state, f"worker-{worker} lost the connection to another worker", explained=False)


def lost(state: HubState, event: Lost) -> Outcome:
    """Remove a worker that lost its connection or hangs. Its slot is free when its process has ended."""
    worker, hung = event.worker, isinstance(event, Hung)
    leaving = state.crew.peers[worker].stage is Stage.LEAVING
    why = event.why if isinstance(event, Hung) else "lost its connection"
    following: list[Callable[[HubState], Outcome]] = []
    if hung:
        following.append(lambda s: with_crew(s, membership.tell(s.crew, worker, why, s.committed)))
    if hung or not leaving:
        following.append(lambda s: (s, (Kill(worker),)))
    return then(_without(state, worker, why), *following)


def gone(state: HubState, event: Gone) -> Outcome:
    """Remove a worker whose process has ended."""
    worker = event.worker
    return then(
        _without(state, worker, event.how),
        lambda s: with_crew(s, membership.tell(s.crew, worker, event.how, s.committed)),
        lambda s: (replace(s, crew=membership.bury(s.crew, worker)), ()),
    )


def failed(state: HubState, event: Failed) -> Outcome:
    """Fail the job after an exception in a worker, unless this worker has left the training already."""
    worker = event.worker
    if state.crew.peers[worker].stage is Stage.LEAVING and worker not in state.parking:
        return state, (Note(f"worker-{worker} failed after it had left the training: {event.summary}"),)
    return fail(state, f"worker {worker}: {event.summary}", event)


def _without(state: HubState, worker: int, why: str) -> Outcome:
    """Continue without a worker, whatever its part was. A second call for the same worker is harmless."""
    crew = state.crew
    member, called, pending = worker in state.alive, worker in crew.called, crew.pending
    state = replace(state, crew=membership.lose(crew, worker))
    if worker in state.parking:
        return abandoned(state, worker)
    if state.phase is Phase.FINISHING:
        if not member:
            return state, ()
        # Count no single death: members are not replaced at the end, so few can die. If all die, training resumes.
        why = f"worker-{worker} {why}"
        return then((state, ()) if state.alive else _count_loss(state, why), unfinished)
    if member or called:
        return _regroup(state, f"worker-{worker} {why}")
    if pending is not None and worker in pending.members:
        return with_crew(state, membership.cancel(state.crew))
    return state, ()


def _count_break(state: HubState, why: str) -> Outcome:
    """Count an interruption of training, and fail the job after too many interruptions at one step.

    After a recovery members repeat committed steps. Progress within these steps counts as progress.
    """
    peers = state.crew.peers
    at = min(state.committed, max(peers[worker].applied for worker in state.members if worker in peers))
    breaks = state.breaks + 1 if state.broken_at == (state.committed, at) else 1
    return _unless(breaks, at, why, replace(state, broken_at=(state.committed, at), breaks=breaks))


def _count_loss(state: HubState, why: str) -> Outcome:
    """Count the loss of all members. Training is thrown back, so only newly committed steps count as progress."""
    at = state.committed
    losses = state.losses + 1 if state.lost_at == at else 1
    return _unless(losses, at, why, replace(state, lost_at=at, losses=losses))


def _unless(times: int, at: int, why: str, state: HubState) -> Outcome:
    if times < BREAKS:
        return state, ()
    before = state.crew.last_loss
    if before:
        # The end of the present worker is often not known yet, but was probably the same.
        why += f" (before that, {before})"
    return fail(state, f"{why}; training was interrupted {times} times at step {at} without progress")


def _regroup(state: HubState, why: str, explained: bool = True) -> Outcome:
    """Form a new generation of the remaining members. Members that are behind copy the state of one that is ahead.
    Newcomers join with the generation after that.

    `explained`: a worker is known to be lost. If other members noticed first, or several workers died at once, this
    counts as one interruption. Members are not replaced before the new generation has formed, so such deaths are few.
    """
    known = explained and state.meeting
    return then(
        (state, ()) if known else _count_break(state, why),
        lambda s: (s, ()) if s.alive else _count_loss(s, why),
        lambda s: _meet(replace(s, meeting=True)),
    )


def _meet(state: HubState) -> Outcome:
    crew = state.crew
    alive = state.alive
    state = replace(requeue(state, sorted(set(state.doing) - set(alive))), idle=frozenset())
    if not alive:
        state = replace(state, crew=membership.disband(crew))
        return state, (Note(f"step {state.committed}: no worker is left"),)
    return with_crew(state, membership.regroup(crew, alive, state.kept))


def revive(state: HubState) -> Outcome:
    """If there are no members, let the ready workers continue from the kept state, or from the beginning."""
    crew = state.crew
    if not state.running or state.members or state.parking:
        return state, ()
    if crew.slots and not crew.usable:
        return fail(state, membership.unusable(crew))
    ready = crew.at(Stage.READY)[: crew.most]
    if not ready:
        return state, ()
    actions: tuple[Action, ...] = ()
    if state.kept is not None:
        steps = state.kept.position.steps
        how = "recovered" if steps < state.committed or state.lost_at == state.committed else "continues"
        actions = (Note(f"step {state.committed}: {how} from the snapshot of step {steps}"),)
    elif state.committed:
        actions = (Note("no snapshot exists yet: training restarts from the beginning and gives the same results"),)
    # Training reaches the boundary again, and does only the rest of its work.
    phase = Phase.TRAINING if state.phase is Phase.FINISHING else state.phase
    state = replace(state, phase=phase, idle=frozenset(), finished=frozenset(), meeting=False)
    state, more = with_crew(state, membership.regroup(crew, ready, state.kept))
    return state, actions + more
