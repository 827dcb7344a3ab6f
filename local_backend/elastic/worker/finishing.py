"""The end of a step, after its gradients are summed: checks, clipping, the optimizer, the moving average.

Every member computes all of it on the same numbers, so the replicas stay equal.

Only the engine makes steps: a step function, forward pass or hook that calls `step()` would do so once for each shard
on each worker. While a `StepGuard` is up, such a call raises EngineError with the option to use instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_pre_hook

from local_backend.elastic.errors import EngineError
from local_backend.elastic.script.job import Carried, TrainingJob
from local_backend.elastic.state import artifacts

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


class StepGuard:
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


#: Changes of the fp16 loss scale: times BACKOFF after a step that overflowed, times GROWTH after GROWTH_STEPS steps
#: that did not.
BACKOFF, GROWTH, GROWTH_STEPS = 0.5, 2.0, 2000


class Nonfinite(EngineError):
    """A gradient or a parameter is not a finite number, and the options say to stop training in this case."""


class Finisher:
    """The part of a step that one optimizer makes."""

    def __init__(self, job: TrainingJob, optimizer: Optimizer, parameters: Sequence[nn.Parameter], last: bool) -> None:
        """`parameters`: the parameters whose gradients are summed. `last`: whether this is a step's last optimizer."""
        self._job = job
        self._optimizer = optimizer
        self._parameters = parameters
        self._last = last
        self._scaled = job.recipe.precision == "fp16"

    @property
    def scale(self) -> float:
        """The factor of losses before backward."""
        return self._job.carried.scale if self._scaled else 1.0

    def finish(self, step: int) -> bool:
        """Make a step with the gradients of the parameters; return False when the step was skipped.

        Raises Nonfinite when a gradient is not finite, unless the step may be skipped or the recipe ignores such
        gradients.
        """
        recipe, carried = self._job.recipe, self._job.carried
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        if self._scaled and gradients:
            torch._foreach_mul_(gradients, 1.0 / carried.scale)
        if (self._scaled or recipe.on_nonfinite != "ignore") and not all_finite(gradients):
            if not self._may_skip():
                raise Nonfinite(self._sentence(step))
            carried.skipped += 1
            return False
        if self._scaled:
            _grow(carried)
        if recipe.clip_grad_value is not None:
            nn.utils.clip_grad_value_(self._parameters, recipe.clip_grad_value)
        if recipe.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, recipe.clip_grad_norm)
        make_step(self._optimizer)
        if self._last and recipe.ema is not None:
            average(carried, self._job, recipe.ema)
        return True

    def check_parameters(self, step: int) -> None:
        """Raise Nonfinite when a parameter is not finite after `step` steps and the recipe says to stop then."""
        if self._job.recipe.on_nonfinite == "stop" and not all_finite([p.detach() for p in self._parameters]):
            name = self._first([parameter.detach() for parameter in self._parameters])
            raise Nonfinite(f"the parameter {name} is not finite after step {step}: {_ADVICE}; {_last_checkpoint()}")

    def _may_skip(self) -> bool:
        """Return whether to skip a step whose gradients are not finite. With fp16 the loss scale may be too large: a
        scale above 1 is lowered first."""
        carried = self._job.carried
        if self._scaled and carried.scale > 1.0:
            carried.scale, carried.steady = carried.scale * BACKOFF, 0
            return True
        return self._job.recipe.on_nonfinite == "skip"

    def _sentence(self, step: int) -> str:
        name = self._first([parameter.grad for parameter in self._parameters])
        return (
            f"the gradient of {name} is not finite in step {step}, so the step was not applied: {_ADVICE}; "
            f"on_nonfinite='skip' skips such steps; {_last_checkpoint()}"
        )

    def _first(self, tensors: Sequence[Tensor | None]) -> str:
        """Return the name of the first parameter whose tensor is not finite."""
        names = {id(p): name for module in self._job.modules for name, p in module.named_parameters()}
        for parameter, tensor in zip(self._parameters, tensors, strict=True):
            if tensor is not None and not bool(torch.isfinite(tensor).all()):
                return names.get(id(parameter), "a parameter")
        return "a parameter"


_ADVICE = "lower the learning rate, use clip_grad_norm=, or check the loss for divisions by 0 and logarithms of 0"


def make_step(optimizer: Optimizer) -> None:
    """Call step(). Raises EngineError for an optimizer that needs a closure, and otherwise the exception of step()."""
    try:
        optimizer.step()
    except (AssertionError, TypeError, ValueError, RuntimeError) as error:
        if "closure" not in str(error):
            raise
        raise EngineError(
            f"the optimizer {type(optimizer).__name__} needs a closure that computes the loss again ({error}), but the "
            "engine calls step() once for each sum of gradients from all workers; use an optimizer whose step() needs "
            "no closure"
        ) from error


def _last_checkpoint() -> str:
    """Return the words that name the newest checkpoint. Its parameters are finite: they are checked before it is
    written."""
    written = artifacts.checkpoints()
    return f"the last checkpoint is {written[-1]}" if written else "no checkpoint exists"


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether every element of floating-point tensors is finite."""
    if not tensors:
        return True
    # The norm runs at the speed of memory; the largest magnitude is ten times slower. Squares of finite numbers may
    # overflow, so only a finite norm is conclusive.
    norms = torch._foreach_norm(list(tensors), 2.0)
    if bool(torch.isfinite(torch.stack([norm.to(torch.float32) for norm in norms])).all()):
        return True
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def average(carried: Carried, job: TrainingJob, decay: float) -> None:
    """Move the averages of the parameters towards the present values. The first call copies the present values."""
    parameters = artifacts.averaged(job.model)
    if not carried.average:
        carried.average = [parameter.clone() for parameter in parameters]
        return
    torch._foreach_lerp_(carried.average, parameters, 1.0 - decay)


def _grow(carried: Carried) -> None:
    carried.steady += 1
    if carried.steady >= GROWTH_STEPS:
        carried.scale, carried.steady = carried.scale * GROWTH, 0
