"""What the supervisor writes down about an exec: its state and its slots in the database, and a line in its launcher
log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from dlicmd.contract import wire
from dlicmd.contract.states import ERROR, KILLED, PENDING, RECOVERING, RUNNING
from local_backend.jobspec import JobSpec
from local_backend.runtime import launcher_log
from local_backend.runtime.launch import Outcome
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.planning import Plans
from local_backend.scheduler.model import WHOLE, Slot
from local_backend.store import execs, holdings
from local_backend.store.database import Database
from local_backend.store.execs import ExecRow
from local_backend.store.holdings import Part

#: Execs that are moved in one transaction, at most: each commit waits for the disk, and others write in between.
_TOGETHER = 200


class Records:
    """Moves execs from state to state. Every method may raise what the database raises; nothing is changed then."""

    def __init__(self, database: Database, plans: Plans, share: Callable[[JobSpec], int]) -> None:
        """`share` tells which parts of a slot, of WHOLE, a worker of a job takes."""
        self._database = database
        self._plans = plans
        self._share = share

    def pending(self, *those: ExecPaths, message: str | None = None) -> None:
        """They wait for slots, for the first time or again; all at once."""
        self._move(those, PENDING, message=message)

    def attempt(self, paths: ExecPaths, slots: Iterable[Slot]) -> int:
        """A new attempt on these slots; its number."""

        def write(connection: execs.Connection) -> int:
            row = _row(connection, paths)
            consumer = self._plans.consumer(connection, row)
            return execs.begin_attempt(connection, row.id, self._parts(row, slots), consumer)

        return self._database.write(write)

    def not_begun(self, paths: ExecPaths, message: str | None = None) -> None:
        """Its attempt did not begin, or there was none: it holds nothing, and goes on waiting."""

        def write(connection: execs.Connection) -> None:
            execs.release(connection, paths.exec_id)
            if message is not None:
                execs.note(connection, paths.exec_id, message=launcher_log.one_line(message))

        self._database.write(write)

    def running(self, paths: ExecPaths, attempt: int) -> None:
        """Its runner has begun, or its driver has recovered."""
        self._move([paths], RUNNING, attempt=attempt, message=None)

    def recovering(self, paths: ExecPaths, attempt: int) -> None:
        """Its driver is started again, or goes back to what it has kept."""
        self._move([paths], RECOVERING, attempt=attempt)

    def slots(self, paths: ExecPaths, slots: Iterable[Slot]) -> None:
        """It holds these slots."""

        def write(connection: execs.Connection) -> None:
            row = _row(connection, paths)
            execs.hold(connection, row.id, self._parts(row, slots), self._plans.consumer(connection, row))

        self._database.write(write)

    def adopted(self, paths: ExecPaths, slots: Iterable[Slot]) -> None:
        """It runs on these slots since before this server. An earlier version may have kept no history of that."""

        def write(connection: execs.Connection) -> None:
            row = execs.get(connection, paths.exec_id, deleted=True)
            if row is not None:
                consumer = self._plans.consumer(connection, row)
                holdings.hold(connection, row.id, row.user, consumer, self._parts(row, slots), time.time())

        self._database.write(write)

    def held(self, row: ExecRow) -> tuple[float, float | None]:
        """Seconds since its start in which an exec had slots, and when it gave up the last; None while it has some."""
        start = row.start_time or row.create_time
        return self._database.read(lambda c: holdings.covered(c, row.id, start, time.time()))

    def error(self, paths: ExecPaths, reason: str, message: str) -> None:
        """It ended for a reason that is not in an outcome of a runner."""
        self._move([paths], ERROR, message=message, reason=reason)

    def killed(self, *those: ExecPaths) -> None:
        """They were stopped before they ran, or their runners had to be killed; all at once."""
        self._move(those, KILLED, message="stopped on request", reason=wire.STOPPED)

    def outcome(self, paths: ExecPaths, outcome: Outcome) -> None:
        """Its runner wrote down how it ended."""
        self._move(
            [paths], outcome.state, attempt=outcome.attempt, end_time=outcome.end_time, exit_code=outcome.exit_code,
            message=outcome.message, reason=outcome.reason,
        )

    def _parts(self, row: ExecRow, slots: Iterable[Slot]) -> list[Part]:
        share = self._share(row.job) / WHOLE
        return [Part(slot.id, slot.kind, share) for slot in slots]

    def _move(
        self, those: Sequence[ExecPaths], to: str, *, attempt: int | None = None, **values: object
    ) -> None:
        """Where that is not legal, nothing is changed and noted."""
        why = values.get("message")
        for at in range(0, len(those), _TOGETHER):
            for paths in self._database.write(partial(_moved, those[at : at + _TOGETHER], to, attempt, values)):
                launcher_log.note(paths.launcher_log, "supervisor", f"{to}: {why}" if why else to,
                                  "ERROR" if to == ERROR else "INFO")


def _moved(
    those: Sequence[ExecPaths], to: str, attempt: int | None, values: dict[str, Any], connection: execs.Connection
) -> list[ExecPaths]:
    """Those that have moved."""
    return [one for one in those if execs.transition(connection, one.exec_id, to, attempt=attempt, **values)]


def _row(connection: execs.Connection, paths: ExecPaths) -> ExecRow:
    row = execs.get(connection, paths.exec_id, deleted=True)
    assert row is not None
    return row
