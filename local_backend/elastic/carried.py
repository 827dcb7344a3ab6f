"""Values that the options of a training keep between steps. The state of members and snapshots includes them."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(eq=False)
class Carried:
    """Values that are equal on all members. `Live` names this object, so the state contains its attributes."""

    #: Name → values, one item per epoch. This is the history that train() returns.
    history: dict[str, list[float]] = field(default_factory=dict)
    #: The values of each epoch as the hub has sent them: only values that were computed in that epoch.
    told: list[dict[str, float]] = field(default_factory=list)
    #: Name of the optimizer → learning rate of its last step.
    rates: dict[str, float] = field(default_factory=dict)
    #: Moving averages of the parameters, in the order of the parameters; empty if there are none.
    average: list[Tensor] = field(default_factory=list)
    #: Loss scale of fp16, and number of steps since the scale last changed.
    scale: float = 65536.0
    steady: int = 0
    #: Number of steps that were skipped because their gradients were not finite.
    skipped: int = 0
    #: Loss of each phase of the current step, for callbacks.
    losses: dict[str, float] = field(default_factory=dict)
