"""Hub rules for lost workers: remaining members form a new generation, or new workers start from the kept state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from local_backend.elastic import membership, parking
from local_backend.elastic.boundary import unfinished
from local_backend.elastic.events import Action, Broken, Failed, Gone, Hung, Kill, Lost, Note, Send
from local_backend.elastic.hub_state import Outcome, Phase, State, fail, requeue, then, with_crew
from local_backend.elastic.membership import Stage

#: The job fails when training was interrupted this many times without progress.
BREAKS = 3


def broken(state: State, event: Broken) -> Outcome:
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


def lost(state: State, event: Lost) -> Outcome:
    """Remove a worker that lost its connection or hangs. Its slot is free when its process has ended."""
    worker, hung = event.worker, isinstance(event, Hung)
    leaving = state.crew.peers[worker].stage is Stage.LEAVING
    why = event.why if isinstance(event, Hung) else "lost its connection"
    following: list[Callable[[State], Outcome]] = []
    if hung:
        following.append(lambda s: with_crew(s, membership.tell(s.crew, worker, why, s.committed)))
    if hung or not leaving:
        following.append(lambda s: (s, (Kill(worker),)))
    return then(_without(state, worker, why), *following)


def gone(state: State, event: Gone) -> Outcome:
    """Remove a worker whose process has ended."""
    worker = event.worker
    return then(
        _without(state, worker, event.how),
        lambda s: with_crew(s, membership.tell(s.crew, worker, event.how, s.committed)),
        lambda s: (replace(s, crew=membership.bury(s.crew, worker)), ()),
    )


def failed(state: State, event: Failed) -> Outcome:
    """Fail the job after an exception in a worker, unless this worker has left the training already."""
    worker = event.worker
    if state.crew.peers[worker].stage is Stage.LEAVING and worker not in state.parking:
        return state, (Note(f"worker-{worker} failed after it had left the training: {event.summary}"),)
    return fail(state, f"worker {worker}: {event.summary}", event)


def _without(state: State, worker: int, why: str) -> Outcome:
    """Continue without a worker, whatever its part was. A second call for the same worker is harmless."""
    crew = state.crew
    member, called, pending = worker in state.alive, worker in crew.called, crew.pending
    state = replace(state, crew=membership.lose(crew, worker))
    if worker in state.parking:
        return parking.abandoned(state, worker)
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


def _count_break(state: State, why: str) -> Outcome:
    """Count an interruption of training, and fail the job after too many interruptions at one step.

    After a recovery members repeat committed steps. Progress within these steps counts as progress.
    """
    peers = state.crew.peers
    at = min(state.committed, max(peers[worker].applied for worker in state.members if worker in peers))
    breaks = state.breaks + 1 if state.broken_at == (state.committed, at) else 1
    return _unless(breaks, at, why, replace(state, broken_at=(state.committed, at), breaks=breaks))


def _count_loss(state: State, why: str) -> Outcome:
    """Count the loss of all members. Training is thrown back, so only newly committed steps count as progress."""
    at = state.committed
    losses = state.losses + 1 if state.lost_at == at else 1
    return _unless(losses, at, why, replace(state, lost_at=at, losses=losses))


def _unless(times: int, at: int, why: str, state: State) -> Outcome:
    if times < BREAKS:
        return state, ()
    before = state.crew.last_loss
    if before:
        # The end of the present worker is often not known yet, but was probably the same.
        why += f" (before that, {before})"
    return fail(state, f"{why}; training was interrupted {times} times at step {at} without progress")


def _regroup(state: State, why: str, explained: bool = True) -> Outcome:
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


def _meet(state: State) -> Outcome:
    crew = state.crew
    alive = state.alive
    state = replace(requeue(state, sorted(set(state.doing) - set(alive))), idle=frozenset())
    if not alive:
        state = replace(state, crew=membership.disband(crew))
        return state, (Note(f"step {state.committed}: no worker is left"),)
    return with_crew(state, membership.regroup(crew, alive, state.kept))


def revive(state: State) -> Outcome:
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
        steps = state.kept.version // 4
        actions = (Note(f"step {state.committed}: recovered from the snapshot of step {steps}"),)
    elif state.committed:
        actions = (Note("no snapshot exists yet: training restarts from the beginning and gives the same results"),)
    # Training reaches the boundary again, and does only the rest of its work.
    phase = Phase.TRAINING if state.phase is Phase.FINISHING else state.phase
    state = replace(state, phase=phase, idle=frozenset(), finished=frozenset(), meeting=False)
    state, more = with_crew(state, membership.regroup(crew, ready, state.kept))
    return state, actions + more
