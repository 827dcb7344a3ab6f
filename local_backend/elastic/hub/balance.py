"""Shards by speed: a slow worker gets fewer. In exact mode the result stays the same. Pure: callers pass the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

from local_backend.elastic.hub.events import Event, Stepped, Unbalanced
from local_backend.elastic.hub.state import HubState, Phase

#: Steps to measure per worker before a proposal; minimum fraction by which a proposal must shorten a step.
MEASURED, GAIN = 20, 0.15
#: Minimum steps and minimum seconds between two proposals, because every change pauses training.
STEPS, SECONDS = 50, 5.0


def counts(speeds: Sequence[float], shards: int) -> tuple[int, ...]:
    """Return the shards per worker that minimize the time of the slowest worker, in the order of `speeds`.

    `speeds`: shards per second, above 0. Each worker gets at least one shard. If there are fewer shards than workers,
    only the fastest workers get one. Each further shard goes to the worker that would finish it first, which is optimal
    for equal shards.
    """
    order = sorted(range(len(speeds)), key=lambda i: (-speeds[i], i))
    given = [0] * len(speeds)
    for worker in order[:shards]:
        given[worker] = 1
    for _ in range(shards - len(speeds)):
        given[min(range(len(speeds)), key=lambda i: ((given[i] + 1) / speeds[i], i))] += 1
    return tuple(given)


class Balance:
    """Proposes other shard counts when that pays. The driver passes all events to `heard`."""

    def __init__(self, shards: int) -> None:
        """`shards`: number of shards of a full step."""
        self._shards = shards
        self._generation = 0
        #: Worker → seconds per shard in the newest steps of the worker in this generation.
        self._seconds: dict[int, deque[float]] = {}
        #: Worker → its newest step, if that was a full step. A worker reports its time with the step after it.
        self._full: dict[int, int] = {}
        #: Step and time of the newest proposal.
        self._last: tuple[int, float] | None = None

    def heard(self, event: Event, state: HubState, now: float) -> list[Event]:
        """Take an event and the hub's state after it. Return the proposals, which are events for the hub."""
        generation = state.crew.active
        if not isinstance(event, Stepped) or state.plan is None or event.worker not in generation.members:
            return []
        if generation.number != self._generation:
            self._generation, self._seconds, self._full = generation.number, {}, {}
        if not state.crew.settled or state.phase is not Phase.TRAINING:
            return []
        shards = generation.counts[generation.members.index(event.worker)]
        full = state.plan.size_of_step(event.step % state.plan.steps_per_epoch) == state.plan.step_samples
        if self._full.pop(event.worker, None) == event.step - 1:
            self._seconds.setdefault(event.worker, deque(maxlen=MEASURED)).append(event.seconds / shards)
        if shards and full and len(event.results) == shards:
            self._full[event.worker] = event.step
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
    """Return the duration of a step in seconds. `given`: shards per worker. `seconds`: seconds per shard."""
    return max(shards * each for shards, each in zip(given, seconds, strict=True))
