"""Resource plans: the tree, one plan, and changes, which the original did not offer."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Response

from dlicmd.contract import wire
from local_backend.api.bodies import JsonRoute
from local_backend.api.depends import TheCaller, TheServices
from local_backend.scheduler import plans
from local_backend.scheduler.model import ResourcePlan

router = APIRouter(tags=["resource plans"], route_class=JsonRoute)

Written = Annotated[Any, Body()]


@router.get(wire.PLAN_TREE)
def tree(services: TheServices, _: TheCaller) -> dict[str, Any]:
    """Return all plans, as one node with the others below it."""
    return plans.tree_object(services.plans.tree)


@router.put(wire.PLAN_TREE)
def replace_tree(services: TheServices, caller: TheCaller, body: Written = None) -> dict[str, Any]:
    """Replace all plans by those of a document `{"plans": [...]}`. Jobs of a removed plan count for the nearest plan
    above it."""
    return plans.tree_object(services.plans.replace(caller, body))


@router.get(wire.PLAN + "/{name:path}")
def plan(services: TheServices, _: TheCaller, name: str) -> dict[str, Any]:
    """Return one plan with the plans below it. `name` is its path, or its name if only one plan has that name."""
    return _shown(*services.plans.find(name))


@router.put(wire.PLAN + "/{name:path}")
def put_plan(services: TheServices, caller: TheCaller, name: str, body: Written = None) -> dict[str, Any]:
    """Create or change one plan. `name` is its path, without the outermost plan."""
    return _shown(*services.plans.put(caller, name, body))


@router.delete(wire.PLAN + "/{name:path}", status_code=204)
def delete_plan(services: TheServices, caller: TheCaller, name: str) -> Response:
    """Remove one plan and the plans below it."""
    services.plans.remove(caller, name)
    return Response(status_code=204)


def _shown(path: plans.Path, found: ResourcePlan) -> dict[str, Any]:
    return {"path": "/" + "/".join(path), **plans.describe(found)}
