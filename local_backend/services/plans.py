"""Resource plans: every user may read the tree, only administrators may change it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from local_backend.errors import Invalid, NotFound
from local_backend.runtime.planning import Plans, consumer
from local_backend.scheduler import plans
from local_backend.scheduler.forecast import PlanShare, settled, shares
from local_backend.scheduler.model import ResourcePlan, SchedulerJob
from local_backend.scheduler.plans import Path, PlanError
from local_backend.services.access import Caller
from local_backend.services.base import Base, SupervisorCalls
from local_backend.store import execs
from local_backend.store.execs import ExecRow

_ACTION = "change resource plans"


@dataclass(frozen=True)
class ExecForecast:
    """An exec before and after a change of the plans: the path of its plan, and its number of slots."""

    id: str
    user: str
    plan_now: str
    plan_then: str
    slots_now: int
    slots_then: int


@dataclass(frozen=True)
class PlanForecast:
    """The consequences of a change of the plans for the present jobs."""

    #: The plans as they would be, and what is due to each plan and user, and in use: now, and then.
    tree: ResourcePlan
    now: list[PlanShare]
    then: list[PlanShare]
    execs: list[ExecForecast]


@dataclass(frozen=True)
class PlanService:
    """Operations on resource plans."""

    base: Base
    plans: Plans
    supervisor: SupervisorCalls

    @property
    def tree(self) -> ResourcePlan:
        """The outermost plan, with all other plans below it."""
        return self.plans.tree

    def consumer(self, row: ExecRow) -> str:
        """Return the path of the plan that an exec counts for: `/local/training`."""
        return consumer(self.plans.tree, row)

    def find(self, name: str) -> tuple[Path, ResourcePlan]:
        """Return a plan and its path. `name` is the path, or a name that only one plan has. Raises NotFound
        (`plan.not_found`)."""
        return _located(self.plans.tree, name)

    def shares(self, caller: Caller) -> list[PlanShare]:
        """Return the slots that are due to each plan and user now, and those in use. Users who are not administrators
        see all plans, but of the users only themselves."""
        found = shares(self.supervisor.machine, self.plans.tree, self._jobs())
        return [one for one in found if caller.admin or one.user in ("", caller.name)]

    def preview(self, caller: Caller, document: Any) -> PlanForecast:
        """Return what would happen to the present jobs if the plans of `{"plans": [...]}` replaced all plans. Changes
        nothing. Raises Denied, Invalid (`plan.invalid`)."""
        with self.base.recorded(caller, "plan.preview"):
            caller.check_admin(_ACTION)
            try:
                tree = plans.parse(document)
            except PlanError as problem:
                raise Invalid("plan.invalid", _sentence(problem)) from None
        rows = {row.id: row for row in self.base.database.read(execs.unfinished)}
        machine, jobs = self.supervisor.machine, [job for job in self._jobs() if job.exec_id in rows]
        after = settled(machine, tree, _under(tree, jobs, rows), time.monotonic())
        slots = {job.exec_id: len(job.slots) for job in after}
        return PlanForecast(
            tree, shares(machine, self.plans.tree, jobs), shares(machine, tree, after),
            [ExecForecast(job.exec_id, job.user, self.consumer(rows[job.exec_id]), consumer(tree, rows[job.exec_id]),
                          len(job.slots), slots[job.exec_id]) for job in jobs if job.exec_id in slots],
        )

    def _jobs(self) -> list[SchedulerJob]:
        """Return the pending and running jobs with the slots that they have now: the last decision gave them some."""
        held: dict[str, list[str]] = {}
        for place in self.supervisor.places():
            for holder in place.holders:
                if not holder.leaving:
                    held.setdefault(holder.exec_id, []).append(place.slot.id)
        return [
            replace(job, running=True, slots=tuple(held[job.exec_id]), held=tuple(held[job.exec_id]))
            if job.exec_id in held else replace(job, slots=(), held=()) if job.slots else job
            for job in self.supervisor.jobs
        ]

    def replace(self, caller: Caller, document: Any) -> ResourcePlan:
        """Replace all plans by the plans of `{"plans": [...]}` and return the tree. Jobs of a removed plan count for
        the nearest plan above it. Raises Denied, Invalid (`plan.invalid`)."""
        with self.base.recorded(caller, "plan.replace"):
            return self._change(caller, lambda _: plans.parse(document))

    def put(self, caller: Caller, name: str, document: Any) -> tuple[Path, ResourcePlan]:
        """Create or change the plan at this path, and return it. Raises Denied, Invalid (`plan.invalid`)."""
        with self.base.recorded(caller, "plan.put", name):
            changed = self._change(caller, lambda before: plans.put(before, _path(before, name), document))
            return _located(changed, "/" + "/".join(_path(changed, name)))

    def remove(self, caller: Caller, name: str) -> None:
        """Remove a plan and the plans below it. Raises Denied, NotFound (`plan.not_found`), Invalid
        (`plan.invalid`)."""
        with self.base.recorded(caller, "plan.remove", name):
            caller.check_admin(_ACTION)
            path, _ = self.find(name)
            self._change(caller, lambda before: plans.remove(before, path))

    def _change(self, caller: Caller, edit: Callable[[ResourcePlan], ResourcePlan]) -> ResourcePlan:
        caller.check_admin(_ACTION)
        try:
            changed = self.plans.change(edit)
        except PlanError as problem:
            raise Invalid("plan.invalid", _sentence(problem)) from None
        self.base.wake()
        return changed


def _under(tree: ResourcePlan, jobs: Iterable[SchedulerJob], rows: Mapping[str, ExecRow]) -> list[SchedulerJob]:
    """Return the jobs as they count by these plans."""
    return [
        replace(job, plan=tuple(consumer(tree, rows[job.exec_id]).strip("/").split("/"))) for job in jobs
    ]


def _path(root: ResourcePlan, name: str) -> Path:
    """Return the path of an existing plan, or of a new one."""
    try:
        return plans.locate(root, name)[0]
    except PlanError:
        words = tuple(word for word in name.split("/") if word)
        return words if words[:1] == (root.name,) else (root.name, *words)


def _located(root: ResourcePlan, name: str) -> tuple[Path, ResourcePlan]:
    try:
        return plans.locate(root, name)
    except PlanError as problem:
        raise NotFound("plan.not_found", _sentence(problem)) from None


def _sentence(problem: PlanError) -> str:
    text = str(problem)
    return text[:1].upper() + text[1:]
