"""The gradients and statistics of the shards of a step in one flat vector: `[gradients][statistics][flags]`.

- Gradients of the trainable parameters, times the weight of the shard, in the memory layout of each parameter. A
  complex gradient is its real and imaginary parts, side by side in a last dimension of 2.
- Statistics: the buffer values that the shard leaves after it started from the committed values (`buffers.py`).
- Flags: a 1 for each parameter that had a gradient.

The layout is a pure function of the model, so every worker has the same layout. Each gradient starts at a multiple of
64 bytes, as a separate tensor does. At other addresses kernels may sum differently.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from local_backend.elastic.collective.buffers import NOTHING, Buffers
from local_backend.elastic.errors import EngineError

__all__ = ["NOTHING", "Gradients", "Layout", "aligned", "in_memory_order", "real_parts"]

#: Numbers that `Layout.measure` takes.
MEASURES = 3
_DOUBLE = (torch.float64, torch.complex128)
#: Gradients start at multiples of this many elements.
ALIGNMENT = 16

#: Real gradients in the order of the parameters; None for a parameter without a gradient.
Gradients = list[Tensor | None]


class Layout:
    """The place of each gradient and buffer in the flat vector, and the committed buffers."""

    def __init__(
        self, modules: Sequence[nn.Module], optimizer: torch.optim.Optimizer, *, shards: int = 1,
        rules: Mapping[str, Any] | None = None, free: Sequence[str] = (), buffers: Buffers | None = None,
        alone: bool = True, measuring: bool = False,
    ) -> None:
        """Lay out the gradients and statistics of `modules`: the model, and the loss if it is a module.

        `shards`, `rules`, `free`: see Buffers. `buffers`: Buffers of another layout of the same modules, which this
        layout shares. `alone`: False if the training has other optimizers; then only the parameters of `optimizer`
        count. `measuring`: also sum the loss and the number of right samples of each shard (`measure`).

        Raises EngineError when all parameters are frozen, or a buffer rule does not fit.
        """
        everything = _trainable(modules, optimizer)
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self.parameters = everything if alone else [p for p in everything if id(p) in held]
        if not self.parameters:
            raise EngineError("no parameter of the model requires a gradient: all are frozen")
        #: Parameters that backward may give gradients, and those among them that other optimizers step.
        self._touched = everything
        self._strangers = [] if alone else [p for p in everything if id(p) not in held]
        kinds = [*everything, *(b for root in modules for b in root.buffers() if b.is_floating_point())]
        #: Type of the summed numbers.
        self.dtype = torch.float64 if any(t.dtype in _DOUBLE for t in kinds) else torch.float32
        self.device = self.parameters[0].device
        #: Number of elements of each gradient.
        self.sizes = [real_parts(p.detach()).numel() for p in self.parameters]
        self._strides = [_dense_strides(real_parts(p.detach())) for p in self.parameters]
        self._sparse: set[int] = set()
        self.buffers = buffers or Buffers(modules, rules or {}, shards, self.dtype, free)
        #: Number of values in the statistics of a shard.
        self.statistics = self.buffers.statistics + MEASURES * measuring
        self._measuring = measuring
        self._measured = (0.0, 0.0, 0.0)
        #: Sums over the last step of the values passed to `measure`.
        self.measures = (0.0, 0.0, 0.0)

    @property
    def gradient_size(self) -> int:
        """Number of elements of all gradients together."""
        return sum(self.sizes)

    @property
    def committed(self) -> list[tuple[Tensor, Tensor]]:
        """Pairs (live buffer, its committed value). Shards overwrite the live buffers. Between steps the committed
        values are part of the training state."""
        return self.buffers.committed

    def begin_shard(self) -> None:
        """Clear the gradients, and set the live buffers to their committed values."""
        for parameter in self._touched:
            parameter.grad = None
        self.buffers.restore()

    def hand_back(self, gradients: Gradients) -> Gradients:
        """Let the next backward pass add to these gradients in place, while the new ones are in the processor's cache.
        Backward makes the same additions. Return the gradients that backward must not add to, None for the others:

        - gradients of another type than their parameter;
        - sparse gradients, because backward would add their elements one by one;
        - gradients that backward adds up in several parts, as with reentrant checkpoints;
        - gradients that a hook of the user changes after backward has added them.
        """
        left: Gradients = []
        for i, (parameter, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
            plain = i not in self._sparse and not parameter._post_accumulate_grad_hooks
            # A version above 0 means that backward has changed the gradient in place, to add it up in several parts.
            if gradient is None or gradient.dtype != parameter.dtype or gradient._version or not plain:
                left.append(gradient)
            else:
                parameter.grad = gradient
                left.append(None)
        return left

    def gradients(self, weight: float) -> Gradients:
        """Return the gradients that backward has left, times `weight`, in the type of the layout. Each has memory of
        its own, which no other code changes."""
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
                gradient = real_parts(gradient)
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
        """Return the statistics of the shard that ran last; None if there are none. Raises EngineError when the shard
        has changed a buffer without a rule, or the shape of a buffer."""
        statistics = self.buffers.take(shard)
        if not self._measuring:
            return statistics
        measured = torch.tensor(self._measured, dtype=self.dtype, device=self.device)
        return measured if statistics is None else torch.cat([statistics, measured])

    def measure(self, loss: float, right: int | None, size: int) -> None:
        """Set the values of the shard that ran last: its part of the step's mean loss, its number of samples predicted
        right, None if that is unknown, and its number of samples."""
        self._measured = (loss, 0.0, 0.0) if right is None else (loss, float(right), float(size))

    def views(self, flat: Tensor, offsets: Sequence[int]) -> list[Tensor]:
        """Return the gradients as views of a flat tensor. The gradient of parameter i starts at `offsets[i]`."""
        return [
            flat.as_strided(real_parts(parameter.detach()).shape, strides, flat.storage_offset() + offset)
            for parameter, strides, offset in zip(self.parameters, self._strides, offsets, strict=True)
        ]

    def apply(self, gradients: Gradients, statistics: Tensor | None, shards: int) -> None:
        """Load the sum over `shards` shards: the gradients into `grad` of the parameters, the combined statistics into
        the buffers. Commit the buffers."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else _of_type(gradient, parameter.dtype)
        for parameter in self._strangers:
            parameter.grad = None
        if statistics is not None and self._measuring:
            loss, right, known = statistics[-MEASURES:].tolist()
            self.measures, statistics = (loss, right, known), statistics[:-MEASURES]
        if statistics is not None and len(statistics):
            self.buffers.load(statistics, shards)


def aligned(size: int) -> int:
    """Return `size`, rounded up so that the next value starts at a multiple of 64 bytes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def real_parts(tensor: Tensor) -> Tensor:
    """Return a complex tensor as its real and imaginary parts, in a last dimension of 2; a real tensor as it is."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _of_type(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """Return real numbers in a type. For a complex type they are real and imaginary parts, as of `real_parts`."""
    if dtype.is_complex:
        return torch.view_as_complex(gradient.to(dtype.to_real()))
    return gradient.to(dtype)


def in_memory_order(gradient: Tensor) -> Tensor:
    """Return the elements of a dense tensor as a flat view, in their order in memory."""
    if gradient.is_contiguous():
        return gradient.view(-1)
    return gradient.as_strided((gradient.numel(),), (1,))


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """Return the tensor's own strides if its elements fill its memory without gap or overlap, else the default strides
    of its shape."""
    ordered = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    dense = all(stride == math.prod(size for _, size in ordered[:i]) for i, (stride, _) in enumerate(ordered))
    return tensor.stride() if dense else torch.empty(tensor.shape, device="meta").stride()


def _with_strides(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    fresh = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return fresh.copy_(tensor)


def _trainable(modules: Sequence[nn.Module], optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return the parameters that require gradients: those of the modules, then others that the optimizer holds."""
    candidates = [p for module in modules for p in module.parameters()]
    candidates += [p for group in optimizer.param_groups for p in group["params"]]
    found = {id(p): p for p in candidates if p.requires_grad}
    if not found:
        raise EngineError("no parameter of the model requires a gradient: all are frozen")
    return list(found.values())
