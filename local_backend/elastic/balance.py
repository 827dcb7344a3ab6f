"""Shards by speed: a slow worker gets fewer; in exact mode the result stays the same. Pure; the time is passed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

from local_backend.elastic.events import Event, Stepped, Unbalanced
from local_backend.elastic.hub_state import Phase, State

#: Steps that are measured before anything is proposed, and by how much a step has to become shorter.
MEASURED, GAIN = 20, 0.15
#: Least steps and seconds between two proposals: every change costs a pause.
STEPS, SECONDS = 50, 5.0


def counts(speeds: Sequence[float], shards: int) -> tuple[int, ...]:
    """Shards per worker, in the order of `speeds` (shards per second, above 0), that make the slowest end soonest.

    Nobody has none unless there are fewer shards than workers; then the fastest have one. Each shard goes to whoever
    would end it first, which is optimal for equal pieces of work.
    """
    order = sorted(range(len(speeds)), key=lambda i: (-speeds[i], i))
    given = [0] * len(speeds)
    for worker in order[:shards]:
        given[worker] = 1
    for _ in range(shards - len(speeds)):
        given[min(range(len(speeds)), key=lambda i: ((given[i] + 1) / speeds[i], i))] += 1
    return tuple(given)


class Balance:
    """Told all that workers say (`heard`); proposes other numbers of shards when that pays."""

    def __init__(self, shards: int) -> None:
        """`shards`: of a full step."""
        self._shards = shards
        self._generation = 0
        #: Worker → seconds per shard, of its newest steps in this generation.
        self._seconds: dict[int, deque[float]] = {}
        #: Step and time of the newest proposal.
        self._last: tuple[int, float] | None = None

    def heard(self, event: Event, state: State, now: float) -> list[Event]:
        """An event and the hub's state after it; what the hub should be told besides."""
        generation = state.crew.active
        if not isinstance(event, Stepped) or state.plan is None or event.worker not in generation.members:
            return []
        if generation.number != self._generation:
            self._generation, self._seconds = generation.number, {}
        if not state.crew.settled or state.phase is not Phase.TRAINING:
            return []
        shards = generation.counts[generation.members.index(event.worker)]
        full = state.plan.size_of_step(event.step % state.plan.steps_per_epoch) == state.plan.step_samples
        if shards and full and len(event.results) == shards:
            self._seconds.setdefault(event.worker, deque(maxlen=MEASURED)).append(event.seconds / shards)
        return self._propose(generation.members, generation.counts, event.step, now)

    def _propose(self, members: tuple[int, ...], given: tuple[int, ...], step: int, now: float) -> list[Event]:
        if any(len(self._seconds.get(worker, ())) < MEASURED for worker in members):
            return []
        if self._last is not None and (step < self._last[0] + STEPS or now < self._last[1] + SECONDS):
            return []
        seconds = [max(1e-9, median(self._seconds[worker])) for worker in members]
        better = counts([1 / each for each in seconds], self._shards)
        if _slowest(better, seconds) > (1 - GAIN) * _slowest(given, seconds):
            return []
        self._last = step, now
        return [Unbalanced(better)]


def _slowest(given: Sequence[int], seconds: Sequence[float]) -> float:
    """Seconds of a step."""
    return max(shards * each for shards, each in zip(given, seconds, strict=True))
