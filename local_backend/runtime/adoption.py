"""Determines what happened to an attempt while no server was running (docs/adoption.md)."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from dlicmd.contract.states import RECOVERING
from local_backend.measures import ADOPTIONS
from local_backend.runtime import launcher_log
from local_backend.runtime.active import Active
from local_backend.runtime.demand import Demand
from local_backend.runtime.launcher import Held, Launcher, LostRun, Outcome, Run
from local_backend.runtime.losses import LostRuns
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.records import Records
from local_backend.scheduler.model import WHOLE, Allocation, Slot
from local_backend.store.execs import ExecRow

#: Seconds after which a failed adoption is tried again.
_AGAIN = 1.0
_log = logging.getLogger(__name__)


@dataclass
class UnknownRun:
    """The run of an attempt while the server cannot find out whether the attempt lives. Its exec keeps its slots, and
    cannot be stopped."""

    refused: str | None = None
    begun: bool = False
    ended: bool = False
    connected: bool = False
    held: Held | None = None
    progress: Mapping[str, Any] = field(default_factory=dict)
    descriptors: list[int] = field(default_factory=list)
    #: When the adoption is tried again (monotonic).
    due: float = field(default_factory=lambda: time.monotonic() + _AGAIN)

    def tick(self) -> None:
        """Do nothing."""

    def on_ready(self, ready: Collection[int]) -> bool:
        """Return False: nothing is known."""
        return False

    def allocate(self, allocation: Allocation) -> None:
        """Do nothing: the exec keeps its slots."""

    def set_aside(self, sequence: int) -> None:
        """Do nothing: the adopted run is asked later."""

    def stop(self) -> None:
        """Do nothing: the adopted run is stopped later."""

    def kill(self) -> None:
        """Do nothing."""

    def cpu_seconds(self) -> float:
        """Return 0.0: the processes are unknown."""
        return 0.0

    def call_off(self) -> bool:
        """Return False: the attempt may run."""
        return False

    def outcome(self) -> Outcome | LostRun:
        """Return that the attempt is lost."""
        return LostRun("the server cannot find the runner of the job")

    def close(self) -> None:
        """Do nothing."""


class Adopter:
    """Records the fate of execs, and adopts execs that are still running."""

    def __init__(self, records: Records, demand: Demand, launcher: Launcher, losses: LostRuns) -> None:
        self._records = records
        self._demand = demand
        self._launcher = launcher
        self._losses = losses
        self._known = {slot.id: slot for slot in launcher.machine.slots}

    def adopt(self, row: ExecRow, paths: ExecPaths) -> Active | None:
        """Return the attempt of an exec that still runs. Otherwise record the fate of the exec and return None. If
        the fate cannot be found out now, return the attempt with an `UnknownRun`; call again when that run is due."""
        holds = row.slots is not None  # without slots, it is pending again: its row has the end of its last attempt
        try:
            match self._launcher.adopt(paths, row.attempt):
                case Outcome() | LostRun() | None as found:
                    if holds:
                        self._over(row, paths, found)
                case run if holds:
                    return self._take_over(row, paths, run)
                case run:
                    run.close()
        except OSError as problem:
            if holds:
                ADOPTIONS.labels("failed").inc()
                text = "cannot adopt %s: %s; the exec keeps its slots; trying again in %g s"
                _log.error(text, row.id, problem, _AGAIN)
                return self._active(row, paths, UnknownRun())
        return None

    def _over(self, row: ExecRow, paths: ExecPaths, found: Outcome | LostRun | None) -> None:
        """Record the fate of an attempt that does not run, after the end of all its processes. Raises OSError."""
        killed = self._launcher.sweep(paths)
        match found:
            case Outcome():
                self._records.running(paths, row.attempt)
                self._records.outcome(paths, found)
            case LostRun():
                self._lost(row, paths, found)
            case None if killed:  # the program has removed the record of its runner
                self._lost(row, paths, LostRun("the runner was killed"))
            case None:
                self._records.not_begun(paths)
                self._records.pending(paths)

    def _active(self, row: ExecRow, paths: ExecPaths, run: Run) -> Active:
        """Return the attempt, with every slot that the exec's row names. A slot that the machine no longer
        has belongs to this exec only."""
        kinds, kind = self._records.kinds(row), self._demand.kind(row.workload)
        names = json.loads(row.slots or "[]")
        slots = tuple(self._known.get(name) or Slot(name, kinds.get(name, kind)) for name in names)
        service = row.workload.service
        return Active(
            paths, run, row.attempt, Allocation(slots), slots, recovering=row.state == RECOVERING,
            elastic=row.elastic, share=self._demand.share(row.workload) / WHOLE,
            leave_timeout=0.0 if service is None else service.leave_timeout,
        )

    def _take_over(self, row: ExecRow, paths: ExecPaths, run: Run) -> Active:
        """Watch over a run. The exec's row names every slot that the run may hold."""
        if row.state != RECOVERING:
            self._records.running(paths, row.attempt)
        active = self._active(row, paths, run)
        ADOPTIONS.labels("adopted").inc()
        active.recorded = True
        self._records.adopted(paths, active.slots)
        if row.start_time is not None:
            self._remember(active, row, max(0.0, time.time() - row.start_time))
        launcher_log.note(paths.launcher_log, "supervisor", f"adopted by server {os.getpid()}")
        gone = ", ".join(sorted({slot.id for slot in active.slots} - self._known.keys()))
        if gone:
            message = f"the machine no longer has {gone}, which the job still holds"
            launcher_log.note(paths.launcher_log, "supervisor", message, "ERROR")
        return active

    def _remember(self, active: Active, row: ExecRow, age: float) -> None:
        """Restore when the attempt began (`age` seconds ago) and how long it has been parked since then."""
        active.began -= age
        held, left = self._records.held(row)
        active.parked = max(0.0, age - held)
        if left is not None:
            since = max(0.0, time.time() - max(left, row.promoted or 0.0))
            active.changed -= since
            active.parked = max(0.0, active.parked - since)

    def _lost(self, row: ExecRow, paths: ExecPaths, lost: LostRun) -> None:
        """Record an attempt that began and is gone without an outcome."""
        ADOPTIONS.labels("lost").inc()
        self._records.running(paths, row.attempt)
        if row.stop_requested or row.deleted:
            self._records.killed(paths)
        else:
            self._losses.record(row, paths, lost)
