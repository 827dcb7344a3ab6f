"""Execs as the scheduler's policy sees them: their requests, their slots and their progress. All values are derived
from other records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from dlicmd.contract import wire
from local_backend.runtime import needs
from local_backend.runtime.active import Active
from local_backend.scheduler import plans
from local_backend.scheduler.model import ROOT, Machine, ResourcePlan, SchedulerJob
from local_backend.store import execs
from local_backend.store.execs import ExecRow
from local_backend.workload import SERVICE, Workload

#: The estimated run time of a job is the mean of the last two similar jobs: Tsafrir, Etsion, Feitelson, "Backfilling
#: using system-generated predictions rather than user runtime estimates", 2007.
_PREDICTORS = 2


class Demand:
    """The jobs that compete for slots. Times are on the monotonic clock, converted when this server first saw the
    exec."""

    def __init__(
        self, machine: Machine, earlier: Callable[[ExecRow, int], list[float]],
        left: Callable[[ExecRow], float | None], arrived: Callable[[ExecRow], float | None],
    ) -> None:
        """`earlier` returns the seconds that the last execs like one ran, see `execs.earlier_runs`. `left` returns
        when an exec gave up its last slot, `arrived` when its fetched data was complete (epoch seconds)."""
        self._earlier = earlier
        self._left, self._arrived = left, arrived
        self._started = time.time()
        #: Its slots do not change while the server runs.
        self._machine = machine
        self._known: dict[str, SchedulerJob] = {}
        #: Service → kernels of one slot.
        self._together: dict[str, int] = {}
        #: Likeness → estimated seconds of a run. Among thousands of new jobs, most are alike.
        self._lasting: dict[execs.Likeness, float | None] = {}
        self._plans = ROOT
        self._not_before: dict[str, float] = {}
        #: When running execs began.
        self._began: dict[str, float] = {}

    def jobs(self, rows: Iterable[ExecRow], active: Mapping[str, Active], tree: ResourcePlan) -> list[SchedulerJob]:
        """Return the jobs of these rows, without deferred ones, and forget all other jobs."""
        replan, self._plans = tree is not self._plans, tree
        known, self._known = self._known, {}
        self._lasting.clear()
        now = time.monotonic()
        found = []
        for row in rows:
            job = known.get(row.id) or self._job(row)
            if replan:
                job = replace(job, plan=self._plan(row.workload)[0])
            job = self._known[row.id] = self._waiting(job, row.id in active, now)
            if job.serves:
                has = len(active[row.id].allocation.slots) if row.id in active else None
                job = needs.wanting(job, row.wanted, row.least, self._together[row.id], has)
            if row.id in active:
                if active[row.id].recorded:
                    self._began[row.id] = active[row.id].began
                found.append(_running(_pinned(job, row.pinned), active[row.id], now, rests=row.rests))
            elif self._not_before.get(row.id, 0) <= now:
                self._not_before.pop(row.id, None)
                found.append(_pinned(job, row.pinned or None))
        self._not_before = {name: at for name, at in self._not_before.items() if name in self._known}
        self._began = {name: at for name, at in self._began.items() if name in self._known}
        self._together = {name: count for name, count in self._together.items() if name in self._known}
        return found

    def _waiting(self, job: SchedulerJob, active: bool, now: float) -> SchedulerJob:
        """Return the job. If it has run and waits again, restart its waiting time and add its earlier one to
        `waited`."""
        began = None if active else self._began.pop(job.exec_id, None)
        if began is None:
            return job
        return replace(job, requeued=now, waited=job.waited + max(0.0, began - job.entered))

    def put_off(self, exec_id: str, seconds: float) -> None:
        """Do not try this exec again before `seconds` have passed."""
        self._not_before[exec_id] = time.monotonic() + seconds

    @property
    def timers(self) -> list[float]:
        """Moments at which deferred execs may be tried again."""
        return list(self._not_before.values())

    def _job(self, row: ExecRow) -> SchedulerJob:
        spec = row.workload
        age = max(0.0, time.time() - row.create_time)
        if spec.service is None:
            found = needs.job(spec.resources, self._machine.kinds, spec.scheduling.user)
        else:
            each = self._together[row.id] = spec.service.kernels_per_slot
            found = needs.service(spec.resources, each, self._machine.kinds, spec.scheduling.user)
        return replace(
            found,
            exec_id=row.id, plan=self._plan(spec)[0], group="" if found.serves else spec.parent or "",
            since=time.monotonic() - age,
            priority=spec.scheduling.priority, patience=spec.scheduling.pending_timeout,
            requeued=self._requeued(row), waited=self._waited(row), accepted=row.create_time < self._started,
            lasts=None if spec.resources.elastic else self._lasts(row),
        )

    def _requeued(self, row: ExecRow) -> float | None:
        """Return when a pending exec began to wait for slots: when it gave up its last slot, when it was promoted after
        a rest, when its data was complete, or when a service got requests. The moment may be before the start of this
        server."""
        began = None if row.slots is not None else self._left(row) if row.attempt else self._arrived(row)
        if row.kind == SERVICE and row.slots is None:
            began = row.promoted if began is None else began
        if began is None:
            return None
        began = max(began, row.promoted or 0.0) if row.attempt else began
        return time.monotonic() - max(0.0, time.time() - began)

    def _waited(self, row: ExecRow) -> float:
        """Return the seconds that a requeued exec waited before its last attempt, or that a new exec waited for its
        data."""
        if not row.attempt and row.slots is None:
            return max(0.0, (self._arrived(row) or row.create_time) - row.create_time)
        if not row.attempt or row.slots is not None or row.start_time is None:
            return 0.0
        return max(0.0, row.start_time - row.create_time)

    def _lasts(self, row: ExecRow) -> float | None:
        """Return the estimated seconds of a fixed-size job: the mean of the last similar ones. None if there are
        none."""
        like = execs.likeness(row)
        if like not in self._lasting:
            before = self._earlier(row, _PREDICTORS)
            self._lasting[like] = fmean(before) if before else None
        return self._lasting[like]

    def kind(self, spec: Workload) -> str:
        """Return the kind of slot that a job runs on."""
        return needs.kind(spec.resources, self._machine.kinds)

    def share(self, spec: Workload) -> int:
        """Return the parts of a slot that a worker takes."""
        return needs.share(spec.resources, self.kind(spec))

    def remarks(self, spec: Workload) -> list[str]:
        """Return lines for the launcher log about requests that the job does not get as it asked."""
        found = needs.remarks(spec.resources, self._machine) if spec.service is None else []
        path, understood = self._plan(spec)
        if not understood:
            found.append(
                f"resource plan {spec.scheduling.consumer} (--consumer) does not exist; the job counts for "
                f"/{'/'.join(path)}"
            )
        return found

    def _plan(self, spec: Workload) -> tuple[plans.Path, bool]:
        serves = spec.kind == SERVICE
        return plans.resolve(self._plans, spec.scheduling.consumer, spec.scheduling.user, serves=serves)


def _pinned(job: SchedulerJob, slots: int | None) -> SchedulerJob:
    """Return the job with the number of slots that an administrator has fixed."""
    if slots is None:
        return job
    workers = slots // job.per_worker
    return replace(job, least=workers, most=workers, pinned=True)


def _running(job: SchedulerJob, active: Active, now: float, *, rests: bool) -> SchedulerJob:
    """Return the job as it runs. A job whose slots cannot change at the moment keeps its slots. One that `rests` is
    giving up its last slots."""
    measured = _measured(active.run.progress) if active.resizable else {}
    most, held = job.most, active.run.held
    if job.elastic and active.resizable and held is not None and held.usable is not None:
        most = max(job.least, min(most, held.usable))
    left = measured.get(wire.SECONDS_LEFT)
    ends = now + left if left is not None else None
    if ends is None and job.lasts is not None:
        ends = active.began + job.lasts
    return replace(
        job, running=True, movable=(active.resizable if job.elastic else active.movable) and not rests,
        leaving=active.leaving or rests,
        most=most, slots=tuple(slot.id for slot in active.allocation.slots),
        held=tuple(slot.id for slot in active.slots), started=active.began, changed=active.changed,
        waited=job.waited + active.parked, service=active.service(now), pause=measured.get(wire.PAUSE) or 0.0,
        step=measured.get(wire.STEP_SECONDS) or 0.0, ends=ends,
    )


def _measured(progress: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in the progress that can be used."""
    numbers = {name: value for name, value in progress.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if 0 <= value < 1e9}
