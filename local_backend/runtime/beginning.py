"""The beginning of an attempt: what its runner needs is written down, and what comes of its start is taken note of."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from dlicmd.contract import wire
from local_backend.runtime import environment, launcher_log, processes
from local_backend.runtime.active import Active
from local_backend.runtime.allocation import Allocation, write_allocation
from local_backend.runtime.data_list import write_data_list
from local_backend.runtime.demand import Demand
from local_backend.runtime.launch import Launch, read_identity, requeues, try_lock, write_attempt
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.records import Records
from local_backend.runtime.starter import Starter
from local_backend.scheduler.model import WHOLE, Slot
from local_backend.settings import Settings
from local_backend.store.execs import ExecRow
from local_backend.vault import VaultError

#: An exec that cannot be started now (disk full, no more processes) is tried again after this many seconds.
_PUT_OFF = 5.0
#: The same, when somebody else just holds its lock.
_PUT_OFF_SHORT = 0.1
_START_TRIES = 3
#: What the program of an exec is told of the data that was fetched for it: number of the source → that. Raises OSError.
Delivered = Callable[[ExecPaths], Mapping[int, dict[str, Any]]]


class Beginnings:
    """Begins attempts. Used by the supervisor's thread; every method may raise what the database raises."""

    def __init__(
        self, settings: Settings, starter: Starter, records: Records, demand: Demand, delivered: Delivered
    ) -> None:
        self._settings = settings
        self._starter = starter
        self._records = records
        self._demand = demand
        self._delivered = delivered
        #: Exec → how often its runner has ended without a word.
        self._failures: Counter[str] = Counter()

    def begin(self, row: ExecRow, paths: ExecPaths, slots: tuple[Slot, ...], machine_slots: int) -> Active | None:
        """Begin a new attempt on these slots, of `machine_slots` of their kind. None when it cannot be begun now: the
        exec goes on waiting, and its message says why."""
        try:
            lock = try_lock(paths)
            if lock is None:
                self._demand.put_off(row.id, _PUT_OFF_SHORT)
                return None
            try:
                launch = self._prepare(row, paths, slots, machine_slots)
            finally:
                os.close(lock)
            ready = self._starter.start(launch, warm=not self._failures[row.id])
        except (OSError, VaultError) as problem:
            self._later(paths, f"cannot be started now, trying again: {problem}")
            return None
        allocation = Allocation(launch.attempt, 0, slots)
        return Active(
            paths, launch.attempt, allocation, slots, ready=ready, elastic=row.elastic, share=launch.share
        )

    def _prepare(self, row: ExecRow, paths: ExecPaths, slots: tuple[Slot, ...], machine_slots: int) -> Launch:
        """Count the attempt and write down what its runner needs; the last write is what allows it to run."""
        spec, before = row.job, read_identity(paths)
        again = before is not None and before.attempt == row.attempt
        attempt = self._records.attempt(paths, slots)
        settings = self._settings
        launch = Launch(
            spec=spec, attempt=attempt, home=settings.paths, slots=slots, machine_slots=machine_slots,
            environment=environment.inherited(os.environ), stop_grace=settings.stop_grace,
            leave_grace=settings.leave_grace, share=self._demand.share(spec) / WHOLE,
            die_with=processes.identify(os.getpid()) if settings.die_with_server else None,
            requeues=requeues(paths) + again,
        )
        launch.write()
        write_data_list(spec, paths, self._delivered(paths))
        if spec.elastic:
            write_allocation(paths, Allocation(attempt, 0, slots))
        write_attempt(paths, attempt)
        for remark in self._demand.remarks(spec):
            launcher_log.note(paths.launcher_log, "supervisor", remark)
        if not paths.data_folders(spec)[0]:
            launcher_log.note(paths.launcher_log, "supervisor", "DATA_DIR is empty: there is no DLI_DATA_FS, "
                                                                f"{settings.data_fs}", "ERROR")
        return launch

    def begun(self, active: Active) -> bool:
        """The ready pipe of an attempt is closed: whether its runner has begun; if not it says why it cannot, or has
        ended without a word."""
        if active.runner is not None:
            self._records.running(active.paths, active.attempt)
            active.recorded = True
            self._failures.pop(active.exec_id, None)
            return True
        if active.said is not None:
            self._later(active.paths, str(active.said.get("error")))
            return False
        self._failures[active.exec_id] += 1
        failures = self._failures[active.exec_id]
        self._records.not_begun(active.paths)
        if failures >= _START_TRIES:
            self._records.error(active.paths, wire.LOST, f"its runner could not be started, {failures} times; "
                                                         "the log of the backend may say why")
        return False

    def _later(self, paths: ExecPaths, message: str) -> None:
        self._demand.put_off(paths.exec_id, _PUT_OFF)
        self._records.not_begun(paths, message)
