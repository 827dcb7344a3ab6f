"""GET /console/admin/plans: the resource plans as a form, with a preview of the slots after a change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.datastructures import FormData
from starlette.responses import Response

from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.admin import admin_page, admin_router
from local_backend.console.changes import TheForm, done, texts_of
from local_backend.console.rendering import page
from local_backend.scheduler import plans
from local_backend.scheduler.forecast import PlanShare
from local_backend.scheduler.model import ResourcePlan

router = admin_router()

#: Fields of a plan in the form: whole numbers, then other numbers.
_WHOLE, _OTHER = ("reserved", "max", "user_max"), ("weight", "reclaim_grace")


@dataclass(frozen=True)
class PlanRow:
    """A plan as the form shows it: its path without the outermost plan, and its values as texts."""

    path: str
    values: dict[str, str]

    @property
    def name(self) -> str:
        """Name of the plan."""
        return self.path.rpartition("/")[2]

    @property
    def depth(self) -> int:
        """Number of plans above it, without the outermost one."""
        return self.path.count("/")


@dataclass
class ShareChange:
    """Fair share and used slots of a plan or user, now and after the change."""

    kind: str
    plan: str
    user: str
    due_now: float = 0.0
    used_now: float = 0.0
    due_then: float = 0.0
    used_then: float = 0.0


@router.get(places.ADMIN_PLANS)
def show(request: Request, services: TheServices) -> Response:
    """Show the form."""
    tree = services.plans.tree
    return admin_page(request, services, "admin_plans.html", rows=rows_of(tree), root=tree.name,
                      policies=plans.POLICIES)


@router.post(places.ADMIN_PLANS + "/rows")
def add_row(request: Request, services: TheServices, form: TheForm) -> Response:
    """Show the form as it was sent, with one more plan. Nothing is stored."""
    rows = _sent(form)
    parent, name = (one.strip(" /") for one in (_text(form, "parent"), _text(form, "name")))
    if name:
        path = f"{parent}/{name}" if parent else name
        above = [number for number, row in enumerate(rows, 1) if parent and f"{row.path}/".startswith(f"{parent}/")]
        rows.insert(above[-1] if above else len(rows), PlanRow(path, {}))
    return page(request, "admin_plans_rows.html", rows=rows, root=services.plans.tree.name, policies=plans.POLICIES)


@router.post(places.ADMIN_PLANS + "/preview")
def preview(request: Request, services: TheServices, caller: TheCaller, form: TheForm) -> Response:
    """Show the slots of plans, users and runs after the change, as a part of the page."""
    document = document_of(_sent(form))
    found = services.plans.preview(caller, document)
    return page(request, "admin_plans_preview.html", changes=changes(found.now, found.then), execs=found.execs)


@router.post(places.ADMIN_PLANS)
def save(request: Request, services: TheServices, caller: TheCaller, form: TheForm) -> Response:
    """Replace the plans."""
    services.plans.replace(caller, document_of(_sent(form)))
    return done(request, places.ADMIN_PLANS)


def rows_of(tree: ResourcePlan) -> list[PlanRow]:
    """Return the rows of the form for a tree."""
    found = []
    for path, plan in plans.walk(tree):
        if len(path) > 1:
            told = {name: value for name, value in plans.describe(plan).items() if name not in ("name", "plans")}
            found.append(PlanRow("/".join(path[1:]), {name: _shown(value) for name, value in told.items()}))
    return found


def document_of(rows: Iterable[PlanRow]) -> dict[str, Any]:
    """Return the document that the rows of a form mean. A text that is no number stays a text, which the service
    refuses."""
    root: dict[str, Any] = {"plans": []}
    known = {"": root}
    for row in rows:
        one: dict[str, Any] = {"name": row.name}
        for name, text in row.values.items():
            if text and not (name == "policy" and text == plans.POLICIES[0]):
                one[name] = _number(text, whole=name in _WHOLE) if name in _WHOLE + _OTHER else text
        above = known.get(row.path.rpartition("/")[0])
        if above is not None:  # else the plan above is removed, and this one with it
            above.setdefault("plans", []).append(one)
            known[row.path] = one
    return root


def changes(now: Iterable[PlanShare], then: Iterable[PlanShare]) -> list[ShareChange]:
    """Return the plans and users that have, or would have, slots."""
    found: dict[tuple[str, str, str], ShareChange] = {}
    for one in now:
        row = found.setdefault((one.kind, one.plan, one.user), ShareChange(one.kind, one.plan, one.user))
        row.due_now, row.used_now = one.due, one.used
    for one in then:
        row = found.setdefault((one.kind, one.plan, one.user), ShareChange(one.kind, one.plan, one.user))
        row.due_then, row.used_then = one.due, one.used
    return sorted(found.values(), key=lambda row: (row.kind, row.plan, row.user))


def _sent(form: FormData) -> list[PlanRow]:
    """Return the rows of a form that was sent, without those to be removed and those below them."""
    gone = texts_of(form, "remove")
    names = (*_WHOLE, *_OTHER, "policy")
    columns = {name: texts_of(form, name) for name in names}
    found = []
    for number, path in enumerate(texts_of(form, "path")):
        if not any(path == one or path.startswith(f"{one}/") for one in gone):
            values = {name: texts[number].strip() for name, texts in columns.items() if number < len(texts)}
            found.append(PlanRow(path, values))
    return found


def _text(form: FormData, name: str) -> str:
    return next(iter(texts_of(form, name)), "")


def _number(text: str, *, whole: bool) -> int | float | str:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        return text


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
