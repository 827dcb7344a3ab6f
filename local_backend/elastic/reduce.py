"""What the shards of a step leave behind, as one flat vector, and its sum: the same bits for every number of workers.

The vector of a shard is `[gradients][float buffers][flags][counters]`:

- gradients of the trainable parameters, times the shard's weight; zeros where a parameter had none;
- floating-point buffers (BatchNorm statistics) as the shard left them, having started from the committed ones;
- a 1 per parameter that had a gradient, and per buffer that the shard changed;
- small whole-number buffers (BatchNorm's counter) of shard 0, cut into 16-bit pieces, which a float holds exactly.

Its layout is a pure function of the model, so every worker has the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from local_backend.elastic.errors import EngineError
from local_backend.elastic.group import Group
from local_backend.elastic.plan import Block, Fold, Range, blocks

#: Whole-number buffers up to this size may change during training; larger ones are tables that stay as they are.
SMALL = 16
#: Pieces of 16 bits in a 64-bit number.
PIECES = 4

Parts = list[tuple[Block, Tensor]]


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
        return tensor.detach()


class Layout:
    """Where each gradient and buffer lies in the flat vector of a shard."""

    def __init__(self, modules: Sequence[nn.Module], optimizer: torch.optim.Optimizer) -> None:
        """`modules`: the model, and the loss where it is a module. Raises EngineError for what cannot be summed."""
        self.parameters = _trainable(modules, optimizer)
        self._floats, self._counters, self._tables = _buffers(modules)
        self._buffers = self._floats + self._counters
        tensors = [*self.parameters, *(buffer.tensor for buffer in self._floats)]
        for tensor in tensors:
            if tensor.is_complex():
                raise EngineError("a parameter or buffer of the model is complex; the engine sums real numbers only")
        self._dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
        self._sizes = [p.numel() for p in self.parameters]
        self._gradients = sum(self._sizes)
        self._flags = len(self.parameters) + len(self._floats)
        statistics = sum(buffer.tensor.numel() for buffer in self._floats)
        counters = PIECES * sum(buffer.tensor.numel() for buffer in self._counters)
        #: Numbers in the vector of a shard.
        self.length = self._gradients + statistics + self._flags + counters
        self.commit()

    @property
    def gradient_size(self) -> int:
        """Numbers in all gradients together."""
        return self._gradients

    def empty(self, length: int) -> Tensor:
        """An uninitialised vector of the layout's type, where the model is."""
        return torch.empty(length, dtype=self._dtype, device=self.parameters[0].device)

    def commit(self) -> None:
        """The buffers as they are now are what every shard of the next step starts from."""
        self._committed = [buffer.tensor.clone() for buffer in self._buffers]
        self._versions = [(buffer.tensor.data_ptr(), buffer.tensor._version) for buffer in self._tables]

    def begin_shard(self) -> None:
        """No gradients, and the committed buffers."""
        for parameter in self.parameters:
            parameter.grad = None
        self._restore()

    def collect(self, shard: int, weight: float) -> Tensor:
        """The flat vector of the shard that has just run backward."""
        self._check_tables()
        gradients = [self._gradient(parameter) for parameter in self.parameters]
        statistics = [buffer.tensor.reshape(-1).to(self._dtype) for buffer in self._floats]
        flags = [parameter.grad is not None for parameter in self.parameters]
        changed = [
            (buffer.tensor != before).any().to(self._dtype).reshape(1)
            for buffer, before in zip(self._floats, self._committed, strict=False)
        ]
        counters = [_pieces(buffer.tensor, self._dtype) for buffer in self._counters]
        if shard != 0:
            counters = [torch.zeros_like(counter) for counter in counters]
        device = self.parameters[0].device
        flat = torch.cat(
            [*gradients, *statistics, torch.tensor(flags, dtype=self._dtype, device=device), *changed, *counters]
        )
        if weight != 1.0:
            flat[: self._gradients].mul_(weight)
        return flat

    def apply(self, flat: Tensor, shards: int) -> None:
        """Load the sum over `shards` shards: gradients into the parameters, means into the buffers; commits them."""
        offset = self._gradients + sum(buffer.tensor.numel() for buffer in self._floats)
        flags = [flag > 0 for flag in flat[offset : offset + self._flags].tolist()]
        self._restore()
        self._load_gradients(flat, flags[: len(self.parameters)])
        self._load_statistics(flat, flags[len(self.parameters) :], shards)
        self._load_counters(flat, offset + self._flags)
        self.commit()

    def _load_gradients(self, flat: Tensor, present: list[bool]) -> None:
        parts = flat[: self._gradients].split(self._sizes)
        for parameter, part, there in zip(self.parameters, parts, present, strict=True):
            parameter.grad = part.view(parameter.shape).to(parameter.dtype) if there else None

    def _load_statistics(self, flat: Tensor, changed: list[bool], shards: int) -> None:
        offset = self._gradients
        for buffer, new in zip(self._floats, changed, strict=True):
            tensor = buffer.tensor
            if new:
                tensor.copy_((flat[offset : offset + tensor.numel()] / shards).view(tensor.shape))
            offset += tensor.numel()

    def _load_counters(self, flat: Tensor, offset: int) -> None:
        for buffer in self._counters:
            tensor = buffer.tensor
            size = PIECES * tensor.numel()
            tensor.copy_(_whole(flat[offset : offset + size]).view(tensor.shape))
            offset += size

    def _gradient(self, parameter: Tensor) -> Tensor:
        gradient = parameter.grad
        if gradient is None:
            return torch.zeros(parameter.numel(), dtype=self._dtype, device=parameter.device)
        return (gradient.to_dense() if gradient.is_sparse else gradient).reshape(-1).to(self._dtype)

    def _restore(self) -> None:
        for buffer, before in zip(self._buffers, self._committed, strict=True):
            buffer.tensor.copy_(before)

    def _check_tables(self) -> None:
        for buffer, (pointer, version) in zip(self._tables, self._versions, strict=True):
            if (buffer.tensor.data_ptr(), buffer.tensor._version) != (pointer, version):
                raise EngineError(
                    f"the buffer {buffer.path} changes during training; whole-number buffers of more than {SMALL} "
                    "elements must stay as they are, keep such state in a floating-point buffer"
                )


def reduce(
    parts: Parts, ranges: Sequence[Range], shards: int, layout: Layout, group: Group | None
) -> Tensor:
    """The sum over all `shards` shards of a step, on every member.

    `parts` are the folded blocks of this member's range (none when its shards have no samples in this step), `ranges`
    the ranges of all members in order of rank. Each member finishes the tree for one chunk of the vector.
    Raises GroupBroken.
    """
    if group is None:
        return _root(parts, shards)
    held = [blocks(first, last, shards) for first, last in ranges]
    chunk = -(-layout.length // group.size)
    received = layout.empty(sum(len(h) for h in held) * chunk)
    sent = _cut([vector for _, vector in parts], chunk, layout, group.size)
    group.all_to_all(received, sent, [len(h) * chunk for h in held], [len(parts) * chunk] * group.size)
    everyone = [block for h in held for block in h]
    summed = _root(zip(everyone, received.split(chunk), strict=True), shards)
    whole = layout.empty(group.size * chunk)
    group.all_gather(whole, summed.contiguous())
    return whole[: layout.length]


def new_fold(shards: int) -> Fold[Tensor]:
    """Adds vectors of shards in canonical order, in place."""
    return Fold(shards, Tensor.add_)


def _root(parts: Iterable[tuple[Block, Tensor]], shards: int) -> Tensor:
    fold = new_fold(shards)
    for block, vector in parts:
        fold.push(block, vector)
    return fold.root()


def _cut(vectors: list[Tensor], chunk: int, layout: Layout, members: int) -> Tensor:
    """The vectors, padded and cut in `members` chunks: first everything for member 0, then for member 1, ..."""
    padded = layout.empty(len(vectors) * members * chunk).view(members, len(vectors), chunk)
    for i, vector in enumerate(vectors):
        rows = nn.functional.pad(vector, (0, members * chunk - layout.length)).view(members, chunk)
        padded[:, i].copy_(rows)
    return padded.view(-1)


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


def _pieces(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Whole numbers as floats of 16 bits each, least significant first."""
    numbers = tensor.reshape(-1).to(torch.int64)
    return torch.stack([(numbers >> (16 * i)) & 0xFFFF for i in range(PIECES)], 1).reshape(-1).to(dtype)


def _whole(pieces: Tensor) -> Tensor:
    """Inverse of `_pieces`."""
    numbers = pieces.to(torch.int64).view(-1, PIECES)
    return sum((numbers[:, i] << (16 * i) for i in range(1, PIECES)), numbers[:, 0])
