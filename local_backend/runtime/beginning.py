"""The beginning of an attempt: writes the files that its runner needs, and records the result of the start."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from dlicmd.contract import wire
from local_backend.runtime import environment, launcher_log, processes
from local_backend.runtime.active import Active
from local_backend.runtime.data_list import write_data_list
from local_backend.runtime.demand import Demand
from local_backend.runtime.launch import Launch, read_identity, reboots, requeues, try_lock, write_attempt
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.records import Records
from local_backend.runtime.run import Run
from local_backend.runtime.starter import Starter
from local_backend.scheduler.model import WHOLE, Allocation, Slot
from local_backend.settings import Settings
from local_backend.store.execs import ExecRow
from local_backend.vault import VaultError

#: Seconds before an exec is tried again that cannot be started now (disk full, no more processes).
_PUT_OFF = 5.0
#: The same, if another process holds the exec's lock for a moment.
_PUT_OFF_SHORT = 0.1
_START_TRIES = 3
#: Returns the facts about fetched data that the program gets: number of the source → values. Raises OSError.
Delivered = Callable[[ExecPaths], Mapping[int, dict[str, Any]]]


class Beginnings:
    """Begins attempts. Only the supervisor's thread may call it; every method may raise database errors."""

    def __init__(
        self, settings: Settings, starter: Starter, records: Records, demand: Demand, delivered: Delivered
    ) -> None:
        self._settings = settings
        self._starter = starter
        self._records = records
        self._demand = demand
        self._delivered = delivered
        #: Exec → how often its runner ended without a message.
        self._failures: Counter[str] = Counter()

    def begin(self, row: ExecRow, paths: ExecPaths, slots: tuple[Slot, ...], machine_slots: int) -> Active | None:
        """Begin a new attempt on `slots`; the machine has `machine_slots` of that kind. Return None when it cannot
        begin now: the exec stays pending. Its message says why, unless another process just holds its lock."""
        try:
            lock = try_lock(paths)
            if lock is None:
                self._demand.put_off(row.id, _PUT_OFF_SHORT)
                return None
            try:
                launch = self._prepare(row, paths, slots, machine_slots)
            finally:
                os.close(lock)
            server = self._starter.start(launch, warm=not self._failures[row.id])
        except (OSError, VaultError) as problem:
            self._later(paths, f"cannot start the job now, trying again: {problem}")
            return None
        run = Run(paths, launch.attempt, server=server, process=None)
        return Active(paths, run, launch.attempt, Allocation(slots), slots, elastic=row.elastic, share=launch.share)

    def _prepare(self, row: ExecRow, paths: ExecPaths, slots: tuple[Slot, ...], machine_slots: int) -> Launch:
        """Count the attempt and write the files that its runner needs. The last write allows the attempt to run."""
        spec, before = row.workload, read_identity(paths)
        again = before is not None and before.attempt == row.attempt
        attempt = self._records.attempt(paths, slots)
        settings = self._settings
        launch = Launch(
            spec=spec, attempt=attempt, home=settings.paths, slots=slots, machine_slots=machine_slots,
            environment=environment.inherited(os.environ), stop_grace=settings.stop_grace,
            leave_grace=settings.leave_grace, share=self._demand.share(spec) / WHOLE,
            die_with=processes.identify(os.getpid()) if settings.die_with_server else None,
            requeues=requeues(paths) + again, reboots=reboots(paths),
        )
        launch.write()
        write_data_list(spec, paths, self._delivered(paths))
        write_attempt(paths, attempt)
        for remark in self._demand.remarks(spec):
            launcher_log.note(paths.launcher_log, "supervisor", remark)
        if not paths.data_folders(spec)[0]:
            launcher_log.note(paths.launcher_log, "supervisor", "DATA_DIR is empty: the folder "
                                                                f"{settings.data_fs} (DLI_DATA_FS) does not exist",
                              "ERROR")
        return launch

    def begun(self, active: Active) -> bool:
        """Record whether the runner of an attempt has begun, and return it. If not, record the error that the runner
        reported, or that it ended without a message."""
        if active.run.begun:
            self._records.running(active.paths, active.attempt)
            active.recorded = True
            self._failures.pop(active.exec_id, None)
            return True
        active.run.close()
        if active.run.refused is not None:
            self._later(active.paths, active.run.refused)
            return False
        self._failures[active.exec_id] += 1
        failures = self._failures[active.exec_id]
        self._records.not_begun(active.paths)
        if failures >= _START_TRIES:
            self._records.error(active.paths, wire.LOST, f"the runner failed to start {failures} times; "
                                                         "look for the cause in the log of the backend")
        return False

    def _later(self, paths: ExecPaths, message: str) -> None:
        self._demand.put_off(paths.exec_id, _PUT_OFF)
        self._records.not_begun(paths, message)
