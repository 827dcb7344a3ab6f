"""The beginning of an attempt: orders it from the launcher, and records the result of the start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from dlicmd.contract import wire
from dlicmd.contract.states import SUBMITTED
from local_backend.runtime import launcher_log
from local_backend.runtime.active import Active
from local_backend.runtime.data_list import write_data_list
from local_backend.runtime.demand import Demand
from local_backend.runtime.launcher import Launcher, RunOrder
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.records import Records
from local_backend.scheduler.model import WHOLE, Allocation, Slot
from local_backend.settings import Settings
from local_backend.store.execs import ExecRow
from local_backend.vault import VaultError

#: Seconds before an exec is tried again that cannot be started now (disk full, no more processes).
_PUT_OFF = 5.0
#: The same, while an earlier attempt of the exec is ending.
_PUT_OFF_SHORT = 0.1
_START_TRIES = 3
#: Returns the facts about fetched data that the program gets: number of the source → values. Raises OSError.
Delivered = Callable[[ExecPaths], Mapping[int, dict[str, Any]]]


class Beginnings:
    """Begins attempts. Only the supervisor's thread may call it; every method may raise database errors."""

    def __init__(
        self, settings: Settings, launcher: Launcher, records: Records, demand: Demand, delivered: Delivered
    ) -> None:
        self._settings = settings
        self._launcher = launcher
        self._records = records
        self._demand = demand
        self._delivered = delivered
        #: Exec → how often its runner ended without a message.
        self._failures: Counter[str] = Counter()

    def begin(self, row: ExecRow, paths: ExecPaths, slots: tuple[Slot, ...]) -> Active | None:
        """Begin a new attempt on `slots`. Return None when it cannot begin now: the exec stays pending. Its message
        says why, unless an earlier attempt is just ending."""
        try:
            with self._launcher.claim(paths) as claimed:
                if not claimed:
                    self._demand.put_off(row.id, _PUT_OFF_SHORT)
                    if row.state == SUBMITTED:
                        self._records.pending(paths)
                    return None
                order = self._prepare(row, paths, slots)
            run = self._launcher.start(order, warm=not self._failures[row.id])
        except (OSError, VaultError) as problem:
            self._later(paths, f"cannot start the job now, trying again: {problem}")
            return None
        allocation = Allocation(slots, rest=order.rest)
        service = order.workload.service
        return Active(
            paths, run, order.attempt, allocation, slots, elastic=row.elastic, share=order.share,
            leave_timeout=0.0 if service is None else service.leave_timeout,
        )

    def _prepare(self, row: ExecRow, paths: ExecPaths, slots: tuple[Slot, ...]) -> RunOrder:
        """Count the attempt, and write the files that its program and the launcher need."""
        spec = row.workload
        order = RunOrder(
            spec, self._records.attempt(paths, slots), slots, self._demand.share(spec) / WHOLE, row.rest_after)
        write_data_list(spec, paths, self._delivered(paths))
        self._launcher.prepare(order)
        for remark in self._demand.remarks(spec):
            launcher_log.note(paths.launcher_log, "supervisor", remark)
        if spec.service is None and not paths.data_folders(spec)[0]:
            message = f"DATA_DIR is empty: the folder {self._settings.data_fs} (DLI_DATA_FS) does not exist"
            launcher_log.note(paths.launcher_log, "supervisor", message, "ERROR")
        return order

    def begun(self, active: Active) -> bool:
        """Record whether the runner of an attempt has begun, and return it. If not, record the error that the runner
        reported, or that it ended without a message. Raises OSError while a process of the attempt lives."""
        if active.run.begun:
            self._records.running(active.paths, active.attempt)
            active.recorded = True
            self._failures.pop(active.exec_id, None)
            return True
        self._launcher.sweep(active.paths)
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
