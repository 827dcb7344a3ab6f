"""The supervisor's records of an exec: its state and its slots in the database, and a line in its launcher log."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection

from dlicmd.contract import wire
from dlicmd.contract.states import ERROR, KILLED, PENDING, RECOVERING, RUNNING, SUBMITTED
from local_backend.runtime import launcher_log
from local_backend.runtime.launcher import Outcome
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.planning import Plans
from local_backend.scheduler.model import WHOLE, Slot
from local_backend.store import execs, holdings
from local_backend.store.database import Database
from local_backend.store.execs import ExecRow
from local_backend.store.holdings import SlotPart
from local_backend.workload import Workload

#: Maximum execs that one transaction moves: each commit waits for the disk, and others write in between.
_TOGETHER = 200


class Records:
    """Moves execs from state to state. Every method may raise a database error; it then changes nothing."""

    def __init__(self, database: Database, plans: Plans, share: Callable[[Workload], int]) -> None:
        """`share` returns the parts of a slot, of WHOLE, that a worker of a job takes."""
        self._database = database
        self._plans = plans
        self._share = share

    def pending(
        self, *those: ExecPaths, message: str | None = None, progress: Mapping[str, Any] | None = None
    ) -> None:
        """Record that execs wait for slots, for the first time or again, with the progress of their last attempt. Takes
        any number of execs at once."""
        self._move(those, PENDING, message=message, progress=progress)

    def attempt(self, paths: ExecPaths, slots: Iterable[Slot]) -> int:
        """Record a new attempt on these slots; return its number. A new exec becomes pending by this."""

        def write(connection: Connection) -> tuple[bool, int]:
            row = _row(connection, paths)
            consumer = self._plans.consumer(connection, row)
            is_new = _wait(connection, row)
            return is_new, execs.begin_attempt(connection, row.id, self._parts(row, slots), consumer)

        is_new, number = self._database.write(write)
        if is_new:
            _note(paths, PENDING)
        return number

    def not_begun(self, paths: ExecPaths, message: str | None = None) -> None:
        """Record that the attempt of an exec did not begin, or that it had none. The exec holds no slots and stays
        pending."""

        def write(connection: Connection) -> bool:
            is_new = _wait(connection, _row(connection, paths))
            execs.release(connection, paths.exec_id)
            if message is not None:
                execs.note(connection, paths.exec_id, message=launcher_log.one_line(message))
            return is_new

        if self._database.write(write):
            _note(paths, PENDING)

    def running(self, paths: ExecPaths, attempt: int) -> None:
        """Record that the runner of an exec has begun, or that its driver has recovered."""
        self._move([paths], RUNNING, attempt=attempt, message=None)

    def recovering(self, paths: ExecPaths, attempt: int) -> None:
        """Record that the driver of an exec is being restarted, or is going back to its saved state."""
        self._move([paths], RECOVERING, attempt=attempt)

    def rested(self, paths: ExecPaths, epochs: int) -> None:
        """Record that an exec rests after this number of finished epochs, unless it was promoted meanwhile."""
        if self._database.write(lambda c: execs.rest(c, paths.exec_id, epochs)):
            text = f"the job rests after epoch {epochs}; its slots go to other jobs until it is promoted"
            launcher_log.note(paths.launcher_log, "supervisor", text)

    def slots(self, paths: ExecPaths, slots: Iterable[Slot]) -> None:
        """Record that an exec holds exactly these slots."""

        def write(connection: Connection) -> None:
            row = _row(connection, paths)
            execs.hold(connection, row.id, self._parts(row, slots), self._plans.consumer(connection, row))

        self._database.write(write)

    def adopted(self, paths: ExecPaths, slots: Iterable[Slot]) -> None:
        """Record the slots of an exec that was already running before this server started. An earlier version may
        have kept no history of them."""

        def write(connection: Connection) -> None:
            row = execs.get(connection, paths.exec_id, deleted=True)
            if row is not None:
                consumer = self._plans.consumer(connection, row)
                holdings.hold(connection, row.id, row.user, consumer, self._parts(row, slots), time.time())

        self._database.write(write)

    def held(self, row: ExecRow) -> tuple[float, float | None]:
        """Return the seconds since its start in which an exec held slots, and when it gave up the last one. The
        moment is None while the exec holds any, or if it never did."""
        start = row.start_time or row.create_time
        return self._database.read(lambda c: holdings.covered(c, row.id, start, time.time()))

    def kinds(self, row: ExecRow) -> dict[str, str]:
        """Return the kinds of the slots that an exec holds, by the ids of the slots. An earlier version may have kept
        no history of them."""
        return self._database.read(lambda c: holdings.held(c, row.id))

    def error(
        self, paths: ExecPaths, reason: str, message: str, progress: Mapping[str, Any] | None = None
    ) -> None:
        """Record that an exec ended with an error that no runner wrote in an outcome."""
        self._move([paths], ERROR, message=message, reason=reason, progress=progress)

    def killed(self, *those: ExecPaths, progress: Mapping[str, Any] | None = None) -> None:
        """Record that execs were stopped before they ran, or that their runners had to be killed. Takes any number of
        execs at once."""
        self._move(those, KILLED, message="stopped on request", reason=wire.STOPPED, progress=progress)

    def outcome(self, paths: ExecPaths, outcome: Outcome) -> None:
        """Record the outcome that the runner of an exec wrote. An attempt that was set aside ends nothing."""
        if outcome.state == PENDING:
            self._move(
                [paths], PENDING, attempt=outcome.attempt, message=outcome.message, progress=outcome.progress,
            )
            return
        self._move(
            [paths], outcome.state, attempt=outcome.attempt, end_time=outcome.end_time, exit_code=outcome.exit_code,
            message=outcome.message, reason=outcome.reason, progress=outcome.progress,
        )

    def _parts(self, row: ExecRow, slots: Iterable[Slot]) -> list[SlotPart]:
        share = self._share(row.workload) / WHOLE
        return [SlotPart(slot.id, slot.kind, share) for slot in slots]

    def _move(
        self, those: Sequence[ExecPaths], to: str, *, attempt: int | None = None,
        progress: Mapping[str, Any] | None = None, **values: object
    ) -> None:
        """Move execs to state `to`. For an exec that may not make this move, change and log nothing. Without
        `progress`, the recorded progress stays."""
        why = values.get("message")
        if progress is not None:
            values["progress"] = json.dumps(dict(progress))
        for at in range(0, len(those), _TOGETHER):
            for paths in self._database.write(partial(_moved, those[at : at + _TOGETHER], to, attempt, values)):
                _note(paths, to, why)


def _moved(
    those: Sequence[ExecPaths], to: str, attempt: int | None, values: dict[str, Any], connection: Connection
) -> list[ExecPaths]:
    """Return the execs that have moved."""
    return [one for one in those if execs.transition(connection, one.exec_id, to, attempt=attempt, **values)]


def _wait(connection: Connection, row: ExecRow) -> bool:
    """Let a new exec become pending. Return whether it is new."""
    return row.state == SUBMITTED and execs.transition(connection, row.id, PENDING)


def _note(paths: ExecPaths, to: str, why: object = None) -> None:
    """Write the new state of an exec into its launcher log."""
    launcher_log.note(paths.launcher_log, "supervisor", f"{to}: {why}" if why else to,
                      "ERROR" if to == ERROR else "INFO")


def _row(connection: Connection, paths: ExecPaths) -> ExecRow:
    row = execs.get(connection, paths.exec_id, deleted=True)
    assert row is not None
    return row
