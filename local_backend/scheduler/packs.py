"""Services in a pack: their kernels share one slot, and get fair parts of its rest. Pure.

A service of a pack is elastic within the slot of its pack. Each of its kernels takes a part of this slot, and the slot
is named once per kernel in the slots of the service.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping

from local_backend.scheduler.admission import Admission, Memory
from local_backend.scheduler.model import SchedulerJob
from local_backend.scheduler.packing import Shared
from local_backend.scheduler.urgency import Key


def deal(admission: Admission, shared: Shared, memory: Memory, keys: Mapping[str, Key]) -> dict[str, int]:
    """Return the number of kernels of each admitted service of a pack: its minimum, and a fair part of the rest.

    The service with the smallest part of the slot gets the next kernel; of equal ones, the most urgent. Subtract the
    memory of the kernels beyond the minimum from `memory`.
    """
    found, packs = {}, defaultdict[str, list[SchedulerJob]](list)
    for job in admission.admitted:
        if job.pack and job.elastic:
            packs[job.pack].append(job)
            found[job.exec_id] = job.least
    for pack, members in packs.items():
        left = shared.left(pack)
        line = [(job.least * job.share, keys[job.exec_id], job) for job in members]
        heapq.heapify(line)
        while line:
            parts, key, job = heapq.heappop(line)
            if found[job.exec_id] < job.most and job.share <= left and job.memory <= max(0, memory.left):
                found[job.exec_id] += 1
                left -= job.share
                memory.left -= job.memory
                heapq.heappush(line, (parts + job.share, key, job))
    return found
