"""Reclaim: take lent slots back from fixed-size jobs once the owner has waited for the plan's grace time. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from local_backend.scheduler.admission import Admission
from local_backend.scheduler.model import SchedulerJob
from local_backend.scheduler.sharing import NEARLY
from local_backend.scheduler.tree import PlanNode


class Reclaim:
    """Proposals to take slots back. The policy checks whether the owner really gets the slots."""

    def __init__(
        self, root: PlanNode, admission: Admission, targets: Mapping[str, int], fixed: Sequence[SchedulerJob],
        usable: Collection[str],
    ) -> None:
        self._root = root
        self._admission = admission
        self._targets = targets
        self._fixed = fixed
        self._usable = frozenset(usable)
        self._graces = {job.exec_id: _home(root, job).plan.reclaim_grace for job in fixed}
        self._wanting = list(self._find_wanting()) if self._possible else []

    @property
    def _possible(self) -> bool:
        return any(grace is not None for grace in self._graces.values())

    @property
    def moments(self) -> list[float]:
        """Times at which a grace time is over."""
        found = {grace for grace in self._graces.values() if grace is not None}
        return [job.entered + grace for job, _ in self._wanting for grace in found]

    def proposals(self, now: float) -> Iterator[tuple[SchedulerJob, list[SchedulerJob]]]:
        """Yield jobs that need slots, each with the fixed-size jobs (victims) that must end and be queued again for
        it.

        With the slots, the plan of the job must stay within its share. The plan of a victim must have more than its
        share, and a reclaim grace that the job has waited for. The youngest victims come first, and only if all of
        them free enough. A job that shares its slot is not a victim: its end does not free the whole slot that
        the waiting job needs. Elastic jobs are not victims: they give up slots while they run.
        """
        if not self._wanting:
            return
        held = self._held()
        coming = sum(self._gain(job) for job in self._fixed if job.leaving)
        for job, need in self._wanting:
            home = _home(self._root, job)
            if not job.running and held.get(home, 0) + job.size > home.due + NEARLY:
                continue
            missing = need - coming - (0 if job.running else self._admission.left)
            victims = self._victims(job, missing, dict(held), now)
            gain = sum(self._gain(victim) for victim in victims)
            if victims and (gain >= missing or (job.running and gain >= job.per_worker)):
                yield job, victims

    def _victims(
        self, job: SchedulerJob, missing: float, held: dict[PlanNode, float], now: float
    ) -> list[SchedulerJob]:
        found: list[SchedulerJob] = []
        for victim in sorted(self._fixed, key=lambda one: (-one.started, -one.since)):
            if missing <= 0:
                break
            grace, owner = self._graces[victim.exec_id], _home(self._root, victim)
            if victim.shares or victim.elastic or victim.leaving or not victim.movable or not self._gain(victim):
                continue
            if grace is None or now - job.entered < grace or held[owner] <= owner.due + NEARLY:
                continue
            found.append(victim)
            held[owner] -= victim.floor
            missing -= self._gain(victim)
        return found

    def _gain(self, victim: SchedulerJob) -> int:
        """Return the number of slots that other jobs can use when a job ends."""
        return 0 if victim.shares else len(self._usable.intersection(victim.slots))

    def _find_wanting(self) -> Iterator[tuple[SchedulerJob, float]]:
        """Yield jobs that lack slots, and how many: pending jobs, and elastic jobs below their reservation."""
        for refusal in self._admission.all_refused:
            if refusal.lacks in ("slots", "reserved") and not refusal.job.running:
                yield refusal.job, math.ceil(refusal.job.size)
        if self._root.reserved:
            got = self._granted()
            for job in self._admission.admitted:
                more = job.ceiling - self._targets.get(job.exec_id, job.ceiling)
                if job.running and job.elastic and more > 0:
                    nodes = _home(self._root, job).up()
                    short = max(min(node.plan.reserved, node.wanted) - got.get(node, 0.0) for node in nodes)
                    if min(more, short) >= job.per_worker:
                        yield job, min(more, short)

    def _granted(self) -> dict[PlanNode, float]:
        """Return the slots of every plan after the decision has been carried out."""
        got: dict[PlanNode, float] = {}
        granted = [(job, job.weight) for job in self._fixed]
        granted += [(job, self._targets.get(job.exec_id, job.size)) for job in self._admission.admitted]
        for job, slots in granted:
            for node in _home(self._root, job).up():
                got[node] = got.get(node, 0.0) + slots
        return got

    def _held(self) -> dict[PlanNode, float]:
        """Return the slots that each plan's own jobs need."""
        held: dict[PlanNode, float] = {}
        for job in [*self._fixed, *self._admission.admitted]:
            home = _home(self._root, job)
            held[home] = held.get(home, 0) + (job.weight if job.fixed else job.size)
        return held


def _home(root: PlanNode, job: SchedulerJob) -> PlanNode:
    """Return the parent of the node of the job's user."""
    home = root.find(job.plan).user(job.user).parent
    assert home is not None
    return home


def names(victims: Iterable[SchedulerJob], owner: SchedulerJob) -> dict[str, str]:
    """Return victim → owner of the slots that it was on, as in `Decision.reclaim`."""
    return {victim.exec_id: owner.exec_id for victim in victims}
