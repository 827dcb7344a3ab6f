"""Seeded traces of submissions. Their distributions follow published studies of clusters for deep learning.

Durations are log-normal with a heavy tail, and most jobs are small: Jeon et al., "Analysis of Large-Scale
Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX ATC 2019 (Philly: the median job runs minutes, some run
weeks; most take one GPU); Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU
Datacenters", SC 2021 (Helios: more than half of all jobs take one GPU, the large ones take most of the GPU time). No
data of these traces is used.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

#: Number of slots that a job asks for → fraction of all jobs.
SIZES = {1: 0.55, 2: 0.12, 4: 0.14, 8: 0.13, 16: 0.04, 32: 0.02}
#: Duration of a job on all slots that it asks for: median in seconds, sigma of its logarithm, bounds in seconds.
MEDIAN, SIGMA, SHORTEST, LONGEST = 900.0, 1.7, 30.0, 3 * 86400.0

#: Submissions rise and fall with the day by this fraction of their mean. Both studies show the pattern; the fraction
#: is our choice.
DAY, SWING = 86400.0, 0.5


@dataclass(frozen=True)
class Submission:
    """A job: `work` slot-seconds, on at most `slots` slots at a time."""

    number: int
    at: float
    user: str
    slots: int
    work: float


def trace(jobs: int, slots: int, load: float, users: int = 20, seed: int = 0) -> list[Submission]:
    """Return submissions in order of time. The work that they ask for while they arrive is `load` times the capacity
    of `slots`."""
    draw = random.Random(seed)
    sizes, parts = zip(*SIZES.items(), strict=True)
    shapes = []
    for _ in range(jobs):
        size = draw.choices(sizes, parts)[0]
        seconds = min(max(draw.lognormvariate(math.log(MEDIAN), SIGMA), SHORTEST), LONGEST)
        shapes.append((size, size * seconds))
    span = sum(work for _, work in shapes) / slots / load
    moments = sorted(_moment(draw, span) for _ in range(jobs))
    # Few users submit most jobs.
    weights = [1 / (1 + rank) for rank in range(users)]
    return [
        Submission(i + 1, at, f"user{draw.choices(range(users), weights)[0]:02}", size, work)
        for i, (at, (size, work)) in enumerate(zip(moments, shapes, strict=True))
    ]


def _moment(draw: random.Random, span: float) -> float:
    """Return a random time of submission. Daytime is more likely than night."""
    while True:
        at = draw.uniform(0, span)
        if draw.uniform(0, 1 + SWING) < 1 + SWING * math.sin(2 * math.pi * at / DAY):
            return at
