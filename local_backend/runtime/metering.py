"""The meter of a runner: the CPU cores and the memory that the processes of an attempt use over time, and how busy its
GPUs are, as the server reports it.

The runner writes them as curves into a file of their own, in the format of the metrics (curves/file.py).
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from local_backend.curves.book import Book
from local_backend.curves.file import CurveFile, began, load
from local_backend.curves.model import CPU, GPU, GPU_MEMORY, MEMORY, RESOURCES, SECOND, MetricValue
from local_backend.own_process import LINUX
from local_backend.runtime import launcher_log
from local_backend.runtime.environment import TaskId
from local_backend.runtime.messages import GpusMeasured
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.tasks import TaskPlan

#: Seconds until the first reading, and between readings: more, if readings would take a larger part of a core than
#: 1 / _REST.
_FIRST, _EVERY, _REST = 3.0, 10.0, 2000.0
#: Maximum number of tasks, and of GPUs, with curves of their own.
_MOST_TASKS = 32
_PROC = "/proc"


@dataclass
class ProcessUse:
    """CPU seconds since their start and resident bytes of some processes."""

    seconds: float = 0.0
    memory: int = 0


class ResourceMeter:
    """Measures one attempt. No method raises."""

    def __init__(self, paths: ExecPaths) -> None:
        #: When the next reading is due (monotonic); None for no further ones.
        self.due: float | None = time.monotonic() + _FIRST if LINUX else None
        self._paths = paths
        self._book = Book()
        self._file: CurveFile | None = None
        self._began = time.time()
        self._read_at = time.monotonic()
        #: CPU seconds at the last reading: of all processes (0), and of each task by its pid.
        self._used: dict[int, float] = {}
        #: How busy the GPUs are, until the next reading.
        self._gpus: Mapping[str, tuple[float, int]] = {}

    def take_gpus(self, measured: GpusMeasured) -> None:
        """Keep what the server reports about the GPUs for the next reading."""
        self._gpus = measured.uses

    def turn(self, tasks: Mapping[int, TaskPlan]) -> None:
        """Take a reading, if it is due. `tasks` are the processes that this one has started."""
        if self.due is None or time.monotonic() < self.due:
            return
        before = time.process_time()
        try:
            self._read(tasks)
            self.due = time.monotonic() + max(_EVERY, _REST * (time.process_time() - before))
        except Exception as problem:  # for example a full disk
            self.due = None
            launcher_log.note(self._paths.launcher_log, "runner", f"the use of CPU and memory is no longer recorded: "
                              f"{problem!r}", "WARNING")

    def _read(self, tasks: Mapping[int, TaskPlan]) -> None:
        whole, each = uses(os.getpid(), tasks)
        file, now = self._open(), time.monotonic()
        passed, self._read_at = now - self._read_at, now
        shown: list[tuple[str, int, ProcessUse]] = [("", 0, whole)]
        if len(tasks) > 1:
            shown += [(f" {_title(plan.task)}", pid, each[pid]) for pid, plan in list(tasks.items())[:_MOST_TASKS]]
        values: dict[str, float] = {}
        for name, pid, use in shown:
            values[CPU + name] = round(max(0.0, use.seconds - self._used.get(pid, 0.0)) / passed, 3)
            values[MEMORY + name] = float(use.memory)
        self._used = {pid: use.seconds for _, pid, use in shown}
        self._note(file, values | self._gpu_values())
        file.flush()

    def _note(self, file: CurveFile, values: Mapping[str, float]) -> None:
        """Add a point to each of these curves."""
        at = round(time.time(), 3)
        for name, value in values.items():
            found = self._book.add(RESOURCES, MetricValue(name, value, round(at - self._began, 1), SECOND, at))
            if found is not None:
                file.note(*found, value, at)

    def _gpu_values(self) -> dict[str, float]:
        """Return the values of all GPUs together, and of each of several, once."""
        uses, self._gpus = self._gpus, {}
        if not uses:
            return {}
        found = {GPU: round(sum(busy for busy, _ in uses.values()), 3),
                 GPU_MEMORY: float(sum(memory for _, memory in uses.values()))}
        for slot, (busy, memory) in list(uses.items())[:_MOST_TASKS] if len(uses) > 1 else ():
            found |= {f"{GPU} {slot}": round(busy, 3), f"{GPU_MEMORY} {slot}": float(memory)}
        return found

    def _open(self) -> CurveFile:
        """Return the file, which continues that of an earlier attempt."""
        if self._file is None:
            found = self._paths.opened(self._paths.resources)
            if found is not None:
                with found:
                    self._began = began(found) or self._began
                    load(found, self._book)
            self._file = CurveFile(self._paths.resources, self._book, self._began)
        return self._file


def _title(task: TaskId) -> str:
    return "driver" if task.is_driver else f"worker {task.number}"


def uses(root: int, tasks: Collection[int]) -> tuple[ProcessUse, dict[int, ProcessUse]]:
    """Return what all descendants of a process use, and those of each task with the task itself. The CPU time of ended
    processes counts where their parent has reaped them."""
    found = dict(_processes())
    whole, each = ProcessUse(found[root].reaped if root in found else 0.0), defaultdict[int, ProcessUse](ProcessUse)
    for pid, process in found.items():
        task = _task_of(pid, found, root, tasks)
        if task is None:
            continue
        for use in (whole, each[task]):
            use.seconds += process.own + process.reaped
            use.memory += process.memory
    return whole, each


@dataclass(frozen=True)
class _Process:
    parent: int
    own: float
    reaped: float
    memory: int


def _task_of(pid: int, found: Mapping[int, _Process], root: int, tasks: Collection[int]) -> int | None:
    """Return the task above a process, 0 for a descendant of `root` without one, None for another process."""
    for _ in found:  # processes end while they are read, so the parents may form a circle
        if pid in tasks:
            return pid
        above = found.get(pid)
        if above is None or pid == root:
            return None
        if above.parent == root:
            return 0
        pid = above.parent
    return None


def _processes() -> Iterator[tuple[int, _Process]]:
    """Yield all processes of the machine: one read of /proc for each. See proc(5)."""
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for name in os.listdir(_PROC):
        if name.isdecimal():
            try:
                fd = os.open(f"{_PROC}/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fields = os.read(fd, 4096).rpartition(b")")[2].split()
                finally:
                    os.close(fd)
                own, reaped = (sum(map(int, fields[at:at + 2])) / tick for at in (11, 13))
                yield int(name), _Process(int(fields[1]), own, reaped, int(fields[21]) * page)
            except (OSError, ValueError, IndexError):
                continue  # the process has ended
