"""The workers of an elastic job, as its runner sees them: which slot each has, and until when it holds it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from local_backend.runtime import tree
from local_backend.runtime.paths import ExecPaths, worker_number


def started(paths: ExecPaths) -> list[int]:
    """Numbers of all workers of an elastic exec that were ever started, lowest first: each has left its output."""
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
    """Workers by number. One that has ended still holds its slot while anything that it started lives."""

    def __init__(self) -> None:
        self._running: dict[int, _Worker] = {}
        self._leaving: dict[int, _Worker] = {}

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, number: int) -> bool:
        """Whether something of this worker lives."""
        return number in self._running or number in self._leaving

    @property
    def slots(self) -> dict[int, str]:
        """Slots of the workers that run, by their number."""
        return {number: worker.slot for number, worker in self._running.items()}

    @property
    def held(self) -> set[str]:
        """Slots on which something of a worker lives."""
        return {worker.slot for worker in (*self._running.values(), *self._leaving.values())}

    def started(self, number: int, pid: int, slot: str) -> None:
        """The worker has been started."""
        self._running[number] = _Worker(pid, slot)

    def pid(self, number: int) -> int | None:
        """Its process, None when it does not run."""
        worker = self._running.get(number)
        return worker.pid if worker else None

    def ended(self, number: int) -> None:
        """Its process has been reaped; what it has left is killed (see `settle`)."""
        self._leaving[number] = self._running.pop(number)

    def settle(self) -> None:
        """Kill what ended workers have left, and forget those of which nothing is left. To be called whenever a process
        has been reaped: this is their subreaper, so each of their deaths shows."""
        for number, worker in list(self._leaving.items()):
            left = tree.of_worker(number, worker.pid)
            if left:
                tree.kill(left)
            else:
                del self._leaving[number]
