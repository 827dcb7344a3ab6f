"""Resource plans: every user may read the tree, only administrators may change it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from local_backend.errors import Invalid, NotFound
from local_backend.runtime.planning import Plans, consumer
from local_backend.scheduler import plans
from local_backend.scheduler.model import ResourcePlan
from local_backend.scheduler.plans import Path, PlanError
from local_backend.services.access import Caller
from local_backend.services.base import Base
from local_backend.store.execs import ExecRow

_ACTION = "changes resource plans"


@dataclass(frozen=True)
class PlanService:
    """Operations on resource plans."""

    base: Base
    plans: Plans

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
