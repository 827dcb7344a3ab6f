"""A guard against optimizer steps by user code while a shard is computed: only the engine makes steps.

A step function, forward pass or hook that calls `step()` would do so once for each shard on each worker. While a guard
is up, such a call raises EngineError with the option to use instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_pre_hook

from local_backend.elastic.errors import EngineError

_WHY = "a step covers the batches of all workers, and the engine applies it"
_OPTIMIZER = (
    f"optimizer.step() was called while a batch was computed; {_WHY}. Remove the call. For steps over several batches "
    "use accumulate=; for several optimizers pass optimizer={'name': ..., ...}"
)
_SCHEDULER = (
    f"scheduler.step() was called while a batch was computed; {_WHY}. Remove the call and pass lr_scheduler= "
    "(lr_scheduler_interval='step' for each step)"
)
_SCALER = (
    "GradScaler.{} was called while a batch was computed; the engine scales losses and gradients itself. Remove the "
    "scaler and use precision='fp16' or 'bf16'"
)


class Guard:
    """A guard that keeps user code from making steps while it is up. For one thread."""

    def __init__(self) -> None:
        self._up = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Install the guard in torch inside the `with` block, so that `up` works there; remove it afterwards."""
        handle = register_optimizer_step_pre_hook(self._of_optimizer)
        replaced: list[tuple[type[Any], str, Any]] = []
        for kind in (LRScheduler, ReduceLROnPlateau, *_subclasses(LRScheduler)):
            original = vars(kind).get("step")
            if original is not None:
                replaced.append((kind, "step", original))
                setattr(kind, "step", self._guarded(original, _SCHEDULER))  # noqa: B010 - mypy knows no step of a type
        for name in ("step", "update", "scale"):
            original = getattr(GradScaler, name)
            replaced.append((GradScaler, name, original))
            setattr(GradScaler, name, self._guarded(original, _SCALER.format(name), name == "scale"))
        try:
            yield
        finally:
            handle.remove()
            for kind, name, original in replaced:
                setattr(kind, name, original)

    @contextmanager
    def up(self) -> Iterator[None]:
        """Make steps raise EngineError inside the `with` block."""
        before, self._up = self._up, True
        try:
            yield
        finally:
            self._up = before

    def _of_optimizer(self, optimizer: Optimizer, *_: Any) -> None:
        if self._up:
            raise EngineError(_OPTIMIZER)

    def _guarded(
        self, original: Callable[..., Any], sentence: str, unless_disabled: bool = False
    ) -> Callable[..., Any]:
        def guarded(owner: Any, *arguments: Any, **keywords: Any) -> Any:
            if self._up and not (unless_disabled and not owner.is_enabled()):
                raise EngineError(sentence)
            return original(owner, *arguments, **keywords)

        return guarded


def _subclasses(kind: type[LRScheduler]) -> Iterator[type[LRScheduler]]:
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)
