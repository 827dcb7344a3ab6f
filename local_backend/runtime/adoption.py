"""Determines what happened to an attempt while no server was running (docs/adoption.md)."""

from __future__ import annotations

import json
import os
import time

from dlicmd.contract import wire
from dlicmd.contract.states import RECOVERING
from local_backend.runtime import launcher_log
from local_backend.runtime.active import Active
from local_backend.runtime.demand import Demand
from local_backend.runtime.launcher import Launcher, LostRun, Outcome, Run
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.records import Records
from local_backend.scheduler.model import WHOLE, Allocation
from local_backend.store.execs import ExecRow

_MOST_REQUEUES = 1


class Adopter:
    """Records the fate of execs, and adopts execs that are still running."""

    def __init__(self, records: Records, demand: Demand, launcher: Launcher) -> None:
        self._records = records
        self._demand = demand
        self._launcher = launcher
        self._known = {slot.id: slot for slot in launcher.machine.slots}

    def adopt(self, row: ExecRow, paths: ExecPaths) -> Active | None:
        """Return the attempt of an exec that still runs. Otherwise record the fate of the exec and return None."""
        try:
            found = self._launcher.adopt(paths, row.attempt)
        except OSError as problem:
            self._records.error(paths, wire.LOST, f"cannot read the files of the exec: {problem}")
            return None
        holds = row.slots is not None  # otherwise it is pending again: its row already has the end of its last attempt
        match found:
            case Outcome() | LostRun() | None:
                if holds:
                    self._over(row, paths, found)
                return None
            case run if holds:
                return self._take_over(row, paths, run)
            case run:
                run.close()
                return None

    def _over(self, row: ExecRow, paths: ExecPaths, found: Outcome | LostRun | None) -> None:
        """Record the fate of an attempt that does not run."""
        match found:
            case Outcome():
                self._records.running(paths, row.attempt)
                self._records.outcome(paths, found)
            case LostRun():
                self._lost(row, paths, found)
            case None:
                self._records.not_begun(paths)
                self._records.pending(paths)

    def _take_over(self, row: ExecRow, paths: ExecPaths, run: Run) -> Active:
        """Watch over a run. The exec's row names every slot that the run may hold."""
        if row.state != RECOVERING:
            self._records.running(paths, row.attempt)
        slots = tuple(self._known[name] for name in json.loads(row.slots or "[]") if name in self._known)
        self._records.adopted(paths, slots)
        active = Active(
            paths, run, row.attempt, Allocation(slots), slots, recorded=True, recovering=row.state == RECOVERING,
            elastic=row.elastic, share=self._demand.share(row.workload) / WHOLE,
        )
        if row.start_time is not None:
            self._remember(active, row, max(0.0, time.time() - row.start_time))
        launcher_log.note(paths.launcher_log, "supervisor", f"adopted by server {os.getpid()}")
        return active

    def _remember(self, active: Active, row: ExecRow, age: float) -> None:
        """Restore when the attempt began (`age` seconds ago) and how long it has been parked since then."""
        active.began -= age
        held, left = self._records.held(row)
        active.parked = max(0.0, age - held)
        if left is not None:
            since = max(0.0, time.time() - left)
            active.changed -= since
            active.parked = max(0.0, active.parked - since)

    def _lost(self, row: ExecRow, paths: ExecPaths, lost: LostRun) -> None:
        """Record an attempt that began and is gone without an outcome."""
        self._launcher.sweep(paths)
        self._records.running(paths, row.attempt)
        if row.stop_requested or row.deleted:
            self._records.killed(paths)
        elif lost.reboots is not None and lost.reboots <= _MOST_REQUEUES:
            self._launcher.note_reboot(paths)
            self._records.pending(paths, message="queued again: the machine was restarted while the job ran")
        else:
            why = lost.why if lost.reboots is None else "the machine was restarted again while the job ran"
            self._records.error(paths, wire.LOST, f"{why}; no process of the job is left")
