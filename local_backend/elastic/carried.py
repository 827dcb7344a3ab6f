"""What the options of a training keep between steps: part of the state that members copy and snapshots keep."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(eq=False)
class Carried:
    """The same on every member. `Live` names it, so that it travels as the attributes of a callback do."""

    #: Values of an epoch by name, one item per epoch; the history that train() returns.
    history: dict[str, list[float]] = field(default_factory=dict)
    #: The values of each epoch as the hub has told them: only those that were computed in that epoch.
    told: list[dict[str, float]] = field(default_factory=list)
    #: Learning rate of the last optimizer step, by name of the optimizer.
    rates: dict[str, float] = field(default_factory=dict)
    #: Moving averages of the parameters, in their order; empty for none.
    average: list[Tensor] = field(default_factory=list)
    #: Loss scale of fp16, and steps since it last changed.
    scale: float = 65536.0
    steady: int = 0
    #: Steps that were skipped because their gradients were not finite.
    skipped: int = 0
    #: Loss of each phase of the present step, for callbacks.
    losses: dict[str, float] = field(default_factory=dict)
