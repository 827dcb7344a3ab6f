"""How much memory a worker really uses."""

from __future__ import annotations

import psutil

from local_backend.runtime.tree import group_and_tree


def over_limit(pid: int, limit: int) -> int | None:
    """Bytes that the worker `pid` with all its processes uses, when that is more than `limit`; else None.

    Forked processes share pages, and each page counts once: the sum of resident sizes, which counts them again and
    again, is only the cheap first look; the proportional size decides.
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
