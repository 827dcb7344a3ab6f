"""How the hub lets the last members go when the job has lost their slots: one of them keeps the state before."""

from __future__ import annotations

from dataclasses import replace

from local_backend.elastic import membership
from local_backend.elastic.events import Kept, Left, Note, Send
from local_backend.elastic.hub_state import Outcome, State
from local_backend.elastic.membership import Crew, Stage


def depart(state: State, crew: Crew) -> State:
    """The state with a crew whose pending generation was activated; when that has no members, they are to be parked."""
    parked = () if crew.active.members else state.members
    return replace(state, crew=crew, idle=frozenset(), parking=parked, out=())


def left(state: State, event: Left) -> Outcome:
    """Out of a generation that goes on without it, or that has ended for lack of slots."""
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
        # It was called back meanwhile.
        return state, ()
    return replace(state, leavers=state.leavers | {worker}), ()


def release(state: State) -> Outcome:
    """Those who have left may end when the others have met again: before, one of these may still be in a sum with them,
    which the end of their connections would break."""
    if not state.leavers or state.crew.entering:
        return state, ()
    here = sorted(state.leavers & set(state.crew.at(Stage.LEAVING)))
    return replace(state, leavers=frozenset()), tuple(Send(worker, {"op": "bye"}) for worker in here)


def abandoned(state: State, worker: int) -> Outcome:
    """One that was to be parked has died: another one keeps the state.

    Those that are still in their generation may wait there for the dead one, in the step in which all were to leave.
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
    """There is a state to go on from; when it is the last one of workers that are to be parked, they may go."""
    if state.kept is None or event.version >= state.kept.version:
        state = replace(state, kept=event)
    # A snapshot of an earlier step may have been on its way.
    late = event.version // 4 < state.crew.peers[event.worker].applied
    if event.worker not in state.out[:1] or late:
        return state, ()
    away = tuple(Send(worker, {"op": "bye"}) for worker in state.parking)
    note = Note(f"step {state.committed}: parked; the state is kept until there is a slot again")
    return replace(state, parking=(), out=()), (*away, note)
