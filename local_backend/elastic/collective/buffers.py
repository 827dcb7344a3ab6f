"""The buffers of a model during a step. Every shard starts from the committed buffers. A rule for each buffer combines
the values of all shards into one value (`combine.py`).

A rule comes from the options of the training, from the attribute `fabric_buffers` of a module, or from the known rules
for torch's layers. Known rules average the running statistics of normalization layers, and take the counters of these
layers and the vectors of spectral normalization from shard 0. Shards must not change any other buffer.

After a shard, the values of its buffers form a flat vector, `statistics`. Reducers add up the vectors of all shards:

- "mean" of floats: the values, and a 1 per buffer that the shard changed;
- "first": the values of shard 0;
- "sum": the differences to the committed values;
- "gather", and "mean" of integers: the values, at the position of the shard among all shards.

Integers are cut into 16-bit pieces, because a float holds the sums of such pieces exactly.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from local_backend.elastic.combine import STILL, BufferRule, rule_of
from local_backend.elastic.errors import EngineError

#: Number of 16-bit pieces in a 64-bit number.
PIECES = 4
#: Number of first shards after which buffers without a rule are compared by value.
THOROUGH = 2
#: Stands for an absent value in a sum: `x + -0.0` is x for every x, but `-0.0 + 0.0` is not -0.0.
NOTHING = -0.0


class Buffer:
    """A buffer, identified by module and name: programs may replace the tensor."""

    def __init__(self, module: nn.Module, name: str, path: str, rule: BufferRule) -> None:
        self._module = module
        self._name = name
        self.path = path
        self.rule = rule

    @property
    def tensor(self) -> Tensor:
        """The live tensor. Raises EngineError if the program has removed the buffer."""
        tensor = self._module._buffers.get(self._name)
        if tensor is None:
            raise EngineError(f"the buffer {self.path} was removed during training")
        return tensor.detach() if tensor.requires_grad else tensor

    @property
    def whole(self) -> bool:
        """Whether the elements are integers."""
        return not self.tensor.is_floating_point()

    @property
    def mark(self) -> tuple[int, int]:
        """A value that changes when the tensor is changed in place or replaced."""
        tensor = self.tensor
        return tensor.data_ptr(), tensor._version


class Buffers:
    """All buffers of some modules. Shards change the live buffers. The committed buffers belong to the state."""

    def __init__(
        self, modules: Sequence[nn.Module], declared: Mapping[str, Any], shards: int, dtype: torch.dtype,
        free: Sequence[str] = (),
    ) -> None:
        """`declared`: path or pattern → rule. `shards`: number of shards of a full step. `dtype`: type of the summed
        numbers. `free`: paths of buffers that may differ between workers. Raises EngineError for a rule that fits no
        buffer."""
        self._dtype = dtype
        self._shards = shards
        found = find(modules, declared, free)
        self._still = [buffer for buffer in found if buffer.rule.kind == "still"]
        self._means = [b for b in found if b.rule.kind == "mean" and not b.whole]
        self._others = [b for b in found if b.rule.kind != "still" and b not in self._means]
        self._all = [*self._means, *self._others, *self._still]
        self._sizes = [buffer.tensor.numel() for buffer in self._means]
        self._ends = torch.tensor([0, *accumulate(self._sizes)])
        self._parts = [self._width(buffer) for buffer in self._others]
        #: Number of averaged values in the statistics of a shard, and length of the statistics.
        self.averaged = sum(self._sizes)
        self.statistics = self.averaged + len(self._means) + sum(self._parts)
        self._marks: list[tuple[int, int]] = [(0, -1)] * len(self._all)
        self._committed: list[Tensor] = [torch.empty(0)] * len(self._all)
        #: Remaining shards after which buffers without a rule are compared by value: changes via `.data` leave no mark.
        self._thorough = THOROUGH
        self.commit()

    @property
    def committed(self) -> list[tuple[Tensor, Tensor]]:
        """Pairs (live buffer, committed value) of all buffers."""
        return [(buffer.tensor, before) for buffer, before in zip(self._all, self._committed, strict=True)]

    @property
    def only_means_and_first(self) -> bool:
        """Whether no rule needs the values of single shards. Asynchronous mode does not have these values."""
        return all(buffer.rule.kind == "first" for buffer in self._others)

    def commit(self, *, thorough: bool = False) -> None:
        """Commit the live buffers. Every shard of the next step starts from these values.

        `thorough`: do not rely on marks. BatchNorm changes its statistics without a new mark.
        """
        new = False
        for i, buffer in enumerate(self._all):
            mark = buffer.mark
            if mark != self._marks[i] or self._thorough or thorough:
                self._committed[i], self._marks[i], new = buffer.tensor.clone(), mark, True
        if new:
            self._before = self._values(self._means)

    def restore(self) -> None:
        """Reset the live buffers that shards may change to their committed values."""
        changing = self._all[: len(self._means) + len(self._others)]
        if changing:
            torch._foreach_copy_([buffer.tensor for buffer in changing], self._committed[: len(changing)])
            self._marks[: len(changing)] = [buffer.mark for buffer in changing]

    def undo(self) -> None:
        """Reset the live buffers that have rules, such as the statistics of BatchNorm, to their committed values. A
        buffer without a rule may be a cache that fits other values of its module, so it stays as it is."""
        for i, buffer in enumerate([*self._means, *self._others]):
            live, before = buffer.tensor, self._committed[i]
            if live.shape == before.shape and live.dtype == before.dtype:
                live.copy_(before)
                self._marks[i] = buffer.mark

    def take(self, shard: int) -> Tensor | None:
        """Return the statistics of the shard that has just run, or None if there are none. Raises EngineError if the
        shard has changed a buffer without a rule, or the shape of a buffer."""
        self._check_still()
        if not self.statistics:
            return None
        values = self._values(self._means)
        ends = self._ends.to(values.device)
        different = nn.functional.pad((values != self._before).cumsum(0), (1, 0))[ends]
        parts = [values, (different[1:] != different[:-1]).to(self._dtype)]
        first = len(self._means)
        for i, buffer in enumerate(self._others):
            parts.append(self._leave(buffer, self._committed[first + i], shard))
        return torch.cat(parts)

    def load(self, statistics: Tensor, shards: int) -> None:
        """Combine the sum of the statistics of `shards` shards, and commit it. Raises EngineError if that fails."""
        self.restore()
        values, changed, rest = statistics.split([self.averaged, len(self._means), sum(self._parts)])
        means = (values / shards).split(self._sizes)
        new = [(b.tensor, m) for b, m, c in zip(self._means, means, changed.tolist(), strict=True) if c > 0]
        if new:
            torch._foreach_copy_([live for live, _ in new], [mean.view(live.shape) for live, mean in new])
        first = len(self._means)
        for i, (buffer, part) in enumerate(zip(self._others, rest.split(self._parts), strict=True)):
            before = self._committed[first + i]
            buffer.tensor.copy_(self._combine(buffer, before, part, shards).view(before.shape))
        self.commit()

    # --- one buffer

    def _width(self, buffer: Buffer) -> int:
        places = self._shards if buffer.rule.kind in ("gather", "mean") else 1
        return places * buffer.tensor.numel() * (PIECES if buffer.whole else 1)

    def _leave(self, buffer: Buffer, before: Tensor, shard: int) -> Tensor:
        """Return the statistics of a shard for one buffer in `_others`."""
        kind, tensor = buffer.rule.kind, buffer.tensor
        if tensor.shape != before.shape:
            raise EngineError(
                f"the buffer {buffer.path} changed its shape from {tuple(before.shape)} to {tuple(tensor.shape)} "
                "during training; create it with its largest shape"
            )
        if kind == "sum":
            return self._flat(tensor.to(torch.int64) - before.to(torch.int64) if buffer.whole else tensor - before)
        values = self._flat(tensor)
        if kind == "first":
            return values if shard == 0 else torch.full_like(values, 0.0 if buffer.whole else NOTHING)
        places = torch.full((self._shards, len(values)), 0.0 if buffer.whole else NOTHING, dtype=self._dtype)
        places = places.to(values.device)
        places[shard] = values
        return places.view(-1)

    def _combine(self, buffer: Buffer, before: Tensor, part: Tensor, shards: int) -> Tensor:
        """Return the new value of a buffer in `_others`. `part`: its part of the summed statistics."""
        rule, whole = buffer.rule, buffer.whole
        if rule.kind == "first":
            return self._unflat(part, whole)
        if rule.kind == "sum":
            change = self._unflat(part, whole).view(before.shape)
            total = before.to(torch.int64) + change if whole else before + change.to(before.dtype)
            return total if rule.modulo is None else total % rule.modulo
        rows = part.view(self._shards, -1)[:shards]
        values = [self._unflat(row, whole).view(before.shape).to(before.dtype) for row in rows]
        if rule.kind == "mean":
            return torch.stack([value.to(torch.float64) for value in values]).mean(0).round()
        assert rule.function is not None
        try:
            made = rule.function(before.clone(), values)
        except EngineError as error:
            raise EngineError(f"the buffer {buffer.path} cannot be concatenated: {error}") from None
        if not isinstance(made, Tensor) or made.shape != before.shape:
            shape = tuple(made.shape) if isinstance(made, Tensor) else f"a {type(made).__name__}"
            wanted = tuple(before.shape)
            raise EngineError(f"the rule of the buffer {buffer.path} must return shape {wanted}, not {shape}")
        return made

    def _flat(self, tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return tensor.reshape(-1).to(self._dtype)
        return _pieces(tensor.reshape(-1).to(torch.int64), self._dtype)

    @staticmethod
    def _unflat(part: Tensor, whole: bool) -> Tensor:
        return _whole(part) if whole else part

    def _values(self, buffers: list[Buffer]) -> Tensor:
        parts = [buffer.tensor.reshape(-1).to(self._dtype) for buffer in buffers]
        if parts:
            return torch.cat(parts)
        device = self._all[0].tensor.device if self._all else None
        return torch.empty(0, dtype=self._dtype, device=device)

    def _check_still(self) -> None:
        first = len(self._means) + len(self._others)
        thorough, self._thorough = self._thorough > 0, max(0, self._thorough - 1)
        for i, buffer in enumerate(self._still, first):
            mark = buffer.mark
            if mark == self._marks[i] and not thorough:
                continue
            if _same(buffer.tensor, self._committed[i]):
                self._marks[i] = mark
                continue
            raise EngineError(
                f"the buffer {buffer.path!r} changes during training, so each worker would have a different value. To "
                f"combine the values of several batches, add buffers={{{buffer.path!r}: 'mean'}} ('sum', 'first', "
                "'concatenate' or a function), and change the buffer only in training (if self.training). Or keep the "
                "state outside the training step"
            )


def find(modules: Sequence[nn.Module], declared: Mapping[str, Any], free: Sequence[str] = ()) -> list[Buffer]:
    """Return the buffers of the modules with their rules, each tensor once, without empty and `free` buffers.

    Raises EngineError for a declared path that fits no buffer, and for a complex buffer that has a rule.
    """
    found: list[Buffer] = []
    seen = set()
    matched: set[str] = set()
    for root in modules:
        for path, module in root.named_modules():
            own = getattr(module, "fabric_buffers", {})
            for name, tensor in module._buffers.items():
                if tensor is None or id(tensor) in seen or tensor.numel() == 0:
                    continue
                seen.add(id(tensor))
                where = f"{path}.{name}".lstrip(".")
                patterns = [pattern for pattern in declared if fnmatch.fnmatchcase(where, pattern)]
                matched.update(patterns)
                if where in free:
                    continue
                rule = rule_of(declared[patterns[0]]) if patterns else None
                if rule is None and name in own:
                    try:
                        rule = rule_of(own[name])
                    except ValueError as problem:
                        raise EngineError(f"fabric_buffers[{name!r}] of the buffer {where!r} {problem}") from None
                rule = rule or _known(module, name) or STILL
                if tensor.is_complex() and rule is not STILL:
                    raise EngineError(f"the buffer {where} is complex; the engine supports real numbers only")
                found.append(Buffer(module, name, where, rule))
    for pattern in declared:
        if pattern not in matched:
            raise EngineError(f"buffers={{{pattern!r}: ...}} matches no buffer of the model")
    return found


_OF_NORMALIZATION = {
    "running_mean": BufferRule("mean"), "running_var": BufferRule("mean"), "num_batches_tracked": BufferRule("first"),
}


def _known(module: nn.Module, name: str) -> BufferRule | None:
    """Return the rule for a buffer of one of torch's own layers, or None for any other buffer."""
    if isinstance(module, _NormBase):
        return _OF_NORMALIZATION.get(name)
    if isinstance(module, _SpectralNorm) and name in ("_u", "_v"):
        return BufferRule("first")
    hooks = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, SpectralNorm)]
    if any(name in (f"{hook.name}_u", f"{hook.name}_v") for hook in hooks):
        return BufferRule("first")
    return None


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def _pieces(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 64-bit integers as floats of 16 bits each, least significant first."""
    return torch.stack([(numbers >> (16 * i)) & 0xFFFF for i in range(PIECES)], 1).reshape(-1).to(dtype)


def _whole(pieces: Tensor) -> Tensor:
    """Return the integers of pieces, or of sums of pieces, in 64-bit arithmetic. Inverse of `_pieces`."""
    numbers = pieces.to(torch.int64).view(-1, PIECES)
    return sum((numbers[:, i] << (16 * i) for i in range(1, PIECES)), numbers[:, 0])
