"""Determines what happened to an attempt while no server was running (docs/adoption.md)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

from dlicmd.contract import wire
from dlicmd.contract.states import RECOVERING
from local_backend.boot import boot_id
from local_backend.runtime import launcher_log, leftovers
from local_backend.runtime.active import Active
from local_backend.runtime.demand import Demand
from local_backend.runtime.launch import (
    Outcome,
    RunnerIdentity,
    note_reboot,
    read_attempt,
    read_identity,
    read_outcome,
    reboots,
    try_lock,
    write_attempt,
)
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.records import Records
from local_backend.runtime.run import Run
from local_backend.scheduler.model import WHOLE, Allocation, Slot
from local_backend.store.execs import ExecRow

_PATIENCE = 10.0
_MOST_REQUEUES = 1


@dataclass(frozen=True)
class Ended:
    """The runner wrote an outcome."""

    outcome: Outcome


@dataclass(frozen=True)
class Alive:
    """The runner lives and must be watched."""

    runner: RunnerIdentity


@dataclass(frozen=True)
class Lost:
    """The attempt began, its runner is gone, and no outcome exists. The attempt is fenced off and cannot return."""

    runner: RunnerIdentity | None
    rebooted: bool


@dataclass(frozen=True)
class NeverBegan:
    """No process was started for the attempt. The attempt is fenced off, so another one can start safely."""


Fate = Ended | Alive | Lost | NeverBegan


def examine(paths: ExecPaths, attempt: int) -> Fate:
    """Return the fate of an attempt. Raises OSError when its files cannot be used.

    Only the holder of runner.lock may start or fence off an attempt. A runner holds the lock from before its first
    process until after its last. While this function holds the lock, no process of the attempt can start.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        lock = try_lock(paths)
        if lock is not None:
            try:
                return _without_runner(paths, attempt)
            finally:
                os.close(lock)
        runner = read_identity(paths)
        if runner is not None and runner.attempt == attempt and read_outcome(paths, attempt) is None:
            return Alive(runner)
        if time.monotonic() > deadline:
            return Lost(runner, rebooted=False)
        time.sleep(0.02)  # the runner is just starting or just ending


def _without_runner(paths: ExecPaths, attempt: int) -> Fate:
    outcome = read_outcome(paths, attempt)
    if outcome is not None:
        return Ended(outcome)
    if read_attempt(paths) != 0:
        write_attempt(paths, 0)
    runner = read_identity(paths)
    if runner is None or runner.attempt != attempt:
        return NeverBegan()
    return Lost(runner, rebooted=runner.boot_id != boot_id())


class Adopter:
    """Records the fate of execs, and adopts execs that are still running."""

    def __init__(self, records: Records, demand: Demand, total: Iterable[Slot]) -> None:
        """`total`: the slots of the machine."""
        self._records = records
        self._demand = demand
        self._known = {slot.id: slot for slot in total}

    def adopt(self, row: ExecRow, paths: ExecPaths) -> Active | None:
        """Return the attempt of an exec whose runner lives. Otherwise record the fate of the exec and return None."""
        try:
            fate = examine(paths, row.attempt)
        except OSError as problem:
            self._records.error(paths, wire.LOST, f"cannot read the files of the exec: {problem}")
            return None
        if row.slots is None:
            return None  # the exec is pending again: its row already has the end of its last attempt
        match fate:
            case Ended(outcome):
                self._records.running(paths, row.attempt)
                self._records.outcome(paths, outcome)
            case Alive(runner):
                return self._take_over(row, paths, runner)
            case Lost(_, rebooted):
                self._lost(row, paths, rebooted)
            case NeverBegan():
                self._records.not_begun(paths)
                self._records.pending(paths)
        return None

    def _take_over(self, row: ExecRow, paths: ExecPaths, runner: RunnerIdentity) -> Active:
        """Connect to a living runner. The exec's row names every slot that the runner may hold."""
        if row.state != RECOVERING:
            self._records.running(paths, row.attempt)
        slots = tuple(self._known[name] for name in json.loads(row.slots or "[]") if name in self._known)
        self._records.adopted(paths, slots)
        run = Run(paths, row.attempt, server=None, process=runner.process)
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

    def _lost(self, row: ExecRow, paths: ExecPaths, rebooted: bool) -> None:
        """Record an attempt that began and is gone without an outcome."""
        leftovers.kill(paths)
        self._records.running(paths, row.attempt)
        if row.stop_requested or row.deleted:
            self._records.killed(paths)
        elif rebooted and reboots(paths) < _MOST_REQUEUES:
            note_reboot(paths)
            self._records.pending(paths, message="queued again: the machine was restarted while the job ran")
        else:
            why = "the machine was restarted again while the job ran" if rebooted else "the runner was killed"
            self._records.error(paths, wire.LOST, f"{why}; no process of the job is left")
