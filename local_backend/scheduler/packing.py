"""Slots that several jobs share: find a slot with room for one more job. Pure.

A worker goes to the slot with the least room that is enough for it (best fit: Johnson, "Fast algorithms for bin
packing", 1974), so that whole slots stay free. Jobs of one pack go to one slot that no other job uses. Services of a
pack have a variable number of workers, their kernels (see `packs`).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field

from local_backend.scheduler.model import WHOLE, SchedulerJob


@dataclass(eq=False)
class Bin:
    """A shared slot. Its id is None until a slot has been chosen."""

    slot: str | None
    left: int = WHOLE
    #: Only jobs of this pack may use it; empty for jobs without a pack.
    pack: str = ""


@dataclass
class Fit:
    """A bin for each worker of a job, and the number of bins on slots that no job uses yet."""

    bins: list[Bin] = field(default_factory=list)
    new: int = 0


class Shared:
    """The shared slots of a machine during one decision."""

    def __init__(
        self, usable: Iterable[str], jobs: Iterable[SchedulerJob], movable: Iterable[SchedulerJob] = ()
    ) -> None:
        """`jobs` run, and keep their parts. Jobs on slots that are not `usable` stay there, and no other job joins
        them. `movable` jobs run, too: their packs stay where they are."""
        self._packs: dict[str, Bin] = {}
        #: Pack → the usable slot on which its movable jobs are.
        self._homes: dict[str, str] = {}
        #: Parts that are left → bins without a pack that have so many parts left; and these numbers in order.
        self._by_left: dict[int, list[Bin]] = {}
        self._lefts: list[int] = []
        allowed, bins = set(usable), dict[str, Bin]()
        for job in jobs:
            for slot in job.slots if job.shares else ():
                found = bins.setdefault(slot, Bin(slot, pack=job.pack))
                found.left -= job.share
        for slot, found in bins.items():
            if slot in allowed:
                self._keep(found)
        for job in movable:
            if job.pack and (slots := [slot for slot in (*job.slots, *job.held) if slot in allowed]):
                self._homes.setdefault(job.pack, slots[0])

    def fit(self, job: SchedulerJob) -> Fit | None:
        """Return where the workers of a job can go; None if its pack has no room for it."""
        if job.pack:
            found = self._packs.get(job.pack)
            if found is None:
                return Fit([Bin(self._homes.get(job.pack), pack=job.pack)] * job.least, 1)
            return Fit([found] * job.least) if found.left >= job.least * job.share else None
        fit = Fit()
        enough = self._lefts[bisect.bisect_left(self._lefts, job.share) :]
        room = (found for left in enough for found in self._by_left[left])
        while len(fit.bins) < job.least:
            found = next(room, None)
            if found is None:
                found = Bin(None)
                fit.new += 1
            workers = min(found.left // job.share, job.least - len(fit.bins))
            fit.bins += [found] * workers
        return fit

    def take(self, job: SchedulerJob, fit: Fit) -> None:
        """Add the job to the bins of `fit`."""
        for found in dict.fromkeys(fit.bins):
            self._drop(found)
            found.left -= fit.bins.count(found) * job.share
            self._keep(found)

    def left(self, pack: str) -> int:
        """Return the free parts of a pack's slot."""
        return self._packs[pack].left if pack in self._packs else WHOLE

    def _keep(self, found: Bin) -> None:
        if found.pack:
            self._packs[found.pack] = found
        elif found.left in self._by_left:
            self._by_left[found.left].append(found)
        else:
            self._by_left[found.left] = [found]
            bisect.insort(self._lefts, found.left)

    def _drop(self, found: Bin) -> None:
        same = self._by_left.get(found.left, [])
        if not found.pack and found in same:
            same.remove(found)
            if not same:
                del self._by_left[found.left]
                self._lefts.remove(found.left)
