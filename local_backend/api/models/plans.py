"""Resource plans. The scheduler checks the documents of plans; see scheduler/plans.py."""

from __future__ import annotations

from typing import Annotated

from typing_extensions import NotRequired, TypedDict

from local_backend.api.models.common import described, one_of
from local_backend.scheduler.plans import POLICIES


@described
class PlanNode(TypedDict):
    """A plan as a node of the contract's tree. Values that are not set are absent."""

    id: str
    """Name of the plan"""
    pid: str
    """Name of the plan above it, empty for the outermost plan"""
    weight: NotRequired[float]
    """Weight among its neighbors; 1 by default"""
    reserved: NotRequired[int]
    """Slots that the plan gets before other plans get more than their own reservation"""
    max: NotRequired[int]
    """Maximum number of slots"""
    user_max: NotRequired[int]
    """Maximum number of slots of a user"""
    policy: NotRequired[Annotated[str, one_of(*POLICIES)]]
    """How users share the slots of the plan"""
    reclaim_grace: NotRequired[float]
    """Seconds that another plan waits for lent slots before fixed-size jobs of this plan end and are queued again"""
    childTreeDto: NotRequired[list[PlanNode]]
    """The plans below it"""


@described
class PlanChange(TypedDict):
    """A plan with the plans below it. Values that are absent get their default."""

    name: NotRequired[str]
    """Name of the plan"""
    weight: NotRequired[float | None]
    """Weight among its neighbors, 0.001 to 1000"""
    reserved: NotRequired[int | None]
    """Slots that the plan gets before other plans get more than their own reservation"""
    max: NotRequired[int | None]
    """Maximum number of slots"""
    user_max: NotRequired[int | None]
    """Maximum number of slots of a user"""
    policy: NotRequired[Annotated[str, one_of(*POLICIES)]]
    """How users share the slots of the plan"""
    reclaim_grace: NotRequired[float | None]
    """Seconds that another plan waits for lent slots before fixed-size jobs of this plan end and are queued again"""
    plans: NotRequired[list[PlanChange]]
    """The plans below it"""


@described
class PlanTree(TypedDict):
    """All plans below the outermost plan."""

    plans: list[PlanChange]
    """The plans"""


@described
class PlanObject(TypedDict):
    """A plan with its path."""

    path: str
    """Path of the plan"""
    name: str
    """Name of the plan"""
    weight: NotRequired[float]
    """Weight among its neighbors; 1 by default"""
    reserved: NotRequired[int]
    """Slots that the plan gets before other plans get more than their own reservation"""
    max: NotRequired[int]
    """Maximum number of slots"""
    user_max: NotRequired[int]
    """Maximum number of slots of a user"""
    policy: NotRequired[Annotated[str, one_of(*POLICIES)]]
    """How users share the slots of the plan"""
    reclaim_grace: NotRequired[float]
    """Seconds that another plan waits for lent slots before fixed-size jobs of this plan end and are queued again"""
    plans: NotRequired[list[PlanChange]]
    """The plans below it"""


@described
class PlanShareObject(TypedDict):
    """Slots of one kind of a plan, or of one of its users."""

    kind: str
    """Kind of the slots"""
    plan: str
    """Path of the plan"""
    user: NotRequired[str]
    """The user; absent for the plan as a whole"""
    due: float
    """Slots that are due to it, given what all jobs want now"""
    used: float
    """Slots that its jobs have"""
    wanted: float
    """Slots that its jobs could use"""


@described
class ExecForecastObject(TypedDict):
    """An exec before and after a change of the plans."""

    id: str
    """ID of the exec"""
    user: str
    """User that it counts for"""
    planNow: str
    """Path of its plan"""
    planThen: str
    """Path of its plan after the change"""
    slotsNow: int
    """Number of its slots"""
    slotsThen: int
    """Number of its slots after the change; 0 if it waits"""


@described
class PlanForecastObject(TypedDict):
    """The consequences of a change of the plans for the present jobs."""

    tree: PlanNode
    """The plans after the change"""
    now: list[PlanShareObject]
    """Slots that are due and used now"""
    then: list[PlanShareObject]
    """The same after the change"""
    execs: list[ExecForecastObject]
    """The pending and running execs"""
