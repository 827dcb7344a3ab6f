"""Steps in the hub: the results that workers have reported, and the steps that every member has applied (committed)."""

from __future__ import annotations

from dataclasses import replace

from local_backend.elastic.events import Action, Applied, Commit, Stepped
from local_backend.elastic.hub_state import Outcome, State, fail
from local_backend.elastic.membership import Stage
from local_backend.elastic.watching import Totals


def stepped(state: State, event: Stepped) -> Outcome:
    """Record the results of some shards. Results of a worker that was removed meanwhile are valid, too."""
    peer = state.crew.peers[event.worker]
    state = replace(state, crew=state.crew.put([event.worker], applied=max(peer.applied, event.step)))
    if event.step >= state.committed:
        of_step = {**state.reports.get(event.step, {}), **{result.number: result for result in event.results}}
        state = replace(state, reports={**state.reports, event.step: of_step})
    return state, ()


def applied(state: State, event: Applied) -> Outcome:
    """Record how many steps a worker has applied.

    So after the death of a worker, a step is committed before the next one is computed.
    """
    peer = state.crew.peers[event.worker]
    return replace(state, crew=state.crew.put([event.worker], applied=max(peer.applied, event.steps))), ()


def commit(state: State) -> Outcome:
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
