"""The real memory use of a worker."""

from __future__ import annotations

import psutil

from local_backend.runtime.tree import group_and_tree


def over_limit(pid: int, limit: int) -> int | None:
    """Return the bytes that the worker `pid` uses with all its processes, if more than `limit`; else None.

    Forked processes share pages, and each page counts once. The sum of resident sizes counts shared pages repeatedly,
    so it is only a cheap first check. The proportional size decides.
    """
    processes = list(group_and_tree(pid))
    if sum(_resident(process) for process in processes) <= limit:
        return None
    used = sum(_proportional(process) for process in processes)
    return used if used > limit else None


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _proportional(process: psutil.Process) -> int:
    try:
        full = process.memory_full_info()
    except (psutil.Error, OSError):
        return 0
    return int(getattr(full, "pss", full.rss))
