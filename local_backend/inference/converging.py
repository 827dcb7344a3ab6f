"""Decides what is to happen to the revisions of a model: which need kernels, which get requests, which give up their
kernels. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from local_backend.inference.control import Revision, RevisionLoad, RevisionState
from local_backend.inference.profile import ModelProfile
from local_backend.store.models import (
    DRAINING,
    FAILED,
    SERVING,
    STARTING,
    STORED,
    ModelRow,
    RevisionRow,
)

#: Weight of a revision that gets all requests.
ALL = 100
_SHOWN_TO_GATEWAY: Mapping[str, RevisionState] = {
    STARTING: "starting", SERVING: "serving", DRAINING: "draining", FAILED: "failed",
}


@dataclass(frozen=True)
class KernelsSeen:
    """What is known about the kernels of a revision at present."""

    #: Whether an exec runs its kernels, or waits for slots.
    alive: bool = False
    #: Whether a stop of this exec was requested.
    stopping: bool = False
    #: Why its exec has ended; None if it has not.
    failure: str | None = None
    #: Whether a kernel of this exec was ready before, as far as the server knows.
    proved: bool = True
    #: The last report of the gateway; None before the first one, or if the gateway does not know the revision.
    load: RevisionLoad | None = None
    #: Whether it has answered all requests since it gets no new ones.
    drained: bool = False

    @property
    def ready(self) -> int:
        """The number of kernels that take requests."""
        return 0 if self.load is None else sum(one.ready and not one.leaving for one in self.load.kernels)


@dataclass(frozen=True)
class Convergence:
    """What is to be changed, by the number of the revision."""

    #: New states, with the message of the revision.
    states: Mapping[int, tuple[str, str | None]] = field(default_factory=dict)
    #: Revisions that need an exec, and those whose exec is to stop.
    submit: frozenset[int] = frozenset()
    stop: frozenset[int] = frozenset()
    #: New weights of the revisions; None if they stay.
    traffic: Mapping[int, int] | None = None

    def __bool__(self) -> bool:
        return bool(self.states or self.submit or self.stop or self.traffic is not None)


def decide(
    model: ModelRow, rows: Sequence[RevisionRow], seen: Mapping[int, KernelsSeen], profile: ModelProfile
) -> Convergence:
    """Return the next changes of a model. When nothing changes any more, the model is as it is meant to be."""
    states: dict[int, tuple[str, str | None]] = {}
    traffic = _taken_over(model, rows, seen, profile)
    weights = model.weights if traffic is None else traffic
    wanted = {number for number, weight in weights.items() if weight > 0} if model.started else set()
    others_serve = all(_serves(row, seen, profile) for row in rows if row.number in wanted and row.state != FAILED)
    for row in rows:
        new = _next(row, seen[row.number], row.number in wanted, model.started, others_serve, profile)
        if new is not None:
            states[row.number] = new
    after = {row.number: states[row.number][0] if row.number in states else row.state for row in rows}
    return Convergence(
        states,
        frozenset(number for number, state in after.items() if state == STARTING and not seen[number].alive),
        frozenset(number for number, state in after.items()
                  if seen[number].alive and not seen[number].stopping
                  and (state in (FAILED, STORED) or (state == DRAINING and seen[number].drained))),
        traffic if traffic != model.weights else None,
    )


def _taken_over(
    model: ModelRow, rows: Sequence[RevisionRow], seen: Mapping[int, KernelsSeen], profile: ModelProfile
) -> dict[int, int] | None:
    """Return the weights after a started revision without a weight has become ready: it takes all requests."""
    ready = [row.number for row in rows if row.state == STARTING and not model.weights.get(row.number)
             and model.started and _is_ready(seen[row.number], profile)]
    return {ready[-1]: ALL} if ready else None


def _is_ready(seen: KernelsSeen, profile: ModelProfile) -> bool:
    return seen.failure is None and seen.ready >= max(1, profile.kernel_min)


def _serves(row: RevisionRow, seen: Mapping[int, KernelsSeen], profile: ModelProfile) -> bool:
    """Return whether a revision answers requests, now or after this decision."""
    return row.state == SERVING or (row.state == STARTING and _is_ready(seen[row.number], profile))


def _next(  # noqa: PLR0917
    row: RevisionRow, seen: KernelsSeen, wanted: bool, started: bool, others_serve: bool, profile: ModelProfile
) -> tuple[str, str | None] | None:
    """Return the next state and message of a revision; None if they stay."""
    if row.state in (STORED, FAILED):
        return (STARTING, None) if wanted and row.state == STORED else None
    if row.state == DRAINING:
        if wanted and seen.alive and not seen.stopping:
            return SERVING, None
        return None if seen.alive else (STORED, None)
    if not started:
        return DRAINING, None
    return _next_active(row, seen, wanted, others_serve, profile)


def _next_active(
    row: RevisionRow, seen: KernelsSeen, wanted: bool, others_serve: bool, profile: ModelProfile
) -> tuple[str, str | None] | None:
    """Return what `_next` returns, for a revision of a started model that starts or serves."""
    if row.exec_id is not None and seen.failure is not None:
        # A revision that served is worth another exec; one that never became ready is not.
        return (STARTING if row.state == SERVING and seen.proved else FAILED), seen.failure
    if row.state == STARTING:
        # A model that may be at zero has no kernel to wait for, unless it is to replace another revision.
        at_zero = wanted and profile.kernel_min == 0 and seen.alive
        return (SERVING, None) if _is_ready(seen, profile) or at_zero else None
    return None if wanted or not others_serve else (DRAINING, None)


def for_gateway(
    model: ModelRow, rows: Sequence[RevisionRow], keys: Mapping[int, str], why: Mapping[int, str]
) -> tuple[Revision, ...]:
    """Return the revisions as the gateway serves them. `keys` are those of the kernels, and `why` says why a revision
    has none. While others serve, a revision that starts gets no requests, and one that is to drain later still gets
    them."""
    weights = model.weights
    serving = [row for row in rows if row.state == SERVING]
    found = []
    for row in rows:
        state = _SHOWN_TO_GATEWAY.get(row.state)
        if state is None or row.exec_id is None or row.number not in keys:
            continue
        weight = weights.get(row.number, 0)
        if row.state == STARTING and serving:
            weight = 0
        elif row.state == SERVING and not any(weights.get(one.number) for one in serving):
            weight = ALL
        found.append(Revision(row.number, row.exec_id, keys[row.number], state, weight, why.get(row.number, "")))
    return tuple(found)


def least_kernels(
    row: RevisionRow, rows: Sequence[RevisionRow], seen: Mapping[int, KernelsSeen], profile: ModelProfile
) -> int:
    """Return the number of kernels that a revision needs whatever its load: as many as the revision that it replaces
    has now, or else those of the profile."""
    if row.state != STARTING:
        return profile.kernel_min
    replaced = max((seen[one.number].ready for one in rows if one.state == SERVING), default=0)
    most = profile.kernel_max if profile.kernel_max is not None else replaced
    return max(1 if any(one.state == SERVING for one in rows) else 0, profile.kernel_min, min(replaced, most))


def shown_state(model: ModelRow, rows: Sequence[RevisionRow]) -> str:
    """Return the state of a revision that stands for the whole model: `serving`, `starting`, `failed` or `stored`."""
    states = {row.state for row in rows}
    if not model.started:
        return SERVING if DRAINING in states or SERVING in states else STORED
    wanted = {row.state for row in rows if model.weights.get(row.number)}
    if SERVING in states:
        return SERVING
    return FAILED if FAILED in wanted and STARTING not in states else STARTING
