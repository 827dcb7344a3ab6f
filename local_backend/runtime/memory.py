"""The memory of this machine, and the real memory use of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from local_backend.runtime.tree import group_and_tree


def of_machine(groups: Path = Path("/proc/self/cgroup"), tree: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of memory that this process and its children may use: those of the machine, or fewer in a
    control group with a limit, such as that of a container. `groups` lists the control groups of this process, and
    `tree` is the file system of all control groups."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        lines = []
    return min([psutil.virtual_memory().total, *(limit for line in lines for limit in _limits(line, tree))])


def _limits(line: str, tree: Path) -> Iterator[int]:
    """Yield the limits of a control group and of all groups around it. In a container, the path of the group may belong
    to the host; the limit of the container is then at the root. See cgroups(7)."""
    _, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if controllers and "memory" not in controllers.split(","):
        return
    base, name = (tree / "memory", "memory.limit_in_bytes") if controllers else (tree, "memory.max")
    group = Path(path.lstrip("/"))
    for folder in (group, *group.parents):
        try:
            text = (base / folder / name).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            yield int(text)


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
