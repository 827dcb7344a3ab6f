"""Entry into a generation: members compare versions, and members that are behind copy the newest state.

All members take the same path: newcomers, survivors of a death that have not applied a step yet, and members that
restart from a snapshot. A newcomer in the middle of an epoch is a *shadow* for one step. The other members compute that
step without the shadow while they send the state, because parameters do not change before the step is applied. The
shadow then takes part in the sum and applies the step like all members.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from local_backend.elastic.collective.group import Group
from local_backend.elastic.plan import Plan
from local_backend.elastic.state.replica import Replica
from local_backend.elastic.state.transfer import Sending, receive_state
from local_backend.elastic.worker.trainer import Trainer

#: Stages of a version. STEPPED: within an epoch or just after its last step. ENDED: at the boundary, the callbacks of
#: the epoch's end have run. TOLD: the work that depends on the values of the epoch is done. BEGUN: the callbacks of the
#: next epoch's beginning have run.
STEPPED, ENDED, TOLD, BEGUN = 0, 1, 2, 3


@dataclass(frozen=True)
class Entry:
    """How this worker has entered a generation."""

    version: int
    #: Ranks that compute the next step; None for all.
    holders: tuple[int, ...] | None
    #: The transfer of the state to other members. The worker must wait for it before it changes the state.
    sending: Sending | None


def enter(
    group: Group, version: int, replica: Replica, trainer: Trainer, replay: Callable[[Any, int], None]
) -> Entry:
    """Agree with all members of `group` on one state.

    `replay(callback, version)` runs the missed hooks of a callback whose state cannot be copied.

    Raises GroupBroken and Interrupted.
    """
    versions = _exchange(group, version, trainer.device)
    top = max(versions)
    holders = tuple(rank for rank, other in enumerate(versions) if other == top)
    behind = [rank for rank, other in enumerate(versions) if other != top]
    newcomers = all(versions[rank] == 0 for rank in behind)
    shadows = bool(behind) and newcomers and trainer.overlaps and in_epoch(trainer.plan, top)
    # Each holder sends the state to its share of the members that are behind.
    served = {rank: holders[i % len(holders)] for i, rank in enumerate(behind)}
    if group.rank in served:
        state = receive_state(group, served[group.rank], trainer.device)
        replica.restore(state, lambda callback: replay(callback, top))
        return Entry(top, holders if shadows else None, None)
    receivers = [rank for rank, holder in served.items() if holder == group.rank]
    sending = None
    if receivers:
        # Shards overwrite the live buffers while the state is being sent.
        trainer.relayout()
        sending = Sending(group, receivers, replica.capture(trainer.committed))
    if sending is not None and not shadows:
        sending.join()
        sending = None
    return Entry(top, holders if shadows else None, sending)


def in_epoch(plan: Plan, version: int) -> bool:
    """Return whether a worker at this version computes a step next."""
    applied, stage = version >> 2, version & 3
    return applied < plan.steps and (stage == BEGUN or applied % plan.steps_per_epoch != 0)


def _exchange(group: Group, version: int, device: torch.device) -> list[int]:
    """Return the versions of all members, in order of rank."""
    if group.size == 1:
        return [version]
    versions = torch.empty(group.size, dtype=torch.int64, device=device)
    group.all_gather(versions, torch.tensor([version], dtype=torch.int64, device=device))
    return versions.tolist()
