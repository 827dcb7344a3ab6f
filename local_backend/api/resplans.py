"""Resource plans: the tree, one plan, and changes, which the original did not offer."""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import APIRouter, Body, Path, Response

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import ADMINISTRATORS, EVERY_USER, UNNAMED, about
from local_backend.api.models.plans import (
    PlanChange,
    PlanForecastObject,
    PlanNode,
    PlanObject,
    PlanShareObject,
    PlanTree,
)
from local_backend.api.route import Route
from local_backend.scheduler import plans
from local_backend.scheduler.forecast import PlanShare
from local_backend.scheduler.model import ResourcePlan

router = APIRouter(tags=["resource plans"], route_class=Route)

#: A document that the service checks.
Written = Annotated[Any, Body()]
PlanName = Annotated[str, Path(description="path of the plan, or its name if unique")]
#: Errors of a change.
_REFUSED = {400: "body.json plan.invalid", 403: "auth.admin_only"}


@router.get(wire.PLAN_TREE)
@about(EVERY_USER)
def tree(services: TheServices, _: TheCaller) -> JsonAnswer[PlanNode]:
    """Return all plans, as one node with the others below it."""
    return _tree(services.plans.tree)


@router.put(wire.PLAN_TREE)
@about(ADMINISTRATORS, extension=UNNAMED, errors=_REFUSED, body=PlanTree)
def replace_tree(services: TheServices, caller: TheCaller, body: Written = None) -> JsonAnswer[PlanNode]:
    """Replace all plans by those of a document `{"plans": [...]}`. Jobs of a removed plan count for the nearest plan
    above it."""
    return _tree(services.plans.replace(caller, body))


@router.get(wire.PLAN_SHARES)
@about(f"{EVERY_USER}; only administrators see the users of a plan besides themselves", extension=UNNAMED)
def shares(services: TheServices, caller: TheCaller) -> JsonAnswer[list[PlanShareObject]]:
    """Return the slots that are due to each plan and user now, and the slots in use."""
    return JsonAnswer([share_object(one) for one in services.plans.shares(caller)])


@router.post(wire.PLAN_PREVIEW)
@about(ADMINISTRATORS, extension=UNNAMED, errors=_REFUSED, body=PlanTree)
def preview(services: TheServices, caller: TheCaller, body: Written = None) -> JsonAnswer[PlanForecastObject]:
    """Return what would happen to the pending and running jobs if the plans of a document `{"plans": [...]}` replaced
    all plans. Changes nothing."""
    found = services.plans.preview(caller, body)
    return JsonAnswer({
        "tree": cast("PlanNode", plans.tree_object(found.tree)),
        "now": [share_object(one) for one in found.now],
        "then": [share_object(one) for one in found.then],
        "execs": [{"id": one.id, "user": one.user, "planNow": one.plan_now, "planThen": one.plan_then,
                   "slotsNow": one.slots_now, "slotsThen": one.slots_then} for one in found.execs],
    })


@router.get(wire.PLAN + "/{name:path}")
@about(EVERY_USER, errors={404: "plan.not_found"})
def plan(services: TheServices, _: TheCaller, name: PlanName) -> JsonAnswer[PlanObject]:
    """Return one plan with the plans below it."""
    return _shown(*services.plans.find(name))


@router.put(wire.PLAN + "/{name:path}")
@about(ADMINISTRATORS, extension=UNNAMED, errors=_REFUSED, body=PlanChange)
def put_plan(
    services: TheServices, caller: TheCaller, name: PlanName, body: Written = None
) -> JsonAnswer[PlanObject]:
    """Create or change one plan. A new plan needs its path."""
    return _shown(*services.plans.put(caller, name, body))


@router.delete(wire.PLAN + "/{name:path}", status_code=204)
@about(ADMINISTRATORS, errors={400: "plan.invalid", 403: "auth.admin_only", 404: "plan.not_found"})
def delete_plan(services: TheServices, caller: TheCaller, name: PlanName) -> Response:
    """Remove one plan and the plans below it."""
    services.plans.remove(caller, name)
    return Response(status_code=204)


def share_object(one: PlanShare) -> PlanShareObject:
    """Return the slots of a plan or user as clients read them."""
    shown: PlanShareObject = {"kind": one.kind, "plan": one.plan, "due": round(one.due, 3),
                              "used": round(one.used, 3), "wanted": round(one.wanted, 3)}
    return {**shown, "user": one.user} if one.user else shown


def _tree(found: ResourcePlan) -> JsonAnswer[PlanNode]:
    return JsonAnswer(cast("PlanNode", plans.tree_object(found)))


def _shown(path: plans.Path, found: ResourcePlan) -> JsonAnswer[PlanObject]:
    return JsonAnswer(cast("PlanObject", {"path": "/" + "/".join(path), **plans.describe(found)}))
