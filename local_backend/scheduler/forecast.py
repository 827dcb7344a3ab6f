"""What the policy leads to: the slots that are due to each plan and user, and the jobs once all of them have followed
the decisions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from local_backend.scheduler.model import Decision, Machine, ResourcePlan, SchedulerJob
from local_backend.scheduler.policy import decide
from local_backend.scheduler.tree import PlanNode, grow

#: Seconds from now in which decisions count, and the maximum number of decisions. Elastic jobs keep their slots for a
#: while after a move, and a slot that two jobs claim equally rotates without end.
HORIZON, _MOST = 30.0, 50


@dataclass(frozen=True)
class PlanShare:
    """The slots of one kind of a plan, or of one of its users. `user` is empty for the plan as a whole."""

    kind: str
    #: Absolute path: `/local/training`.
    plan: str
    user: str
    #: Slots that are due to it, given what all jobs want now; slots that its jobs have; slots that they could use.
    due: float
    used: float
    wanted: float


def shares(machine: Machine, plans: ResourcePlan, jobs: Iterable[SchedulerJob]) -> list[PlanShare]:
    """Return the shares of all plans and of their users with jobs, for each kind of slot; each plan before its users
    and the plans below it."""
    jobs = [job for job in jobs if not job.leaving]
    found: list[PlanShare] = []
    for kind in sorted(machine.kinds | {job.kind for job in jobs}):
        root = grow(plans, [job for job in jobs if job.kind == kind])
        root.divide(len(machine.usable(kind)))
        found += _of_node(root, kind, _used(jobs, kind, root))
        root.dissolve()
    return found


def settled(machine: Machine, plans: ResourcePlan, jobs: Iterable[SchedulerJob], now: float) -> list[SchedulerJob]:
    """Return the jobs once all of them have followed the decisions of the next HORIZON seconds. A job that waits then
    has no slots. Jobs that are being stopped are gone by then, and elastic jobs can be resized."""
    present = [replace(job, movable=True) if job.elastic else job for job in jobs if not job.leaving]
    at = now
    for _ in range(_MOST):
        decision = decide(machine, plans, present, at)
        if decision.start or decision.resize or decision.reclaim:
            present = [_followed(job, decision, at) for job in present]
        elif decision.again is None or decision.again > now + HORIZON:
            break
        else:
            passed, at = decision.again - at, decision.again
            present = [replace(job, service=job.service + passed * len(job.held)) for job in present]
    return present


def _followed(job: SchedulerJob, decision: Decision, at: float) -> SchedulerJob:
    """Return a job after it has followed a decision."""
    name = job.exec_id
    if name in decision.reclaim:
        return replace(job, running=False, slots=(), held=(), requeued=at, waited=0.0)
    if name in decision.start:
        slots = tuple(slot.id for slot in decision.start[name])
        return replace(job, running=True, movable=True, slots=slots, held=slots, started=at, changed=at)
    if name in decision.resize:
        slots = tuple(slot.id for slot in decision.resize[name])
        return replace(job, slots=slots, held=slots, changed=at)
    return job


def _used(jobs: Sequence[SchedulerJob], kind: str, root: PlanNode) -> dict[tuple[str, str], float]:
    """Return the slots that jobs have, by plan and user."""
    found: dict[tuple[str, str], float] = {}
    packs: set[str] = set()
    for job in jobs:
        if job.kind != kind or not job.slots or job.pack in packs:
            continue
        if job.pack:
            packs.add(job.pack)
        key = root.find(job.plan).name, job.user
        found[key] = found.get(key, 0.0) + (1.0 if job.pack else job.weight)
    return found


def _of_node(node: PlanNode, kind: str, used: dict[tuple[str, str], float]) -> Iterator[PlanShare]:
    """Yield the shares of a plan, of its users, and of the plans below it."""
    below = f"{node.name}/"
    there = sum(slots for (plan, _), slots in used.items() if plan == node.name or plan.startswith(below))
    due = node.due if node.parent else min(node.due, node.wanted)
    yield PlanShare(kind, node.name, "", due, there, node.wanted)
    # The users of a plan with plans below it are below a node of their own, which has the same name.
    users = [one for child in node.children for one in ([child] if child.is_user else child.children)
             if one.is_user and (child.is_user or child.name == node.name)]
    for user in sorted(users, key=lambda one: one.plan.name):
        yield PlanShare(kind, node.name, user.plan.name, user.due, used.get((node.name, user.plan.name), 0.0),
                        user.wanted)
    for child in node.children:
        if not child.is_user and child.name != node.name:
            yield from _of_node(child, kind, used)
