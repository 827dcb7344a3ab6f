"""Objects that all services of one server share: settings, database, audit log, and the running supervisor."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from local_backend import logs
from local_backend.audit import AuditLog, RefusedCounts, outputs_of, stamp
from local_backend.data.errors import DataError
from local_backend.data.storage import DataRoots
from local_backend.errors import BackendError, Unavailable
from local_backend.runtime.active import LiveValues
from local_backend.runtime.loop import Loop
from local_backend.runtime.occupancy import SlotPlace
from local_backend.runtime.resizing import Resized
from local_backend.scheduler.model import Machine, Reason, SchedulerJob
from local_backend.services.access import Caller
from local_backend.settings import Settings
from local_backend.sources.volumes import roots
from local_backend.store.database import Database

#: Maximum length of a name in an audit record, in characters.
_LONGEST = 500


class SupervisorCalls(Protocol):
    """The part of the runtime's supervisor that services use."""

    def wake(self) -> None:
        """Look at the database now."""

    def resize(self, exec_id: str, count: int | None) -> Resized:
        """Fix the number of slots of a running elastic exec; None returns the decision to the scheduler."""

    def reason(self, exec_id: str) -> Reason | None:
        """Return why an exec is pending."""

    def live(self, exec_id: str) -> LiveValues | None:
        """Return the last messages of the runner of an exec; None when it has none."""

    def places(self) -> list[SlotPlace]:
        """Return the slots of the machine with the execs that hold them."""

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time, in seconds, that the processes of each running exec used so far."""

    @property
    def jobs(self) -> Sequence[SchedulerJob]:
        """The pending and running jobs as the last decision saw them. Times are on the monotonic clock."""

    @property
    def machine(self) -> Machine:
        """The slots, the memory and the labels of the machine."""

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops of the runtime."""

    def completes_turn(self, seconds: float) -> bool:
        """Return whether the supervisor completes a turn within this many seconds."""

    def status(self) -> dict[str, object]:
        """Return slots, jobs and nursery, for GET /status."""


@dataclass
class AuditRecord:
    """The objects that an audit record names. The recorded block may add more."""

    about: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Recorder:
    """The settings, and the audit log of changes."""

    settings: Settings
    audit: AuditLog

    @contextlib.contextmanager
    def recorded(self, caller: Caller, action: str, *about: str) -> Iterator[AuditRecord]:
        """Write an audit record when the block ends: `done`, `refused`, `failed`, or `cut` if it was interrupted.
        Raises Denied (`auth.scope`) before the block if the caller's token does not permit the action.

        `action` is the object and the verb: `exec.stop`. `about` names the objects; the block may add more.
        """
        record = AuditRecord([*about])
        outcome, code = "cut", None
        try:
            caller.check_scope(action)
            yield record
            outcome = "done"
        except BackendError as problem:
            outcome, code = ("failed" if problem.is_failure else "refused"), problem.code
            raise
        except Exception:
            outcome, code = "failed", "server.failed"
            raise
        finally:
            self.note(caller, action, record.about, outcome, code)

    def permit(self, caller: Caller, action: str) -> None:
        """Raise Denied (`auth.scope`) if the caller's token does not permit an action whose body is read after this
        call. The refusal is recorded."""
        try:
            caller.check_scope(action)
        except BackendError as problem:
            self.note(caller, action, [], "refused", problem.code)
            raise

    def note(self, caller: Caller, action: str, about: list[str], outcome: str, code: str | None) -> None:
        """Write one audit record. Many refused calls of one user are counted instead."""
        entry: dict[str, object] = {
            "time": stamp(time.time()),
            "user": caller.name[:_LONGEST],
            "from": caller.address,
            **({"token": caller.token} if caller.token else {}),
            "action": action,
            "about": [text[:_LONGEST] for text in dict.fromkeys(about)],
            "outcome": outcome,
            **({} if code is None else {"code": code}),
            **{name: value for name, value in logs.fields().items() if name == "request"},
        }
        if outcome == "refused":
            self.audit.refuse(caller.name, entry)
        else:
            self.audit.write(entry)

    def data_roots(self, caller: Caller) -> DataRoots:
        """Return the folders that the caller's data may be in. Raises Unavailable when the server cannot read them."""
        try:
            return roots(self.settings, caller.name, caller.admin)
        except DataError as problem:
            raise Unavailable("volume.unreadable", str(problem)) from None


@dataclass(frozen=True)
class Base(Recorder):
    """The objects that most services share. `wake` makes the supervisor look at the database."""

    database: Database
    wake: Callable[[], None]


def audit_log(settings: Settings) -> AuditLog:
    """Return the audit log that the settings describe."""
    outputs = outputs_of(settings.audit_syslog, settings.audit_journal)
    counted = RefusedCounts(settings.paths.refused_calls, "calls.others", outputs)
    return AuditLog(settings.paths.audit, outputs, counted=counted)
