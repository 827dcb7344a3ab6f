"""One turn of the supervisor: compare rows, allocation and processes, and do what is due."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import psutil
from sqlalchemy.exc import SQLAlchemyError

from dlicmd.contract import wire
from dlicmd.contract.states import KILLED, PENDING, SUBMITTED
from local_backend import logs
from local_backend.measures import DECISION_SECONDS
from local_backend.runtime import launcher_log, leftovers, processes
from local_backend.runtime.active import Active
from local_backend.runtime.adoption import Adopter
from local_backend.runtime.beginning import Beginnings
from local_backend.runtime.demand import Demand
from local_backend.runtime.fetching import Fetching
from local_backend.runtime.health import Health, in_service
from local_backend.runtime.launch import read_identity, read_outcome, try_lock, write_attempt
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.planning import Plans
from local_backend.runtime.records import Records
from local_backend.runtime.removal import Remover
from local_backend.runtime.resizing import Resized, ResizeError, Shares, resizable
from local_backend.runtime.starter import Starter
from local_backend.scheduler.model import Decision, Machine, Reason, Slot
from local_backend.scheduler.policy import decide
from local_backend.settings import Settings
from local_backend.sources.connections import Connections
from local_backend.store import execs
from local_backend.store.database import Database
from local_backend.store.execs import ExecRow
from local_backend.store.unfinished import Unfinished

#: A runner that was told to stop gets the job's grace and this much more before it is killed itself.
_RUNNER_GRACE = 5.0
#: What went wrong with one exec is tried again after this many seconds.
_RETRY = 1.0
#: While somebody waits, all is looked at again after this many seconds though nothing has happened.
_SAFETY = 10.0
_log = logging.getLogger(__name__)


class Control:
    """The state of the supervisor and its steps. Used by one thread, but for the counts."""

    def __init__(
        self, settings: Settings, database: Database, starter: Starter, total: tuple[Slot, ...], health: Health
    ) -> None:
        self.total = total
        self._health = health
        self._settings = settings
        self._database = database
        self._plans = Plans(database)
        self._demand = Demand(
            total, lambda row, most: database.read(lambda c: execs.earlier_runs(c, row, most)),
            lambda row: self._records.held(row)[1], self._arrived,
        )
        self._records = Records(database, self._plans, self._demand.share)
        self._shares = Shares(self._records, total)
        self._fetching = Fetching(settings, self._records, Connections(settings, database))
        self._beginnings = Beginnings(settings, starter, self._records, self._demand, self._fetching.delivered)
        self.machine = Machine(total, psutil.virtual_memory().total, labels=settings.node_labels)
        #: What was decided last.
        self._decision = Decision()
        self._unfinished = Unfinished()
        self._remover = Remover(database)
        self._active: dict[str, Active] = {}
        #: When something is tried again that went wrong.
        self._retry_at: float | None = None

    # --- what the loop needs to know

    @property
    def everyone(self) -> list[Active]:
        """The attempts that start or run; also from other threads."""
        return list(self._active.values())

    @property
    def queued(self) -> int:
        return len(self._decision.waiting)

    def reason(self, exec_id: str) -> Reason | None:
        """Why an exec waits, or is parked, as decided last; None when it does not. From any thread."""
        last = self._decision
        return last.waiting.get(exec_id) or last.parked.get(exec_id) or self._fetching.reason(exec_id)

    @property
    def descriptors(self) -> list[int]:
        """Readable when something has happened to a runner or a fetcher."""
        runners = [fd for active in self._active.values() for fd in (active.ready, active.watch) if fd is not None]
        return runners + self._fetching.descriptors

    @property
    def timers(self) -> list[float]:
        """Moments on the monotonic clock at which a turn is due."""
        kills = [active.kill_at for active in self._active.values() if active.kill_at is not None]
        again = [at for at in (self._decision.again, self._retry_at) if at is not None]
        # Everything that frees a slot wakes the supervisor; should anything ever not, nobody waits for long.
        safety = [time.monotonic() + _SAFETY] if self._decision.waiting else []
        return [*self._demand.timers, *self._fetching.timers, *again, *kills, *safety]

    def close(self) -> None:
        """Let go of all runners."""
        for active in self._active.values():
            active.close()
        self._fetching.close()
        self._remover.close()

    # --- a turn

    def turn(self) -> None:
        """Do everything that is due. Raises what the database raises; a later turn does the rest."""
        self._retry_at = None
        for active in list(self._active.values()):
            with self._apart(active.exec_id):
                self._watch_over(active)
        rows = self._database.read(self._unfinished.read)
        self._fetching.turn(rows, self._paths)
        # Both of them all at once, for there may be thousands: what is new, and what was stopped while it waited.
        self._records.pending(*(self._paths(row) for row in rows if row.state == SUBMITTED and not _unwanted(row)))
        called_off: list[ExecRow] = []
        for row in rows:
            if self._asks_for_something(row):
                with self._apart(row.id):
                    if self._attend(row):
                        called_off.append(row)
        self._end(called_off)
        self._schedule(self._competing(rows))

    @contextmanager
    def _apart(self, exec_id: str) -> Iterator[None]:
        """What goes wrong with one exec (a job can do anything to its files) keeps no other waiting: it is tried again
        in a while. Not so what the database raises."""
        with logs.concerning(exec=exec_id):
            try:
                yield
            except SQLAlchemyError:
                raise
            except Exception as problem:
                fault = not isinstance(problem, OSError)
                _log.error("%s: %s; trying again in %g s", exec_id, problem, _RETRY, exc_info=fault)
                self._retry_at = time.monotonic() + _RETRY

    def _watch_over(self, active: Active) -> None:
        """Move on an attempt that starts or runs."""
        if active.ready is None and not active.recorded and not self._beginnings.begun(active):
            del self._active[active.exec_id]
            return
        if active.gone:
            self._conclude(active)
            return
        if active.recorded:
            self._shares.heed(active)
        if active.kill_at is not None and time.monotonic() >= active.kill_at:
            self._kill(active)

    def _competing(self, rows: Iterable[ExecRow]) -> list[ExecRow]:
        """The execs that have slots, or wait for some and for nothing else."""
        waiting = (row for row in rows if row.state in (SUBMITTED, PENDING) and self._fetching.ready(row))
        compete = {row.id for row in waiting if not _unwanted(row)} | self._active.keys()
        return [row for row in rows if row.id in compete]

    def _arrived(self, row: ExecRow) -> float | None:
        """When the data of an exec was here that it had to wait for."""
        return self._fetching.arrived(row)

    def on_ready(self, ready: set[int]) -> None:
        """Take note of runners that have begun or ended; `ready` are readable descriptors."""
        for active in list(self._active.values()):
            if active.ready in ready:
                active.read_ready()
            elif active.watch in ready:
                active.ended()

    def _asks_for_something(self, row: ExecRow) -> bool:
        """Whether an exec is to be moved on; not one that only waits for slots, of which there may be thousands."""
        return row.state != PENDING or _unwanted(row) or not self._fetching.ready(row)

    def _attend(self, row: ExecRow) -> bool:
        """Move one exec on as far as that takes no slots; whether it was stopped while it waits, and can end now."""
        active = self._active.get(row.id)
        if active is not None:
            if _unwanted(row):
                self._stop(active)
        elif row.terminal:
            self._remover.remove(self._paths(row))
        elif _unwanted(row):
            return self._fetching.stop(row)
        else:
            self._fetching.attend(row)
        return False

    def _end(self, rows: list[ExecRow]) -> None:
        """Record the end of execs that were stopped while they waited."""
        self._records.killed(*map(self._paths, rows))
        for row in rows:
            if row.deleted:
                self._remover.remove(self._paths(row))

    def _schedule(self, unfinished: list[ExecRow]) -> None:
        """Decide who gets which slots, and do it: slots are taken before others are given."""
        rows = {row.id: row for row in unfinished}
        tree = self._plans.tree
        self.machine = in_service(self.machine, self._health.drained, self._active.values())
        jobs = self._demand.jobs(unfinished, self._active, tree)
        with DECISION_SECONDS.time():
            decision = self._decision = decide(self.machine, tree, jobs, time.monotonic())
        for exec_id, sentence in decision.impossible.items():
            self._records.error(self._paths(rows[exec_id]), wire.NEVER_SCHEDULABLE, sentence)
        for exec_id, sentence in decision.expired.items():
            self._records.error(self._paths(rows[exec_id]), wire.PENDING_TIMEOUT, sentence)
        for exec_id, owner in decision.reclaim.items():
            with self._apart(exec_id):
                active = self._active[exec_id]
                active.reclaimed_for = active.reclaimed_for or owner
                self._stop(active)
        for exec_id, slots in decision.resize.items():
            with self._apart(exec_id):
                self._shares.allot(self._active[exec_id], slots)
        for exec_id, slots in decision.start.items():
            with self._apart(exec_id):
                row, kind = rows[exec_id], slots[0].kind
                begun = self._beginnings.begin(row, self._paths(row), slots, self.machine.count(kind))
                if begun is not None:
                    self._active[exec_id] = begun

    # --- slots of a running attempt

    def resize(self, exec_id: str, count: int | None) -> Resized:
        """Fix the slots of a running elastic exec to `count`, at once; with None leave them to the scheduler again.

        Raises ResizeError, and what database and disk raise.
        """
        row = self._database.read(lambda c: execs.get(c, exec_id))
        if row is None:
            raise ResizeError(f"Exec {exec_id!r} is not found")
        active = resizable(row, self._active.get(exec_id), count)
        has = slots = active.allocation.slots
        if count is not None:
            slots = self._shares.choice(active, count, self._demand.kind(row.job), self._active.values())
            self._check_allowed(exec_id, count, len(has))
        # First, so that no scheduler undoes it, whatever happens in between.
        self._database.write(lambda c: execs.note(c, exec_id, pinned=count))
        if slots != has:
            self._shares.allot(active, slots)
        return Resized(len(has), len(slots))

    def _check_allowed(self, exec_id: str, count: int, has: int) -> None:
        """Raises ResizeError when the scheduler would take some of these slots away again at once."""
        rows = self._competing(self._database.read(execs.unfinished))
        rows = [replace(row, pinned=count) if row.id == exec_id else row for row in rows]
        tree = self._plans.tree
        jobs = self._demand.jobs(rows, self._active, tree)
        # Even one that has not answered yet to what it was told last can be told something else.
        jobs = [replace(job, movable=True) if job.exec_id == exec_id else job for job in jobs]
        decision = decide(self.machine, tree, jobs, time.monotonic())
        allowed = len(decision.resize[exec_id]) if exec_id in decision.resize else has
        if allowed < count:
            raise ResizeError(f"Exec {exec_id} cannot have {count} slots: the limits of its plan, the memory of the "
                              f"machine and more urgent execs leave it {allowed}")

    # --- the end of an attempt

    def _stop(self, active: Active) -> None:
        """Pass a stop on to the runner, once; one that has not begun is fenced off."""
        if active.runner is None:
            self._call_off(active)
        elif active.kill_at is None:
            active.kill_at = time.monotonic() + self._settings.stop_grace + _RUNNER_GRACE
            launcher_log.note(active.paths.launcher_log, "supervisor", "stop requested")
            processes.send_signal(active.runner, signal.SIGTERM)

    def _call_off(self, active: Active) -> None:
        """Stop an attempt that has not begun. When its runner holds the lock it is about to say that it has."""
        lock = try_lock(active.paths)
        if lock is None:
            return
        try:
            runner = read_identity(active.paths)
            if runner is not None and runner.attempt == active.attempt:
                return  # it has begun, and ended: the news of both is under way
            write_attempt(active.paths, 0)
        finally:
            os.close(lock)
        self._records.killed(active.paths)
        active.close()
        del self._active[active.exec_id]

    def _kill(self, active: Active) -> None:
        """A runner that does not stop is killed; what it ran is swept when it is gone."""
        assert active.runner is not None
        active.killed, active.kill_at = True, time.monotonic() + _RUNNER_GRACE
        launcher_log.note(active.paths.launcher_log, "supervisor", "the runner does not stop; killing it", "ERROR")
        processes.send_signal(active.runner, signal.SIGKILL)

    def _conclude(self, active: Active) -> None:
        """Record the end of an attempt whose runner is gone, and give its slots back."""
        outcome = read_outcome(active.paths, active.attempt)
        if active.reclaimed_for is not None and (outcome is None or outcome.state == KILLED) and self._may_wait(active):
            leftovers.kill(active.paths)
            self._records.pending(active.paths, message="queued again: its slots were lent, and "
                                                        f"{active.reclaimed_for} needed them")
        elif outcome is not None:
            if not active.recovering:
                self._records.running(active.paths, active.attempt)  # when the news of its beginning was lost
            self._records.outcome(active.paths, outcome)
        else:
            leftovers.kill(active.paths)
            if active.killed:
                self._records.killed(active.paths)
            else:
                why = "its runner was killed" if active.paths.state.is_dir() else f"{active.paths.state} was removed"
                self._records.error(active.paths, wire.LOST, f"{why}; nothing of the job is left")
        del self._active[active.exec_id]

    def _may_wait(self, active: Active) -> bool:
        """Whether nobody wants the exec to end."""
        row = self._database.read(lambda c: execs.get(c, active.exec_id))
        return row is not None and not row.stop_requested

    # --- what an earlier server left

    def adopt(self) -> None:
        """Find out what became of every exec that was handed to a runner. Raises what database and disk raise."""
        adopter = Adopter(self._records, self._demand, self.total)
        rows = self._database.read(execs.unfinished)
        self._fetching.turn(rows, self._paths)
        for row in rows:
            if not row.terminal and row.attempt > 0:
                active = adopter.adopt(row, self._paths(row))
                if active is not None:
                    self._active[row.id] = active

    def _paths(self, row: ExecRow) -> ExecPaths:
        return self._settings.paths.job(row.id, row.creator)


def _unwanted(row: ExecRow) -> bool:
    """Whether somebody wants the exec to end."""
    return row.stop_requested or row.deleted
