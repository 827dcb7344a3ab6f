"""Urgency of jobs, from the priority that their submitters asked for and the time that they have waited. Pure."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import operator
from collections.abc import Iterable, Sequence

from local_backend.scheduler.model import SchedulerJob

#: A job that waits for more urgent jobs gains AGEING every AGEING_SECONDS, until it is as urgent as they are. It
#: keeps this gain while it runs.
AGEING, AGEING_SECONDS = 1000, 3600.0

#: Negative urgency of a job (the lowest is first), and position among all jobs, from 0, by urgency first.
Key = tuple[int, int]


def waited(job: SchedulerJob, now: float) -> float:
    """Return the seconds without slots since the submission of a job. Parked time with `most` = 0 does not count."""
    if not job.running:
        return job.waited + (now - job.entered if now > job.entered else 0.0)
    parked = max(0.0, now - job.changed) if not job.slots and job.most else 0.0
    return job.waited + parked + max(0.0, job.started - job.entered)


def hours(job: SchedulerJob, now: float) -> int:
    """Return the whole hours (of AGEING_SECONDS) that a job has waited."""
    return int(waited(job, now) // AGEING_SECONDS)


def urgency(job: SchedulerJob, hours: int, highest: int) -> int:
    """Return the priority plus the gain from waiting, up to the `highest` priority of all jobs. Of equally urgent
    jobs, the job whose user has least, or that has waited longest, is considered first."""
    return max(job.priority, min(job.priority + AGEING * hours, highest))


def next_urgency(jobs: Iterable[SchedulerJob], now: float) -> float:
    """Return when the first of the waiting jobs becomes more urgent; infinite for no jobs."""
    phases = [waited(job, now) % AGEING_SECONDS for job in jobs]
    return now + AGEING_SECONDS - max(phases) if phases else math.inf


def order(jobs: Sequence[SchedulerJob], now: float) -> dict[str, Key]:
    """Return the key of each job: by urgency, then by hours waited, then by whether it has slots, then by age.

    A job may have started on slots that a longer waiting job could not use. It has no precedence over the longer
    waiting job, and is the first to lose its slots when that job can start.
    """
    highest = max((job.priority for job in jobs), default=0)
    ages = [hours(job, now) for job in jobs]
    # Waiting adds nothing before the first hour, and most of thousands of jobs are that young.
    levels = [urgency(job, age, highest) if age else job.priority for job, age in zip(jobs, ages, strict=True)]
    loose = _overtaking(jobs, levels)
    line = [
        (-level, -age, not job.slots or job.exec_id in loose, job.since, _number(job.exec_id), job.exec_id)
        for job, age, level in zip(jobs, ages, levels, strict=True)
    ]
    line.sort()
    return {one[-1]: (one[0], place) for place, one in enumerate(line)}


def _overtaking(jobs: Sequence[SchedulerJob], levels: Sequence[int]) -> set[str]:
    """Return jobs with slots that started after the submission of a pending job that is no less urgent."""
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
