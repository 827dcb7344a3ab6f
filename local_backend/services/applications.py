"""Applications: the scheduler's view of execs. A pack of jobs is an application, too."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dlicmd.contract.states import TERMINAL
from local_backend.errors import Conflict
from local_backend.services.access import Caller
from local_backend.services.execs import ExecService
from local_backend.services.views import PACK, pack_id
from local_backend.store import execs
from local_backend.store.execs import ExecRow
from local_backend.workload import SERVICE, TRAINING


@dataclass(frozen=True)
class StoppedApplication:
    """Result of a request to stop an application: the states of its jobs before, none for an unknown application."""

    app_id: str
    states: list[str]

    @property
    def active(self) -> list[str]:
        """States of the jobs that had not ended."""
        return [state for state in self.states if state not in TERMINAL]


@dataclass(frozen=True)
class ApplicationService:
    """Operations on applications."""

    execs: ExecService

    def rows(self, caller: Caller, states: Collection[str] | None = None) -> list[ExecRow]:
        """Return the execs that the caller sees, in these states (None: all)."""
        kinds = (TRAINING, SERVICE)
        return self.execs.base.database.read(lambda c: execs.of_user(c, caller.sees_of, states, kinds=kinds))

    def rows_with_packs(self, caller: Caller, states: Collection[str] | None) -> list[ExecRow]:
        """Return the execs in these states, and all jobs of their packs: the state of a pack follows from all jobs."""
        rows = self.rows(caller, states)
        packs = {pack_id(row) for row in rows} - {""}
        if not packs or states is None:
            return rows
        return [row for row in self.rows(caller) if row.state in states or pack_id(row) in packs]

    def named(self, caller: Caller, app_id: str) -> list[ExecRow]:
        """Return the exec with this id, or the jobs of this pack; none for an unknown id."""
        if execs.is_exec_id(app_id):
            row = self.execs.base.database.read(lambda c: execs.get(c, app_id))
            return [row] if row is not None and caller.sees(row) else []
        return [row for row in self.rows(caller) if pack_id(row) == app_id] if app_id.startswith(PACK) else []

    def stop(self, caller: Caller, app_id: str) -> None:
        """Stop an application, or all jobs of a pack. Raises NotFound (`exec.not_found`), Conflict (`exec.ended`)."""
        with self.execs.base.recorded(caller, "application.stop", app_id) as record:
            packed = [row for row in self.named(caller, app_id) if pack_id(row) == app_id]
            active = [row for row in packed if not row.terminal]
            if packed and not active:
                raise Conflict("exec.ended", f"All jobs of {app_id} have already finished")
            for row in active or [self.execs.find(caller, app_id)]:
                self.execs.request_stop(row)
                record.about.append(row.id)

    def stop_many(self, caller: Caller, ids: list[str]) -> list[StoppedApplication]:
        """Stop the applications and packs with these ids in one transaction. Return a result for each, in this
        order."""
        with self.execs.base.recorded(caller, "application.stop") as record:
            packs = {name: [row.id for row in self.named(caller, name)] for name in set(ids) if name.startswith(PACK)}
            single = {name for name in ids if execs.is_exec_id(name)}
            meant = sorted(single.union(*packs.values()))
            states = self.execs.base.database.write(lambda c: execs.request_stops(c, meant, caller.sees_of))
            record.about += [name for name, state in states.items() if state not in TERMINAL]
        self.execs.base.wake()
        return [
            StoppedApplication(name, [states[member] for member in packs.get(name, [name]) if member in states])
            for name in ids
        ]
