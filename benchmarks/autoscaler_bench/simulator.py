"""A model on a virtual clock: requests, a queue, batches, and kernels that take time to become ready."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from local_backend.inference.autoscaler import ScalerMemory, presses, wanted
from local_backend.inference.control import KernelLoad, RevisionLoad
from local_backend.inference.profile import ModelProfile

#: Weight of a new batch in the moving averages of the gateway.
_NEW = 0.2
#: Seconds between two reports of the gateway.
_REPORTS = 0.25

#: Requests per second at a time.
Shape = Callable[[float], float]


@dataclass(frozen=True)
class Work:
    """What kernels take: seconds to become ready, seconds of a batch, and those that each of its tasks adds."""

    start: float = 0.5
    batch: float = 0.02
    task: float = 0.03


@dataclass
class Result:
    """What one run measured. Times are seconds."""

    waits: list[float] = field(default_factory=list)
    kernel_seconds: float = 0.0
    changes: int = 0
    most: int = 0

    def wait(self, part: float) -> float:
        """Return the quantile of the waiting times: from the arrival of a request until a kernel gets it."""
        ordered = sorted(self.waits)
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


@dataclass(frozen=True)
class Load:
    """A load: requests per second over time, and the highest rate."""

    shape: Shape
    highest: float

    def arrivals(self, seconds: float, seed: int) -> Iterator[float]:
        """Yield the times of a Poisson process with this rate."""
        draw, now = random.Random(seed), 0.0
        while (now := now + draw.expovariate(self.highest)) < seconds:
            if draw.random() * self.highest < self.shape(now):
                yield now


class Simulation:
    """A model with its kernels: with the autoscaler, or with a `fixed` number of kernels."""

    def __init__(self, profile: ModelProfile, work: Work, fixed: int | None = None) -> None:
        self._profile = profile
        self._work = work
        self._fixed = fixed
        self._memory = ScalerMemory()
        self._found = Result()
        #: Kernels that are ready and have nothing to do, that have a batch, and of those, that end after it; when the
        #: other ones are ready.
        self._free = self._busy = self._going = 0
        self._starting: list[float] = []
        self._queue: deque[float] = deque()
        self._running = self._arrived = 0
        self._batch_seconds = 0.0
        self._events: list[tuple[float, int, str, int]] = []
        self._numbers = itertools.count()

    def run(self, load: Load, seconds: float, seed: int = 0) -> Result:
        """Return how the model fares under a load."""
        found, interval = self._found, self._profile.schedule_interval
        for at in load.arrivals(seconds, seed):
            self._put(at, "request")
        for kind, every in (("turn", interval), ("report", _REPORTS)):
            for number in range(int(seconds / every) + 1):
                self._put(number * every, kind)
        before = 0.0
        while self._events and self._events[0][0] < seconds:
            now, _, kind, tasks = heapq.heappop(self._events)
            kernels = self._free + self._busy + len(self._starting)
            found.kernel_seconds += kernels * (now - before)
            found.most, before = max(found.most, kernels), now
            self._handle(now, kind, tasks)
            while self._free and self._queue:
                self._begin(now)
        found.waits += [seconds - at for at in self._queue]
        return found

    def _put(self, at: float, kind: str, tasks: int = 0) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), kind, tasks))

    def _handle(self, now: float, kind: str, tasks: int) -> None:
        match kind:
            case "request":
                self._arrived += 1
                self._queue.append(now)
                if not self._free and not self._busy and not self._starting:
                    self._scale(now)
            case "turn":
                self._scale(now)
            case "report":
                if self._fixed is None and presses(self._load(now), self._profile):
                    self._scale(now)
            case "ready" if now in self._starting:  # else it was let go
                self._starting.remove(now)
                self._free += 1
            case "done":
                self._busy -= 1
                self._running -= tasks
                self._going, self._free = (self._going - 1, self._free) if self._going else (0, self._free + 1)

    def _begin(self, now: float) -> None:
        """Give a kernel a batch."""
        tasks = min(len(self._queue), self._profile.limits.batch_size)
        self._found.waits += [now - self._queue.popleft() for _ in range(tasks)]
        took = self._work.batch + self._work.task * tasks
        self._batch_seconds += (_NEW if self._batch_seconds else 1.0) * (took - self._batch_seconds)
        self._free -= 1
        self._busy += 1
        self._running += tasks
        self._put(now + took, "done", tasks)

    def _load(self, now: float) -> RevisionLoad:
        """Return the load as the gateway would report it."""
        kernels = (KernelLoad(number, 0, True) for number in range(self._free + self._busy - self._going))
        return RevisionLoad(
            len(self._queue), self._running, now - self._queue[0] if self._queue else 0.0, self._arrived,
            batch_seconds=self._batch_seconds, kernels=tuple(kernels))

    def _scale(self, now: float) -> None:
        """Start kernels, or let kernels go: those that start, then free ones, then busy ones after their batch."""
        before = self._memory.wanted
        if self._fixed is None:
            kernels, self._memory = wanted(self._load(now), self._profile, self._memory, now)
        else:
            kernels, self._memory = self._fixed, ScalerMemory(wanted=self._fixed)
        self._found.changes += kernels != before
        there = self._free + self._busy - self._going + len(self._starting)
        for _ in range(kernels - there):
            self._starting.append(now + self._work.start)
            self._put(now + self._work.start, "ready")
        for _ in range(there - kernels):
            if self._starting:
                self._starting.pop()
            elif self._free:
                self._free -= 1
            else:
                self._going += 1


def constant(rate: float) -> Load:
    """A load that does not change."""
    return Load(lambda _: rate, rate)


def burst(low: float, high: float, begin: float, end: float) -> Load:
    """A load that jumps up at `begin` and back at `end`."""
    return Load(lambda now: high if begin <= now < end else low, high)


def waves(low: float, high: float, period: float) -> Load:
    """A load that goes up and down as over a day."""
    return Load(lambda now: low + (high - low) * (1 - math.cos(2 * math.pi * now / period)) / 2, high)


def spikes(low: float, high: float, every: float, length: float) -> Load:
    """Short loads that come again and again."""
    return Load(lambda now: high if now % every < length else low, high)


def recorded(minutes: list[float]) -> Load:
    """A load in the form of a log: the requests per second of each minute."""
    return Load(lambda now: minutes[int(now // 60) % len(minutes)], max(minutes))
