"""The hub's view of steps: what was reported, and what every member has applied and is therefore committed."""

from __future__ import annotations

from dataclasses import replace

from local_backend.elastic.events import Action, Applied, Commit, Stepped
from local_backend.elastic.hub_state import Outcome, State, fail
from local_backend.elastic.membership import Stage
from local_backend.elastic.watching import Totals


def stepped(state: State, event: Stepped) -> Outcome:
    """The results of some shards; what one says that was removed meanwhile is true all the same."""
    peer = state.crew.peers[event.worker]
    state = replace(state, crew=state.crew.put([event.worker], applied=max(peer.applied, event.step)))
    if event.step >= state.committed:
        of_step = {**state.reports.get(event.step, {}), **{result.number: result for result in event.results}}
        state = replace(state, reports={**state.reports, event.step: of_step})
    return state, ()


def applied(state: State, event: Applied) -> Outcome:
    """Note how far a worker has got: after a death a step is committed before the next one is computed."""
    peer = state.crew.peers[event.worker]
    return replace(state, crew=state.crew.put([event.worker], applied=max(peer.applied, event.steps))), ()


def commit(state: State) -> Outcome:
    """Commits every step that all members have applied, in order."""
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
                break  # what is missing is on its way from one that was removed: it reported before others could apply
            return fail(state, f"step {committed} was applied but not reported; this is a bug of the engine")
        reports.pop(committed)
        in_order = tuple(results[shard] for shard in shards)
        totals = (totals if within else Totals()).add(in_order)
        actions.append(Commit(epoch, within, in_order))
        committed += 1
    return replace(state, committed=committed, reports=reports, totals=totals), tuple(actions)
