"""Resource plans: the tree, one plan, and changes of them, which the original did not offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body, Response

from dlicmd.contract import wire
from local_backend.api.backend import Backend, TheBackend, TheUser, administrator
from local_backend.api.bodies import JsonRoute
from local_backend.api.errors import ApiError
from local_backend.scheduler import plans
from local_backend.scheduler.model import Plan
from local_backend.scheduler.plans import PlanError

router = APIRouter(tags=["resource plans"], route_class=JsonRoute)

Written = Annotated[Any, Body()]
_DOES = "changes resource plans"


@router.get(wire.PLAN_TREE)
def tree(backend: TheBackend, _: TheUser) -> dict[str, Any]:
    """All plans, as one node with the others below it."""
    return plans.tree_object(backend.plans.tree)


@router.put(wire.PLAN_TREE)
def replace_tree(backend: TheBackend, user: TheUser, body: Written = None) -> dict[str, Any]:
    """Replace all plans by those of a document `{"plans": [...]}`. Jobs of plans that are gone count for the nearest
    plan above."""
    administrator(user, _DOES)
    return plans.tree_object(_change(backend, lambda _: plans.parse(body)))


@router.get(wire.PLAN + "/{name:path}")
def plan(backend: TheBackend, _: TheUser, name: str) -> dict[str, Any]:
    """One plan with those below it, by its path or, when there is only one of that name, its name."""
    return _shown(backend.plans.tree, name)


@router.put(wire.PLAN + "/{name:path}")
def put_plan(backend: TheBackend, user: TheUser, name: str, body: Written = None) -> dict[str, Any]:
    """Make or change one plan; `name` is its path, without the outermost plan."""
    administrator(user, _DOES)
    changed = _change(backend, lambda before: plans.put(before, _path(before, name), body))
    return _shown(changed, "/" + "/".join(_path(changed, name)))


@router.delete(wire.PLAN + "/{name:path}", status_code=204)
def delete_plan(backend: TheBackend, user: TheUser, name: str) -> Response:
    """Remove one plan and those below it."""
    administrator(user, _DOES)
    path, _found = _found_plan(backend.plans.tree, name)
    _change(backend, lambda before: plans.remove(before, path))
    return Response(status_code=204)


def _path(root: Plan, name: str) -> plans.Path:
    """Where a plan is, or is to be."""
    try:
        return plans.locate(root, name)[0]
    except PlanError:
        words = tuple(word for word in name.split("/") if word)
        return words if words[:1] == (root.name,) else (root.name, *words)


def _found_plan(root: Plan, name: str) -> tuple[plans.Path, Plan]:
    try:
        return plans.locate(root, name)
    except PlanError as problem:
        raise ApiError(404, _sentence(problem)) from None


def _shown(root: Plan, name: str) -> dict[str, Any]:
    path, found = _found_plan(root, name)
    return {"path": "/" + "/".join(path), **plans.describe(found)}


def _change(backend: Backend, edit: Callable[[Plan], Plan]) -> Plan:
    try:
        changed = backend.plans.change(edit)
    except PlanError as problem:
        raise ApiError(400, _sentence(problem)) from None
    backend.supervisor.wake()
    return changed


def _sentence(problem: PlanError) -> str:
    text = str(problem)
    return text[:1].upper() + text[1:]
