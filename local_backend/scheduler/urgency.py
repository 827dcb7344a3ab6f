"""How urgent jobs are: by what their submitters asked for, and by how long they have waited. Pure."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import operator
from collections.abc import Iterable, Sequence

from local_backend.scheduler.model import Job

#: A job that waits for more urgent ones gets this much more urgent every so many seconds, until it is as urgent as they
#: are, and keeps that while it runs.
AGEING, AGEING_SECONDS = 1000, 3600.0

#: How urgent a job is, the lowest first, and its place among all, from 0: by how urgent they are in the first place.
Key = tuple[int, int]


def waited(job: Job, now: float) -> float:
    """Seconds that a job has been without slots, since it was submitted, and not by its own choice."""
    if not job.running:
        return job.waited + (now - job.entered if now > job.entered else 0.0)
    parked = max(0.0, now - job.changed) if not job.slots and job.most else 0.0
    return job.waited + parked + max(0.0, job.started - job.entered)


def hours(job: Job, now: float) -> int:
    """Whole ones (of AGEING_SECONDS) that a job has waited."""
    return int(waited(job, now) // AGEING_SECONDS)


def urgency(job: Job, hours: int, highest: int) -> int:
    """Priority and what waiting has added to it, up to the `highest` priority of all jobs. Among equals, then, it has
    its turn when its user has least, or when it has waited longest."""
    return max(job.priority, min(job.priority + AGEING * hours, highest))


def next_urgency(jobs: Iterable[Job], now: float) -> float:
    """When the first of jobs that wait will be more urgent; infinite for none."""
    phases = [waited(job, now) % AGEING_SECONDS for job in jobs]
    return now + AGEING_SECONDS - max(phases) if phases else math.inf


def order(jobs: Sequence[Job], now: float) -> dict[str, Key]:
    """How urgent each job is: its urgency, then the hours that it has waited, then whether it has slots, then its age.

    A job that began on slots that one which waits longer could not use has no precedence over that: it is the first to
    go when that one can begin.
    """
    highest = max((job.priority for job in jobs), default=0)
    ages = [hours(job, now) for job in jobs]
    # Waiting adds nothing before the first hour: of thousands most are that young.
    levels = [urgency(job, age, highest) if age else job.priority for job, age in zip(jobs, ages, strict=True)]
    loose = _overtaking(jobs, levels)
    line = [
        (-level, -age, not job.slots or job.exec_id in loose, job.since, _number(job.exec_id), job.exec_id)
        for job, age, level in zip(jobs, ages, levels, strict=True)
    ]
    line.sort()
    return {one[-1]: (one[0], place) for place, one in enumerate(line)}


def _overtaking(jobs: Sequence[Job], levels: Sequence[int]) -> set[str]:
    """Jobs with slots that began after one had been submitted which waits and is no less urgent."""
    earliest: dict[int, float] = {}
    for job, level in zip(jobs, levels, strict=True):
        if not job.running and job.since < earliest.get(level, math.inf):
            earliest[level] = job.since
    known = sorted(earliest, reverse=True)
    first = list(itertools.accumulate((earliest[level] for level in known), min))
    found = set()
    for job, level in zip(jobs, levels, strict=True):
        if job.slots:
            above = bisect.bisect_right(known, -level, key=operator.neg)
            if above and first[above - 1] < job.started:
                found.add(job.exec_id)
    return found


@functools.lru_cache(maxsize=100_000)
def _number(exec_id: str) -> float:
    digits = exec_id.rpartition("-")[2]
    return float(digits) if digits.isdecimal() else 0.0
