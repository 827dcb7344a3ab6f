"""The workers of an elastic job, as seen by its runner: the slot of each worker, and until when the worker holds it."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

from local_backend.runtime import tree
from local_backend.runtime.paths import ExecPaths, worker_number


def started(paths: ExecPaths) -> list[int]:
    """Return the numbers of all workers of an elastic exec that were ever started, lowest first. Each left an output
    file."""
    try:
        names = os.listdir(paths.captures)
    except OSError:
        return []
    found = {worker_number(name.partition(".")[0]) for name in names}
    return sorted(number for number in found if number is not None)


@dataclass(frozen=True)
class _Worker:
    pid: int
    slot: str


class Workers:
    """Workers by number. An ended worker still holds its slot while any process that it started lives."""

    def __init__(self) -> None:
        self._running: dict[int, _Worker] = {}
        self._leaving: dict[int, _Worker] = {}

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, number: int) -> bool:
        """Return whether any process of this worker lives."""
        return number in self._running or number in self._leaving

    @property
    def slots(self) -> dict[int, str]:
        """Slots of the running workers, by worker number."""
        return {number: worker.slot for number, worker in self._running.items()}

    @property
    def held(self) -> set[str]:
        """Slots on which any process of a worker lives."""
        return {worker.slot for worker in (*self._running.values(), *self._leaving.values())}

    def on(self, slot: str) -> int:
        """Return the number of workers on a slot of which any process lives."""
        return sum(worker.slot == slot for worker in (*self._running.values(), *self._leaving.values()))

    @property
    def leaving(self) -> bool:
        """Whether processes of an ended worker may still live."""
        return bool(self._leaving)

    def started(self, number: int, pid: int, slot: str) -> None:
        """Add a worker that has been started."""
        self._running[number] = _Worker(pid, slot)

    def pid(self, number: int) -> int | None:
        """Return the pid of a worker; None if the worker is not running."""
        worker = self._running.get(number)
        return worker.pid if worker else None

    def ended(self, number: int) -> None:
        """Mark a worker as ended, after its process was reaped. `settle` kills the processes that it left."""
        self._leaving[number] = self._running.pop(number)

    def settle(self, tasks: Collection[int], holders: Collection[int] = ()) -> None:
        """Kill the processes that ended workers left, and forget the workers when none is left. `tasks` are the pids of
        the running driver and workers, `holders` those that hold a sandbox. Call this whenever a process was reaped:
        this process is the subreaper of ended tasks, so it sees each of these ends."""
        if not self._leaving:
            return
        left = tree.strays(tasks, holders)
        tree.kill(left)
        if not left:
            self._leaving.clear()
