"""The number of kernels that a revision can use now. Pure: the same arguments give the same answer.

Kernels are added when requests would wait too long, and at once. Kernels are given up when so many were not needed for
a whole `release_time`: the answer is the largest need within that time. So a load that goes up and down faster than
that moves no kernel.

The need follows from the rate of arrivals λ, the waiting requests, and the rate μ at which a kernel answers. A kernel
takes waiting requests as one batch. So μ counts full batches, each as long as the batches of late: while batches are
small, a kernel has room, and when they are full, μ is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from local_backend.inference.control import RevisionLoad
from local_backend.inference.profile import ModelProfile

#: Part of their time that kernels work. The rest is for arrivals that are not even.
BUSY = 0.8
#: Seconds that a request may wait, or so many batches if they are longer, or this part of the execution timeout if it
#: is shorter.
WAIT, WAIT_BATCHES, WAIT_PART = 0.25, 2.0, 0.25
#: Seconds that a kernel takes to become ready, before any did.
START = 1.0
#: Calls over which the rate of arrivals is averaged.
_AVERAGED = 2.0


@dataclass(frozen=True)
class ScalerMemory:
    """What one call leaves for the next one. Times are seconds of the clock that `now` is read from."""

    #: Time of the last call; None before the first one. Requests that had arrived by then; arrivals per second.
    when: float | None = None
    arrived: int = 0
    rate: float = 0.0
    #: Arrivals per second since the call before, where they are fewer than on average. The need falls with them at
    #: once: `needs` alone decides how long kernels stay.
    recent: float = 0.0
    #: Needs within the release time, each smaller than the one before, with the last time at which each was the need.
    needs: tuple[tuple[float, int], ...] = ()
    #: The last answer. Since when more kernels are wanted than are ready, and how many were ready then.
    wanted: int = 0
    since: float | None = None
    #: Measured seconds from a larger answer until the kernels were ready.
    start: float = START


def resumed(kernels: int, now: float) -> ScalerMemory:
    """Return the memory of a server that finds a revision with so many kernels wanted: they stay for the release
    time."""
    return ScalerMemory(needs=((now, kernels),), wanted=kernels)


def wanted(loads: RevisionLoad, profile: ModelProfile, memory: ScalerMemory, now: float) -> tuple[int, ScalerMemory]:
    """Return the kernels that a revision can use now, and the memory for the next call. Call it every
    `schedule_interval`, and at once for a load that `presses`."""
    memory = _observed(loads, profile, memory, now)
    need = _bounded(_need(loads, profile, memory, now), profile)
    needs = [(at, count) for at, count in memory.needs if at > now - profile.release_time and count > need]
    found = _bounded(max([need, *(count for _, count in needs)]), profile)
    return found, replace(memory, needs=(*needs, (now, need)), wanted=found)


def presses(loads: RevisionLoad, profile: ModelProfile) -> bool:
    """Return whether requests wait for longer than they should, or for the first kernel."""
    return loads.queued > 0 and (not _ready(loads) or loads.oldest > _target(loads, profile))


def _bounded(kernels: int, profile: ModelProfile) -> int:
    most = math.inf if profile.kernel_max is None else profile.kernel_max
    return int(max(profile.kernel_min, min(kernels, most)))


def _observed(loads: RevisionLoad, profile: ModelProfile, memory: ScalerMemory, now: float) -> ScalerMemory:
    """Return the memory with what has happened since the last call."""
    ready = _ready(loads)
    since, start = memory.since, memory.start
    if ready < memory.wanted:
        since = now if since is None else since
    elif since is not None:
        start, since = (start + now - since) / 2, None
    if memory.when is None or now <= memory.when:
        return replace(memory, when=now if memory.when is None else memory.when, arrived=loads.arrived, since=since)
    more = loads.arrived - memory.arrived
    seen = now - memory.when
    rate = (more if more >= 0 else loads.arrived) / seen  # a new gateway counts from 0
    part = 1.0 - math.exp(-seen / (_AVERAGED * profile.schedule_interval))
    average = memory.rate + part * (rate - memory.rate)
    return replace(memory, when=now, arrived=loads.arrived, rate=average, recent=min(average, rate), since=since,
                   start=start)


def _need(loads: RevisionLoad, profile: ModelProfile, memory: ScalerMemory, now: float) -> int:
    """Return the kernels that the load of this moment needs."""
    ready, limits = _ready(loads), profile.limits
    if not loads.queued and not loads.running and memory.rate * profile.release_time < 1.0:
        return 0
    if loads.batch_seconds <= 0.0:
        return _unknown(loads, profile, ready)
    answers = limits.batch_size * limits.parallel_size / loads.batch_seconds
    need = memory.recent / (BUSY * answers)
    target = _target(loads, profile)
    if loads.queued and (not ready or loads.queued / (ready * answers) > target):
        # Kernels that start now help when they are ready: until then, the queue is longer than it will be.
        starting = memory.start if memory.since is None else max(memory.start, now - memory.since)
        need = max(need, (memory.recent + loads.queued / max(target, starting)) / answers)
    return max(1, math.ceil(need - 1e-6))


def _unknown(loads: RevisionLoad, profile: ModelProfile, ready: int) -> int:
    """Return the need while no batch was answered yet: twice the kernels each time that requests wait for long."""
    waits = loads.queued and loads.oldest > max(_target(loads, profile), profile.schedule_interval)
    return 2 * ready if ready and waits else max(1, ready if loads.queued else 1)


def _target(loads: RevisionLoad, profile: ModelProfile) -> float:
    """Return the seconds that a request may wait."""
    timeout = profile.limits.execution_timeout
    most = math.inf if timeout is None else WAIT_PART * timeout
    return min(most, max(WAIT, profile.limits.batch_delay, WAIT_BATCHES * loads.batch_seconds))


def _ready(loads: RevisionLoad) -> int:
    return sum(kernel.ready and not kernel.leaving for kernel in loads.kernels)
