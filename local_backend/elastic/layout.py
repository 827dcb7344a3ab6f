"""What the shards of a step leave behind, and where it lies in one flat vector: `[gradients][statistics][flags]`.

- Gradients of the trainable parameters, times the shard's weight, in the parameter's own memory layout.
- Statistics: what the shard left of the buffers, having started from the committed ones (`buffers.py`).
- Flags: a 1 per parameter that had a gradient.

The layout is a pure function of the model, so every worker has the same. Gradients start at multiples of 64 bytes, as
tensors of their own do: kernels may sum differently elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from local_backend.elastic.buffers import NOTHING, Buffers
from local_backend.elastic.errors import EngineError

__all__ = ["NOTHING", "Gradients", "Layout", "aligned", "in_memory_order"]

#: Numbers that `Layout.measure` takes.
MEASURES = 2
#: Gradients start at multiples of this many elements.
ALIGNMENT = 16

#: Gradients in order of the parameters, None where there is none.
Gradients = list[Tensor | None]


class Layout:
    """Where each gradient and buffer lies in the flat vector; the committed buffers."""

    def __init__(
        self, modules: Sequence[nn.Module], optimizer: torch.optim.Optimizer, *, shards: int = 1,
        rules: Mapping[str, Any] | None = None, free: Sequence[str] = (), buffers: Buffers | None = None,
        alone: bool = True, measuring: bool = False,
    ) -> None:
        """`modules`: the model, and the loss where it is a module. `shards`, `rules`, `free`: see Buffers, which other
        layouts of the same modules may share (`buffers`). Unless the optimizer is `alone`, only its parameters count.
        `measuring`: loss and number of right samples of each shard are summed, too (`measure`).

        Raises EngineError for what cannot be summed.
        """
        everything = _trainable(modules, optimizer)
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self.parameters = everything if alone else [p for p in everything if id(p) in held]
        if not self.parameters:
            raise EngineError("no parameter of the model wants a gradient: all are frozen")
        if any(parameter.is_complex() for parameter in everything):
            raise EngineError("a parameter of the model is complex; the engine sums real numbers only")
        #: Parameters that backward may leave gradients in, and those of them that other optimizers step.
        self._touched = everything
        self._strangers = [] if alone else [p for p in everything if id(p) not in held]
        kinds = [*everything, *(b for root in modules for b in root.buffers() if b.is_floating_point())]
        #: Type of the numbers that are summed.
        self.dtype = torch.float64 if any(t.dtype == torch.float64 for t in kinds) else torch.float32
        self.device = self.parameters[0].device
        #: Elements of each gradient.
        self.sizes = [p.numel() for p in self.parameters]
        self._strides = [_dense_strides(p) for p in self.parameters]
        self._sparse: set[int] = set()
        self.buffers = buffers or Buffers(modules, rules or {}, shards, self.dtype, free)
        #: Numbers in the statistics of a shard.
        self.statistics = self.buffers.statistics + MEASURES * measuring
        self._measuring = measuring
        self._measured = (0.0, 0.0)
        #: Sums over the last step of what `measure` was given.
        self.measures = (0.0, 0.0)

    @property
    def gradient_size(self) -> int:
        """Numbers in all gradients together."""
        return sum(self.sizes)

    @property
    def committed(self) -> list[tuple[Tensor, Tensor]]:
        """(live buffer, its committed value). Shards overwrite the live ones; the committed ones are part of the
        state of training between steps."""
        return self.buffers.committed

    def begin_shard(self) -> None:
        """No gradients, and the committed buffers."""
        for parameter in self._touched:
            parameter.grad = None
        self.buffers.restore()

    def hand_back(self, gradients: Gradients) -> Gradients:
        """Have the next backward pass add to these gradients itself, while the new ones are in the processor's cache;
        it makes the same additions. Returns those that it must not add to: of another type; sparse ones, whose
        elements it would add one by one; those that it adds up in several parts, as reentrant checkpoints do; and those
        that a hook of the user's changes once they are added."""
        left: Gradients = []
        for i, (parameter, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
            plain = i not in self._sparse and not parameter._post_accumulate_grad_hooks
            # One addition leaves what was never changed in place.
            if gradient is None or gradient.dtype != parameter.dtype or gradient._version or not plain:
                left.append(gradient)
            else:
                parameter.grad = gradient
                left.append(None)
        return left

    def gradients(self, weight: float) -> Gradients:
        """The gradients that backward has left, times `weight`; in the type of the layout, each with memory of its own
        that nobody else will change."""
        found: Gradients = []
        places = set()
        for i, (parameter, strides) in enumerate(zip(self.parameters, self._strides, strict=True)):
            gradient = parameter.grad
            if gradient is not None:
                if gradient.requires_grad:
                    gradient = gradient.detach()
                if gradient.is_sparse:
                    self._sparse.add(i)
                    gradient = gradient.to_dense()
                if gradient.dtype != self.dtype:
                    gradient = gradient.to(self.dtype)
                place = gradient.data_ptr()
                # Autograd may leave two parameters with the same memory.
                if gradient.stride() != strides or place in places:
                    gradient = _with_strides(gradient, strides)
                places.add(place)
            found.append(gradient)
        if weight != 1.0:
            there = [gradient for gradient in found if gradient is not None]
            products = iter(torch._foreach_mul(there, weight) if there else ())
            found = [None if gradient is None else next(products) for gradient in found]
        return found

    def take_statistics(self, shard: int) -> Tensor | None:
        """The statistics of the shard that has just run; None when no buffer may change. Raises EngineError."""
        statistics = self.buffers.take(shard)
        if not self._measuring:
            return statistics
        measured = torch.tensor(self._measured, dtype=self.dtype, device=self.device)
        return measured if statistics is None else torch.cat([statistics, measured])

    def measure(self, loss: float, right: float) -> None:
        """What the shard that has just run gave: its part of the step's mean loss, and its samples predicted right."""
        self._measured = (loss, right)

    def views(self, flat: Tensor, offsets: Sequence[int]) -> list[Tensor]:
        """The gradients inside a flat tensor: that of parameter i starts at `offsets[i]`."""
        return [
            flat.as_strided(parameter.shape, strides, flat.storage_offset() + offset)
            for parameter, strides, offset in zip(self.parameters, self._strides, offsets, strict=True)
        ]

    def apply(self, gradients: Gradients, statistics: Tensor | None, shards: int) -> None:
        """Load the sum over `shards` shards: gradients into the parameters, means into the buffers; commits them."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            same = gradient is None or gradient.dtype == parameter.dtype
            parameter.grad = gradient if same else gradient.to(parameter.dtype)  # type: ignore[union-attr]
        for parameter in self._strangers:
            parameter.grad = None
        if statistics is not None and self._measuring:
            loss, right = statistics[-MEASURES:].tolist()
            self.measures, statistics = (loss, right), statistics[:-MEASURES]
        if statistics is not None and len(statistics):
            self.buffers.load(statistics, shards)


def aligned(size: int) -> int:
    """`size` or a little more, so that what follows starts at a multiple of 64 bytes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def in_memory_order(gradient: Tensor) -> Tensor:
    """The elements of a dense tensor as a flat view."""
    if gradient.is_contiguous():
        return gradient.view(-1)
    return gradient.as_strided((gradient.numel(),), (1,))


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """The tensor's own strides when its elements fill its memory without gap or overlap, else those of its shape."""
    ordered = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    dense = all(stride == math.prod(size for _, size in ordered[:i]) for i, (stride, _) in enumerate(ordered))
    return tensor.stride() if dense else torch.empty(tensor.shape, device="meta").stride()


def _with_strides(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    fresh = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return fresh.copy_(tensor)


def _trainable(modules: Sequence[nn.Module], optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Parameters that want gradients, of the modules first, then any others that the optimizer holds."""
    candidates = [p for module in modules for p in module.parameters()]
    candidates += [p for group in optimizer.param_groups for p in group["params"]]
    found = {id(p): p for p in candidates if p.requires_grad}
    if not found:
        raise EngineError("no parameter of the model wants a gradient: all are frozen")
    return list(found.values())
