"""Slots that several jobs share: which of them has room for one more. Pure.

A worker goes where the least is left that is enough for it (best fit: Johnson, "Fast algorithms for bin packing",
1974), so that whole slots stay whole; jobs of one pack go to the one slot that is theirs alone.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field

from local_backend.scheduler.model import WHOLE, Job


@dataclass(eq=False)
class Bin:
    """A shared slot; without an id as long as it is not known which one it will be."""

    slot: str | None
    left: int = WHOLE
    #: Jobs of this pack alone may use it; empty for jobs of no pack.
    pack: str = ""


@dataclass
class Fit:
    """A bin for each worker of a job, and how many of them are slots that nobody is on yet."""

    bins: list[Bin] = field(default_factory=list)
    new: int = 0


class Shared:
    """The shared slots of a machine while a decision is made."""

    def __init__(self, usable: Iterable[str], jobs: Iterable[Job]) -> None:
        """`jobs` run; those on slots that are not `usable` stay there, and nobody joins them."""
        self._packs: dict[str, Bin] = {}
        #: What is left of bins of no pack → those bins; and these numbers in order.
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

    def fit(self, job: Job) -> Fit | None:
        """Where the workers of a job can go; None when there is no room for it in its pack."""
        if job.pack:
            found = self._packs.get(job.pack)
            if found is None:
                return Fit([Bin(None, pack=job.pack)] * job.least, 1)
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

    def take(self, job: Job, fit: Fit) -> None:
        """The job goes where it fits."""
        for found in dict.fromkeys(fit.bins):
            self._drop(found)
            found.left -= fit.bins.count(found) * job.share
            self._keep(found)

    def left(self, pack: str) -> int:
        """Parts of a pack's slot that nobody has."""
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
