"""Entry into a generation: members compare positions, and members that are behind copy the newest state.

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

from local_backend.elastic.collective.group import WorkerGroup
from local_backend.elastic.plan import StepPlan
from local_backend.elastic.position import BEGINNING, EpochStage, Position
from local_backend.elastic.state.replica import Replica
from local_backend.elastic.state.transfer import Sending, receive_state
from local_backend.elastic.worker.trainer import Trainer


@dataclass(frozen=True)
class GenerationEntry:
    """How this worker has entered a generation."""

    position: Position
    #: Ranks that compute the next step; None for all.
    holders: tuple[int, ...] | None
    #: The transfer of the state to other members. The worker must wait for it before it changes the state.
    sending: Sending | None


def enter(
    group: WorkerGroup, position: Position, replica: Replica, trainer: Trainer, replay: Callable[[Any, Position], None]
) -> GenerationEntry:
    """Agree with all members of `group` on one state.

    `replay(callback, position)` runs the missed hooks of a callback whose state cannot be copied.

    Raises GroupBroken and Interrupted.
    """
    positions = _exchange(group, position, trainer.device)
    top = max(positions)
    holders = tuple(rank for rank, other in enumerate(positions) if other == top)
    behind = [rank for rank, other in enumerate(positions) if other != top]
    newcomers = all(positions[rank] == BEGINNING for rank in behind)
    shadows = bool(behind) and newcomers and trainer.overlaps and in_epoch(trainer.plan, top)
    # Each holder sends the state to its share of the members that are behind.
    served = {rank: holders[i % len(holders)] for i, rank in enumerate(behind)}
    if group.rank in served:
        state = receive_state(group, served[group.rank], trainer.device)
        replica.restore(state, lambda callback: replay(callback, top))
        return GenerationEntry(top, holders if shadows else None, None)
    receivers = [rank for rank, holder in served.items() if holder == group.rank]
    sending = None
    if receivers:
        # Shards overwrite the live buffers while the state is being sent.
        trainer.relayout()
        sending = Sending(group, receivers, replica.capture(trainer.committed))
    if sending is not None and not shadows:
        sending.join()
        sending = None
    return GenerationEntry(top, holders if shadows else None, sending)


def in_epoch(plan: StepPlan, position: Position) -> bool:
    """Return whether a worker at this position computes a step next."""
    begun = position.stage == EpochStage.BEGUN
    return position.steps < plan.steps and (begun or position.steps % plan.steps_per_epoch != 0)


def _exchange(group: WorkerGroup, position: Position, device: torch.device) -> list[Position]:
    """Return the positions of all members, in order of rank."""
    if group.size == 1:
        return [position]
    numbers = torch.empty(group.size, dtype=torch.int64, device=device)
    group.all_gather(numbers, torch.tensor([position.number], dtype=torch.int64, device=device))
    return [Position.from_number(number) for number in numbers.tolist()]
