"""Entering a generation: members compare versions, and whoever is behind copies the state of one that is ahead.

There is one path for all: newcomers, survivors that a death caught before they applied a step, and members that begin
again from a snapshot. A newcomer in the middle of an epoch is a *shadow* for one step: the others compute that step
without it while the state is on its way, for parameters do not change before the step is applied; it then takes part
in the sum and applies it like everybody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from local_backend.elastic.group import Group
from local_backend.elastic.plan import Plan
from local_backend.elastic.replica import Replica
from local_backend.elastic.training import Trainer
from local_backend.elastic.transfer import Sending, receive_state

#: Stages of a version: within an epoch or just after its last step; at the boundary, the callbacks of the epoch's end
#: have run; the values of the epoch were told, and what depends on them is done; the callbacks of the next epoch's
#: beginning have run.
STEPPED, ENDED, TOLD, BEGUN = 0, 1, 2, 3


@dataclass(frozen=True)
class Entry:
    """How this worker came in."""

    version: int
    #: Ranks that compute the next step; None for all.
    holders: tuple[int, ...] | None
    #: The state on its way to others; to be waited for before anything in it changes.
    sending: Sending | None


def enter(
    group: Group, version: int, replica: Replica, trainer: Trainer, replay: Callable[[Any, int], None]
) -> Entry:
    """Agree with all members of `group` on one state; `replay(callback, version)` is for
    those that cannot be copied.

    Raises GroupBroken and Interrupted.
    """
    versions = _exchange(group, version, trainer.device)
    top = max(versions)
    holders = tuple(rank for rank, other in enumerate(versions) if other == top)
    behind = [rank for rank, other in enumerate(versions) if other != top]
    newcomers = all(versions[rank] == 0 for rank in behind)
    shadows = bool(behind) and newcomers and trainer.overlaps and in_epoch(trainer.plan, top)
    # Each holder serves its share of those behind.
    served = {rank: holders[i % len(holders)] for i, rank in enumerate(behind)}
    if group.rank in served:
        state = receive_state(group, served[group.rank], trainer.device)
        replica.restore(state, lambda callback: replay(callback, top))
        return Entry(top, holders if shadows else None, None)
    receivers = [rank for rank, holder in served.items() if holder == group.rank]
    sending = None
    if receivers:
        # Shards overwrite the live buffers while the state is on its way.
        trainer.relayout()
        sending = Sending(group, receivers, replica.capture(trainer.committed))
    if sending is not None and not shadows:
        sending.join()
        sending = None
    return Entry(top, holders if shadows else None, sending)


def in_epoch(plan: Plan, version: int) -> bool:
    """Whether the next thing that a worker at this version does is a step."""
    applied, stage = version >> 2, version & 3
    return applied < plan.steps and (stage == BEGUN or applied % plan.steps_per_epoch != 0)


def _exchange(group: Group, version: int, device: torch.device) -> list[int]:
    """The versions of all members, in order of rank."""
    if group.size == 1:
        return [version]
    versions = torch.empty(group.size, dtype=torch.int64, device=device)
    group.all_gather(versions, torch.tensor([version], dtype=torch.int64, device=device))
    return versions.tolist()
