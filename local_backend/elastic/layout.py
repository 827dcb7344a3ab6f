"""What the shards of a step leave behind, and where it lies in one flat vector: `[gradients][statistics][flags]`.

- Gradients of the trainable parameters, times the shard's weight, in the parameter's own memory layout.
- Statistics: floating-point buffers (BatchNorm) as the shard left them, having started from the committed ones;
  small whole-number buffers (BatchNorm's counter) of shard 0, cut into 16-bit pieces, which a float holds exactly; and
  a 1 per floating-point buffer that the shard changed.
- Flags: a 1 per parameter that had a gradient.

The layout is a pure function of the model, so every worker has the same. Gradients start at multiples of 64 bytes, as
tensors of their own do: kernels may sum differently elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from local_backend.elastic.errors import EngineError

#: Whole-number buffers up to this size may change during training; larger ones are tables that stay as they are.
SMALL = 16
#: Pieces of 16 bits in a 64-bit number.
PIECES = 4
#: Gradients start at multiples of this many elements.
ALIGNMENT = 16
#: What a missing gradient is summed as: `x + -0.0` is x for every x, `-0.0 + 0.0` is not -0.0.
NOTHING = -0.0

#: Gradients in order of the parameters, None where there is none.
Gradients = list[Tensor | None]


class Layout:
    """Where each gradient and buffer lies in the flat vector; the committed buffers."""

    def __init__(self, modules: Sequence[nn.Module], optimizer: torch.optim.Optimizer) -> None:
        """`modules`: the model, and the loss where it is a module. Raises EngineError for what cannot be summed."""
        self.parameters = _trainable(modules, optimizer)
        self._floats, self._counters, self._tables = _buffers(modules)
        self._buffers = self._floats + self._counters
        tensors = [*self.parameters, *(buffer.tensor for buffer in self._floats)]
        for tensor in tensors:
            if tensor.is_complex():
                raise EngineError("a parameter or buffer of the model is complex; the engine sums real numbers only")
        #: Type of the numbers that are summed.
        self.dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
        self.device = self.parameters[0].device
        #: Elements of each gradient.
        self.sizes = [p.numel() for p in self.parameters]
        self._strides = [_dense_strides(p) for p in self.parameters]
        self._sparse: set[int] = set()
        self._sizes = [buffer.tensor.numel() for buffer in self._floats]
        self._ends = torch.tensor([0, *accumulate(self._sizes)], device=self.device)
        self._counts = [buffer.tensor.numel() for buffer in self._counters]
        #: Numbers in the statistics of a shard.
        self.statistics = sum(self._sizes) + PIECES * sum(self._counts) + len(self._floats)
        self.commit()

    @property
    def gradient_size(self) -> int:
        """Numbers in all gradients together."""
        return sum(self.sizes)

    @property
    def committed(self) -> list[tuple[Tensor, Tensor]]:
        """(live buffer, its committed value) of all buffers that a step may change. Shards overwrite the live ones; the
        committed ones are part of the state of training between steps."""
        return [(buffer.tensor, before) for buffer, before in zip(self._buffers, self._committed, strict=True)]

    def commit(self) -> None:
        """The buffers as they are now are what every shard of the next step starts from."""
        self._committed = [buffer.tensor.clone() for buffer in self._buffers]
        self._before = self._flat_floats()
        self._versions = [(buffer.tensor.data_ptr(), buffer.tensor._version) for buffer in self._tables]

    def begin_shard(self) -> None:
        """No gradients, and the committed buffers."""
        for parameter in self.parameters:
            parameter.grad = None
        self._restore()

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
        """The statistics of the shard that has just run; None when the model has no such buffers."""
        self._check_tables()
        if not self.statistics:
            return None
        floats = self._flat_floats()
        counters = torch.zeros(PIECES * sum(self._counts), dtype=self.dtype, device=self.device)
        if shard == 0 and self._counters:
            counters = _pieces(torch.cat([b.tensor.reshape(-1).to(torch.int64) for b in self._counters]), self.dtype)
        different = nn.functional.pad((floats != self._before).cumsum(0), (1, 0))[self._ends]
        return torch.cat([floats, counters, (different[1:] != different[:-1]).to(self.dtype)])

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
        if statistics is None:
            return
        self._restore()
        floats, counters, changed = statistics.split(
            [sum(self._sizes), PIECES * sum(self._counts), len(self._floats)]
        )
        means = (floats / shards).split(self._sizes)
        new = [(b.tensor, m) for b, m, c in zip(self._floats, means, changed.tolist(), strict=True) if c > 0]
        if new:
            torch._foreach_copy_([live for live, _ in new], [mean.view(live.shape) for live, mean in new])
        for buffer, number in zip(self._counters, _whole(counters).split(self._counts), strict=True):
            buffer.tensor.copy_(number.view(buffer.tensor.shape))
        self.commit()

    def _flat_floats(self) -> Tensor:
        parts = [buffer.tensor.reshape(-1).to(self.dtype) for buffer in self._floats]
        return torch.cat(parts) if parts else torch.empty(0, dtype=self.dtype, device=self.device)

    def _restore(self) -> None:
        if self._buffers:
            torch._foreach_copy_([buffer.tensor for buffer in self._buffers], self._committed)

    def _check_tables(self) -> None:
        for buffer, (pointer, version) in zip(self._tables, self._versions, strict=True):
            if (buffer.tensor.data_ptr(), buffer.tensor._version) != (pointer, version):
                raise EngineError(
                    f"the buffer {buffer.path} changes during training; whole-number buffers of more than {SMALL} "
                    "elements must stay as they are, keep such state in a floating-point buffer"
                )


def aligned(size: int) -> int:
    """`size` or a little more, so that what follows starts at a multiple of 64 bytes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def in_memory_order(gradient: Tensor) -> Tensor:
    """The elements of a dense tensor as a flat view."""
    if gradient.is_contiguous():
        return gradient.view(-1)
    return gradient.as_strided((gradient.numel(),), (1,))


class _Buffer:
    """A buffer by its place: programs may replace the tensor."""

    def __init__(self, module: nn.Module, name: str, path: str) -> None:
        self._module = module
        self._name = name
        self.path = path

    @property
    def tensor(self) -> Tensor:
        tensor = self._module._buffers[self._name]
        assert tensor is not None
        return tensor.detach() if tensor.requires_grad else tensor


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


def _buffers(modules: Sequence[nn.Module]) -> tuple[list[_Buffer], list[_Buffer], list[_Buffer]]:
    """(floating-point buffers, small whole-number ones, large whole-number ones), each tensor once."""
    floats: list[_Buffer] = []
    counters: list[_Buffer] = []
    tables: list[_Buffer] = []
    seen = set()
    for root in modules:
        for path, module in root.named_modules():
            for name, tensor in module._buffers.items():
                if tensor is None or id(tensor) in seen or tensor.numel() == 0:
                    continue
                seen.add(id(tensor))
                kind = floats if tensor.is_floating_point() or tensor.is_complex() else counters
                kind = tables if kind is counters and tensor.numel() > SMALL else kind
                kind.append(_Buffer(module, name, f"{path}.{name}".lstrip(".")))
    return floats, counters, tables


def _pieces(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Whole numbers as floats of 16 bits each, least significant first."""
    return torch.stack([(numbers >> (16 * i)) & 0xFFFF for i in range(PIECES)], 1).reshape(-1).to(dtype)


def _whole(pieces: Tensor) -> Tensor:
    """Inverse of `_pieces`."""
    numbers = pieces.to(torch.int64).view(-1, PIECES)
    return sum((numbers[:, i] << (16 * i) for i in range(1, PIECES)), numbers[:, 0])
