"""Hub rules for parking: the last members leave because the job has no slots. One of them keeps the state first."""

from __future__ import annotations

from dataclasses import replace

from local_backend.elastic import membership
from local_backend.elastic.events import Kept, Left, Note, Send
from local_backend.elastic.hub_state import Outcome, State
from local_backend.elastic.membership import Crew, Stage


def depart(state: State, crew: Crew) -> State:
    """Return the state with a crew whose pending generation was activated. If it has no members, park the old ones."""
    parked = () if crew.active.members else state.members
    return replace(state, crew=crew, idle=frozenset(), parking=parked, out=())


def left(state: State, event: Left) -> Outcome:
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


def release(state: State) -> Outcome:
    """Let workers that have left end, once the others have entered a new generation. Before that, another member may
    still be in a sum with them. The end of their connections would break this sum."""
    if not state.leavers or state.crew.entering:
        return state, ()
    here = sorted(state.leavers & set(state.crew.at(Stage.LEAVING)))
    return replace(state, leavers=frozenset()), tuple(Send(worker, {"op": "bye"}) for worker in here)


def abandoned(state: State, worker: int) -> Outcome:
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


def kept(state: State, event: Kept) -> Outcome:
    """Note a state from which training can continue. If it is the last state of workers to be parked, let them end."""
    if state.kept is None or event.version >= state.kept.version:
        state = replace(state, kept=event)
    # This may be a snapshot of an earlier step that was still on its way.
    late = event.version // 4 < state.crew.peers[event.worker].applied
    if event.worker not in state.out[:1] or late:
        return state, ()
    away = tuple(Send(worker, {"op": "bye"}) for worker in state.parking)
    note = Note(f"step {state.committed}: parked; the state is kept until a slot is free")
    return replace(state, parking=(), out=()), (*away, note)
