"""What models did in the last minutes: requests, queues, kernels and latencies, in memory and bounded.

Only the loop of the models adds loads; other threads read. A gateway that starts again counts from 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from local_backend.inference.control import LATENCY_BOUNDS, GatewayLoad, RevisionLoad

#: Seconds between two points, and seconds that are kept.
STEP, KEPT = 5.0, 900.0
#: Seconds over which the present latencies are measured.
_WINDOW = 60.0


class LoadPoint(NamedTuple):
    """What a model did in the seconds before `when` (epoch seconds): answers and failures per second, and the latency
    in seconds below which half and 99 % of the answers were; None without an answer. The other values are those at
    `when`."""

    when: float
    requests: float
    failed: float
    waiting: int
    running: int
    kernels: int
    p50: float | None
    p99: float | None


class _Counts(NamedTuple):
    when: float
    finished: int
    failed: int
    waiting: int
    running: int
    kernels: int
    latencies: Sequence[int]


class ServingHistory:
    """The loads of all models in the last minutes."""

    def __init__(self) -> None:
        self._models: dict[str, deque[_Counts]] = {}

    def add(self, load: GatewayLoad) -> None:
        """Remember a load, the last one of each step."""
        for name, revisions in load.loads.items():
            counts = _sum(load.when, revisions, load.latencies.get(name, ()))
            points = self._models.setdefault(name, deque(maxlen=int(KEPT / STEP) + 2))
            # The second last point stays, so that a step always has a beginning.
            if len(points) > 1 and int(points[-1].when / STEP) == int(counts.when / STEP):
                points[-1] = counts
            else:
                points.append(counts)
        for name in [name for name, points in self._models.items() if points[-1].when < load.when - KEPT]:
            del self._models[name]

    def points(self, model: str, now: float) -> list[LoadPoint]:
        """Return the steps of a model until `now` (epoch seconds), oldest first. The gateway says nothing while nothing
        changes, so a step without a load is as the one before, without requests."""
        known = list(self._models.get(model, ()))
        if not known:
            return []
        last = int(now / STEP)
        first = max(int(known[0].when / STEP), last - int(KEPT / STEP))
        found: list[_Counts] = []
        at = 0
        for step in range(first, last):  # the present step has not ended
            while at + 1 < len(known) and known[at + 1].when < (step + 1) * STEP:
                at += 1
            found.append(known[at]._replace(when=(step + 1) * STEP))
        return [_point(before, after) for before, after in pairwise(found)]

    def latency(self, model: str, now: float) -> tuple[float | None, float | None]:
        """Return the latency in seconds below which half and 99 % of the answers of the last minute were."""
        known = list(self._models.get(model, ()))
        if not known:
            return None, None
        # The counts of the first load may be those of hours: the gateway outlives servers.
        before = [one for one in known if one.when <= now - _WINDOW] or known[:1]
        counts = _more(before[-1].latencies, known[-1].latencies)
        return quantile(counts, 0.5), quantile(counts, 0.99)


def quantile(counts: Sequence[int], part: float) -> float | None:
    """Return the value below which this part of a histogram is; None for an empty one. Within a range of the histogram,
    values count as evenly spread; those above all bounds count as the last bound."""
    wanted, seen = part * sum(counts), 0
    if not wanted:
        return None
    for place, count in enumerate(counts):
        if count and seen + count >= wanted:
            if place >= len(LATENCY_BOUNDS):
                break
            low = LATENCY_BOUNDS[place - 1] if place else 0.0
            return low + (LATENCY_BOUNDS[place] - low) * (wanted - seen) / count
        seen += count
    return LATENCY_BOUNDS[-1]


def _sum(when: float, revisions: Mapping[int, RevisionLoad], latencies: Sequence[int]) -> _Counts:
    loads = revisions.values()
    return _Counts(when, sum(one.finished for one in loads), sum(one.failed for one in loads),
                   sum(one.queued for one in loads), sum(one.running for one in loads),
                   sum(kernel.ready and not kernel.leaving for one in loads for kernel in one.kernels),
                   tuple(latencies))


def _point(before: _Counts, after: _Counts) -> LoadPoint:
    counts = _more(before.latencies, after.latencies)
    # A revision that is gone takes its counts with it.
    return LoadPoint(after.when, max(0, after.finished - before.finished) / STEP,
                     max(0, after.failed - before.failed) / STEP, after.waiting, after.running, after.kernels,
                     quantile(counts, 0.5), quantile(counts, 0.99))


def _more(before: Sequence[int], after: Sequence[int]) -> Sequence[int]:
    """Return what a histogram has got since `before`."""
    if len(before) != len(after) or sum(after) < sum(before):
        return after
    return [max(0, new - old) for old, new in zip(before, after, strict=True)]
