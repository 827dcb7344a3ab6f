"""One turn of the supervisor: compares rows, allocation and processes, and takes the actions that are due."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace

from sqlalchemy.exc import SQLAlchemyError

from dlicmd.contract import wire
from dlicmd.contract.states import KILLED, PENDING, SUBMITTED
from local_backend import logs
from local_backend.measures import DECISION_SECONDS
from local_backend.runtime import launcher_log
from local_backend.runtime.active import Active, LiveValues
from local_backend.runtime.adoption import Adopter, UnknownRun
from local_backend.runtime.beginning import Beginnings
from local_backend.runtime.demand import Demand
from local_backend.runtime.fetching import Fetching
from local_backend.runtime.launcher import Launcher, LostRun
from local_backend.runtime.losses import LostRuns
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.planning import Plans
from local_backend.runtime.records import Records
from local_backend.runtime.removal import Remover
from local_backend.runtime.resizing import Resized, ResizeError, Shares, resizable
from local_backend.scheduler.model import Decision, Reason, SchedulerJob
from local_backend.scheduler.policy import decide
from local_backend.settings import Settings
from local_backend.sources.connections import Connections
from local_backend.store import execs, searches
from local_backend.store.database import Database
from local_backend.store.execs import ExecRow
from local_backend.store.unfinished import Unfinished

#: Seconds beyond the job's grace period after which a stopped runner is killed itself.
_RUNNER_GRACE = 5.0
#: Seconds after which a failed action for one exec is tried again.
_RETRY = 1.0
#: Maximum seconds between turns while any exec waits, even without an event.
_SAFETY = 10.0
#: Maximum seconds for which an exec that rests keeps its slots, until its search has decided whether it trains on.
_DECISION = 1.0
#: Seconds that a starting server waits for the states of all adopted runners.
_STATE_PATIENCE = 1.0
#: Seconds that a starting server waits for the end of processes of execs that no longer exist.
_STRAY_PATIENCE = 10.0
_log = logging.getLogger(__name__)


class Control:
    """The state of the supervisor and its steps. Used by one thread, except for the counts."""

    def __init__(self, settings: Settings, database: Database, launcher: Launcher) -> None:
        #: The machine as the last decision saw it.
        self.machine = launcher.machine
        self._launcher = launcher
        self._settings = settings
        self._database = database
        self._plans = Plans(database)
        self._demand = Demand(
            self.machine, lambda row, most: database.read(lambda c: execs.earlier_runs(c, row, most)),
            lambda row: self._records.held(row)[1], self._arrived,
        )
        self._records = Records(database, self._plans, self._demand.share)
        self._shares = Shares(self._records, self.machine.slots)
        self._fetching = Fetching(settings, self._records, Connections(settings, database))
        self._losses = LostRuns(self._records, launcher)
        self._adopter = Adopter(self._records, self._demand, launcher, self._losses)
        self._beginnings = Beginnings(settings, launcher, self._records, self._demand, self._fetching.delivered)
        #: The last decision, and the jobs that it was about.
        self._decision = Decision()
        self.jobs: Sequence[SchedulerJob] = ()
        self._unfinished = Unfinished()
        self._remover = Remover(settings.paths, database)
        self._active: dict[str, Active] = {}
        #: When a failed action is tried again.
        self._retry_at: float | None = None

    # --- state for the event loop

    @property
    def everyone(self) -> list[Active]:
        """The attempts that are starting or running. Also readable from other threads."""
        return list(self._active.values())

    @property
    def queued(self) -> int:
        return len(self._decision.waiting)

    def reason(self, exec_id: str) -> Reason | None:
        """Return why an exec waits or is parked, according to the last decision; None when it does not wait. Call
        from any thread."""
        last = self._decision
        return last.waiting.get(exec_id) or last.parked.get(exec_id) or self._fetching.reason(exec_id)

    def live(self, exec_id: str) -> LiveValues | None:
        """Return the last messages of the runner of an exec; None when the exec has none. Call from any thread."""
        active = self._active.get(exec_id)
        return None if active is None else active.live

    @property
    def runners(self) -> list[int]:
        """Descriptors that become readable on an event of a runner."""
        return [fd for active in self._active.values() for fd in active.run.descriptors]

    @property
    def fetchers(self) -> list[int]:
        """Descriptors that become readable on an event of a fetcher."""
        return self._fetching.descriptors

    @property
    def timers(self) -> list[float]:
        """Moments on the monotonic clock at which a turn is due."""
        ours = [at for active in self._active.values() for at in (active.kill_at, active.run.due)]
        ours += [active.rested_at + _DECISION for active in self._active.values()
                 if active.rested_at is not None and active.allocation.slots and active.movable]
        again = [at for at in (*ours, self._decision.again, self._retry_at) if at is not None]
        # Every event that frees a slot wakes the supervisor. If one ever does not, no exec waits for long.
        safety = [time.monotonic() + _SAFETY] if self._decision.waiting else []
        return [*self._demand.timers, *self._fetching.timers, *again, *safety]

    def close(self) -> None:
        """Stop watching all runners; they keep running."""
        for active in self._active.values():
            active.run.close()
        self._fetching.close()
        self._remover.close()

    # --- a turn

    def turn(self) -> None:
        """Take all actions that are due. Raises database errors; a later turn then does the rest."""
        self._retry_at = None
        for active in list(self._active.values()):
            with self._apart(active.exec_id):
                self._watch_over(active)
        rows = self._database.read(self._unfinished.read)
        self._fetching.turn(rows, self._paths)
        called_off: list[ExecRow] = []
        for row in rows:
            if self._asks_for_something(row):
                with self._apart(row.id):
                    if self._attend(row):
                        called_off.append(row)
        # One call each for execs stopped while waiting and for new execs that wait: there may be thousands.
        self._end(called_off)
        competing = self._competing(rows)
        starting = self._decide(competing).start
        self._records.pending(*(self._paths(row) for row in rows
                                if row.state == SUBMITTED and not _unwanted(row) and row.id not in starting))
        self._carry_out({row.id: row for row in competing})
        self._tell_rests(rows)

    @contextmanager
    def _apart(self, exec_id: str) -> Iterator[None]:
        """Contain a failure of one exec, so that the other execs do not wait: a job can do anything to its files. The
        exec is tried again after `_RETRY` seconds. Database errors pass through."""
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
        """Advance an attempt that is starting or running."""
        if isinstance(active.run, UnknownRun):
            self._adopt_again(active, active.run)
            return
        active.run.tick()
        starting = not (active.run.begun or active.run.refused or active.run.ended)
        if not starting and not active.recorded and not self._beginnings.begun(active):
            del self._active[active.exec_id]
            return
        if active.run.ended:
            self._conclude(active)
            return
        if active.recorded:
            self._shares.heed(active)
        if active.kill_at is not None and time.monotonic() >= active.kill_at:
            self._kill(active)

    def _adopt_again(self, active: Active, run: UnknownRun) -> None:
        if time.monotonic() >= run.due:
            row = self._database.read(lambda c: execs.get(c, active.exec_id, deleted=True))
            assert row is not None, "only an exec without slots is removed"
            self._adopt(row)

    def _competing(self, rows: Iterable[ExecRow]) -> list[ExecRow]:
        """Return the execs that have slots, or that wait for slots and nothing else."""
        waiting = (row for row in rows if row.state in (SUBMITTED, PENDING) and self._fetching.ready(row))
        compete = {row.id for row in waiting if not _unwanted(row)} | self._active.keys()
        return [row for row in rows if row.id in compete and not (row.rests and self._has_no_slots(row))]

    def _has_no_slots(self, row: ExecRow) -> bool:
        active = self._active.get(row.id)
        return active is None or not active.slots

    def _arrived(self, row: ExecRow) -> float | None:
        """Return when all data that an exec had to wait for was fetched."""
        return self._fetching.arrived(row)

    def on_ready(self, ready: Set[int]) -> bool:
        """Process the messages and the ends of runners; `ready` are readable descriptors. Return whether a turn is
        needed."""
        found = False
        for active in self._active.values():
            if not ready.isdisjoint(active.run.descriptors):
                found |= active.on_ready(ready)
        return found

    def _asks_for_something(self, row: ExecRow) -> bool:
        """Return whether an exec needs an action. A pending exec that only waits for slots needs none; there may be
        thousands of them."""
        return row.state != PENDING or _unwanted(row) or not self._fetching.ready(row)

    def _attend(self, row: ExecRow) -> bool:
        """Advance one exec as far as possible without slots. Return whether it was stopped while it was waiting, and
        can end now."""
        active = self._active.get(row.id)
        if active is not None:
            if _unwanted(row):
                self._stop(active)
            elif active.recorded and active.elastic:
                self._rest(active, row)
        elif row.terminal:
            self._remover.remove(self._paths(row))
        elif _unwanted(row):
            return self._fetching.stop(row)
        else:
            self._fetching.attend(row)
        return False

    def _rest(self, active: Active, row: ExecRow) -> None:
        """Take the slots of an exec that rests, unless its search may let it train on at once. Its waiting time begins
        when it no longer rests."""
        now = time.monotonic()
        if not row.rests:
            if active.rested_at is not None and not active.allocation.slots:
                active.changed = now
            active.rested_at = None
            return
        active.rested_at = active.rested_at or now
        if active.allocation.slots:
            may_wait = not row.idle and now < active.rested_at + _DECISION
            if not (may_wait and self._database.read(lambda c: searches.awaits(c, row.id))):
                self._shares.allot(active, (), row.rest_after)

    def _tell_rests(self, rows: Iterable[ExecRow]) -> None:
        """Tell runners how far their jobs train now, if that has changed. End the processes of resting jobs: of those
        whose search is over, and of those that have rested longest, if too many jobs rest."""
        resting: list[Active] = []
        parents: dict[str, str | None] = {}
        for row in rows:
            active = self._active.get(row.id)
            if active is None or not active.elastic or not active.movable or active.run.held is None:
                continue
            if active.allocation.rest != row.rest_after:
                with self._apart(row.id):
                    self._shares.allot(active, active.allocation.slots, row.rest_after)
            if row.rested is not None and not active.slots and active.resizable and active.run.held.stored:
                resting.append(active)
                parents[row.id] = row.parent
        if not resting:
            return
        over = self._database.read(lambda c: searches.over(c, {one for one in parents.values() if one is not None}))
        resting.sort(key=lambda active: (parents[active.exec_id] not in over, active.changed))
        unneeded = sum(parent in over for parent in parents.values())
        for active in resting[: max(unneeded, len(resting) - self._settings.rested_kept)]:
            if active.asked != active.allocation.sequence:
                active.asked = active.allocation.sequence
                active.run.set_aside(active.asked)

    def _end(self, rows: list[ExecRow]) -> None:
        """Record the end of execs that were stopped while they were waiting."""
        self._records.killed(*map(self._paths, rows))
        for row in rows:
            if row.deleted:
                self._remover.remove(self._paths(row))

    def _decide(self, unfinished: list[ExecRow]) -> Decision:
        """Decide which exec gets which slots."""
        tree = self._plans.tree
        self._look_at_machine()
        jobs = self.jobs = self._demand.jobs(unfinished, self._active, tree)
        with DECISION_SECONDS.time():
            self._decision = decide(self.machine, tree, jobs, time.monotonic())
        return self._decision

    def _carry_out(self, rows: Mapping[str, ExecRow]) -> None:
        """Carry out the decision about these execs. Slots are taken away before others are given."""
        decision = self._decision
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
                self._shares.allot(self._active[exec_id], slots, rows[exec_id].rest_after)
        for exec_id, slots in decision.start.items():
            with self._apart(exec_id):
                begun = self._beginnings.begin(rows[exec_id], self._paths(rows[exec_id]), slots)
                if begun is not None:
                    self._active[exec_id] = begun

    def _look_at_machine(self) -> None:
        """Read which slots must not be used now. Log the reason for the jobs that are moved or should be."""
        before, self.machine = self.machine.drained, self._launcher.machine
        for slot, why in self.machine.drained.items() - before.items():
            for active in self._active.values():
                if slot in {held.id for held in active.slots}:
                    launcher_log.note(active.paths.launcher_log, "supervisor", f"{slot} is out of service: {why}")

    # --- slots of a running attempt

    def is_known(self, exec_id: str) -> bool:
        """Return whether the slots of an exec are known, or it has none: not while its runner is about to send them."""
        active = self._active.get(exec_id)
        return active is None or not active.recorded or active.run.ended or active.run.held is not None

    def resize(self, exec_id: str, count: int | None) -> Resized:
        """Fix the slots of a running elastic exec to `count`, at once; with None, let the scheduler decide again.

        Raises ResizeError, and database errors.
        """
        row = self._database.read(lambda c: execs.get(c, exec_id))
        if row is None:
            raise ResizeError(f"Exec {exec_id!r} is not found")
        active = resizable(row, self._active.get(exec_id), count)
        has = slots = active.allocation.slots
        if count is not None:
            slots = self._shares.choice(active, count, self._demand.kind(row.workload), self._active.values())
            self._check_allowed(exec_id, count, len(has))
        # Pin first, so that no scheduler run undoes the change, even after a crash in between.
        self._database.write(lambda c: execs.note(c, exec_id, pinned=count))
        if slots != has:
            self._shares.allot(active, slots, row.rest_after)
        return Resized(len(has), len(slots))

    def _check_allowed(self, exec_id: str, count: int, has: int) -> None:
        """Raise ResizeError when the scheduler would at once take some of these slots away again."""
        rows = self._competing(self._database.read(execs.unfinished))
        rows = [replace(row, pinned=count) if row.id == exec_id else row for row in rows]
        tree = self._plans.tree
        jobs = self._demand.jobs(rows, self._active, tree)
        # The exec can be resized even if its runner has not yet confirmed the previous allocation.
        jobs = [replace(job, movable=True) if job.exec_id == exec_id else job for job in jobs]
        decision = decide(self.machine, tree, jobs, time.monotonic())
        allowed = len(decision.resize[exec_id]) if exec_id in decision.resize else has
        if allowed < count:
            raise ResizeError(f"Exec {exec_id} cannot have {count} slots: the limits of its plan, the memory of the "
                              f"machine or more urgent execs allow only {allowed}")

    # --- the end of an attempt

    def _stop(self, active: Active) -> None:
        """Pass a stop on to the runner, once. Fence off an attempt that has not begun."""
        if not active.run.begun:
            self._call_off(active)
        elif active.kill_at is None:
            active.run.stop()
            grace = max(self._settings.stop_grace, active.leave_timeout)
            active.kill_at = time.monotonic() + grace + _RUNNER_GRACE
            launcher_log.note(active.paths.launcher_log, "supervisor", "stop requested")

    def _call_off(self, active: Active) -> None:
        """Stop an attempt that has not begun. If it is just beginning, return: its runner is about to say so."""
        if active.run.call_off():
            self._records.killed(active.paths)
            active.run.close()
            del self._active[active.exec_id]

    def _kill(self, active: Active) -> None:
        """Kill a runner that does not stop. Its processes are swept after its end."""
        active.killed, active.kill_at = True, time.monotonic() + _RUNNER_GRACE
        launcher_log.note(active.paths.launcher_log, "supervisor", "the runner does not stop; killing it", "ERROR")
        active.run.kill()

    def _conclude(self, active: Active) -> None:
        """Record the end of an attempt whose runner is gone, and release its slots. Raises OSError while processes of
        the attempt live. A program can write an outcome and kill its runner, so an outcome does not prove their end."""
        self._launcher.sweep(active.paths)
        found, said = active.run.outcome(), active.run.progress
        stopped = isinstance(found, LostRun) or found.state == KILLED
        if active.reclaimed_for is not None and stopped and self._may_wait(active):
            why = f"queued again: its slots were lent, and {active.reclaimed_for} needed them"
            self._records.pending(active.paths, message=why, progress=said)
        elif isinstance(found, LostRun):
            row = None if active.killed else self._may_wait(active)
            if row is None:
                self._records.killed(active.paths, progress=said)
            else:
                self._losses.record(row, active.paths, found, said)
        else:
            if not active.recovering:
                self._records.running(active.paths, active.attempt)  # in case the event of its start was lost
            self._records.outcome(active.paths, found)
        del self._active[active.exec_id]

    def _may_wait(self, active: Active) -> ExecRow | None:
        """Return the exec if it may be queued again, because no stop or deletion was requested."""
        row = self._database.read(lambda c: execs.get(c, active.exec_id))
        return None if row is None or row.stop_requested else row

    # --- adoption after a restart of the server

    def adopt(self) -> None:
        """Determine the fate of every exec that was handed to a runner, and adopt the living ones. Raises errors of
        database and disk."""
        rows, last = self._database.read(lambda c: (execs.unfinished(c), execs.last_number(c)))
        living = [row for row in rows if not row.terminal]
        self._sweep_strays({row.id for row in living}, last)  # an exec without an attempt may have a fetcher
        self._fetching.turn(rows, self._paths)
        for row in living:
            if row.attempt > 0:
                self._adopt(row)
        self._await_states()

    def _sweep_strays(self, kept: Set[str], last: int) -> None:
        """End processes of execs that are over or no longer exist: the slots on which they are count as free."""
        until = time.monotonic() + _STRAY_PATIENCE
        while True:
            try:
                if killed := self._launcher.sweep_strays(kept, last):
                    _log.warning("killed %d processes of execs that no longer exist", killed)
                return
            except OSError as problem:
                if time.monotonic() > until:
                    _log.error("%s; their slots count as free", problem)
                    return
                time.sleep(_RETRY)

    def _adopt(self, row: ExecRow) -> None:
        active = self._adopter.adopt(row, self._paths(row))
        if active is not None:
            self._active[row.id] = active
        else:
            self._active.pop(row.id, None)

    def _await_states(self) -> None:
        """Wait until all adopted runners have sent their state. A suspended runner may send it later."""
        until = time.monotonic() + _STATE_PATIENCE
        while silent := [active for active in self._active.values() if active.run.connected and not active.run.held]:
            poll = select.poll()
            for active in silent:
                for fd in active.run.descriptors:
                    poll.register(fd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(max(0.0, until - time.monotonic()) * 1000)}
            if not ready or time.monotonic() >= until:
                return  # the program of a job may send other messages without end
            self.on_ready(ready)

    def _paths(self, row: ExecRow) -> ExecPaths:
        return self._settings.paths.job(row.id, row.creator)


def _unwanted(row: ExecRow) -> bool:
    """Return whether a user has requested the end of the exec."""
    return row.stop_requested or row.deleted
