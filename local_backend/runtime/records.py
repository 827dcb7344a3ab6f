"""What the supervisor writes down about an exec: its state in the database, and a line in its launcher log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from dlicmd.contract import wire
from dlicmd.contract.states import ERROR, KILLED, PENDING, RECOVERING, RUNNING
from local_backend.runtime import launcher_log
from local_backend.runtime.launch import Outcome
from local_backend.runtime.paths import ExecPaths
from local_backend.scheduler.model import Slot
from local_backend.store import execs
from local_backend.store.database import Database
from local_backend.store.execs import ExecRow


class Records:
    """Moves execs from state to state. Every method may raise what the database raises; nothing is changed then."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pending(self, paths: ExecPaths, message: str | None = None) -> bool:
        """It waits for slots, for the first time or again."""
        return self._move(paths, PENDING, message=message)

    def running(self, paths: ExecPaths, attempt: int) -> bool:
        """Its runner has begun, or its driver has recovered."""
        return self._move(paths, RUNNING, attempt=attempt, message=None)

    def recovering(self, paths: ExecPaths, attempt: int) -> bool:
        """Its driver is started again, or goes back to what it has kept."""
        return self._move(paths, RECOVERING, attempt=attempt)

    def slots(self, paths: ExecPaths, slots: Iterable[Slot]) -> None:
        """It holds these slots."""
        ids = json.dumps([slot.id for slot in slots])
        self._database.write(lambda c: execs.note(c, paths.exec_id, slots=ids))

    def error(self, paths: ExecPaths, reason: str, message: str) -> bool:
        """It ended for a reason that is not in an outcome of a runner."""
        return self._move(paths, ERROR, message=message, reason=reason)

    def killed(self, paths: ExecPaths) -> bool:
        """It was stopped before it ran, or its runner had to be killed."""
        return self._move(paths, KILLED, message="stopped on request", reason=wire.STOPPED)

    def outcome(self, paths: ExecPaths, outcome: Outcome) -> bool:
        """Its runner wrote down how it ended."""
        return self._move(
            paths, outcome.state, attempt=outcome.attempt, end_time=outcome.end_time, exit_code=outcome.exit_code,
            message=outcome.message, reason=outcome.reason,
        )

    def waiting(self, rows: Mapping[str, ExecRow], messages: Mapping[str, str]) -> None:
        """What execs wait for; only what has changed is written, all at once."""
        news = {name: text for name, text in messages.items() if rows[name].message != text}
        if not news:
            return

        def write(connection: execs.Connection) -> None:
            for name, text in news.items():
                execs.note(connection, name, message=text)

        self._database.write(write)

    def _move(self, paths: ExecPaths, to: str, *, attempt: int | None = None, **values: object) -> bool:
        moved = self._database.write(lambda c: execs.transition(c, paths.exec_id, to, attempt=attempt, **values))
        if moved:
            why = values.get("message")
            launcher_log.note(paths.launcher_log, "supervisor", f"{to}: {why}" if why else to,
                              "ERROR" if to == ERROR else "INFO")
        return moved
