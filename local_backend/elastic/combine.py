"""Rules that combine the values of one buffer after each shard of a step into one value. Pure functions of tensors.

Every shard starts from the same value `before`, so the result does not depend on which worker computes which shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from local_backend.elastic.errors import EngineError


@dataclass(frozen=True)
class BufferRule:
    """How the values of a buffer are combined."""

    #: "mean", "sum", "first", "gather" (needs the values of all shards), or "still" (training must not change it).
    kind: str
    #: For "sum": the new value is taken modulo this number.
    modulo: int | None = None
    #: For "gather": (value before the step, values of all shards in order) → new value.
    function: Callable[[Tensor, list[Tensor]], Tensor] | None = None


#: Rules by name.
NAMED = ("mean", "sum", "first", "concatenate")
#: The rule of a buffer for which no other rule is declared or known.
STILL = BufferRule("still")


def rule_of(declared: Any) -> BufferRule:
    """Return the rule for a declaration of the user: a name of `NAMED`, ("sum", modulo), ("concatenate", dimension), or
    a function (before, values of all shards) → value. Raises ValueError for any other declaration."""
    pair = isinstance(declared, (tuple, list)) and len(declared) == 2
    kind, more = declared if pair else (declared, None)
    known = kind in NAMED if isinstance(kind, str) else callable(kind)
    fits = more is None or (kind in ("sum", "concatenate") and isinstance(more, int) and not isinstance(more, bool))
    if not known or not fits:
        raise ValueError(
            f"must be one of {', '.join(NAMED)}, ('sum', modulo), ('concatenate', dim) or a function, not {declared!r}"
        )
    if kind == "concatenate":
        dimension = more or 0
        return BufferRule("gather", function=lambda before, values: concatenate(before, values, dimension))
    if kind == "sum":
        return BufferRule("sum", modulo=more)
    return BufferRule(kind) if isinstance(kind, str) else BufferRule("gather", function=kind)


def concatenate(before: Tensor, values: Sequence[Tensor], dimension: int = 0) -> Tensor:
    """Return the queue that results when all shards write in turn, each the rows that it has written into `before`.

    The rows lie along `dimension`. A shard may write one block of rows in place, which may wrap around the end (a queue
    with a pointer). Or it adds rows at the front and drops the last ones, or adds rows at the end and drops the first
    ones. Raises EngineError for any other change.
    """
    result = before.transpose(0, dimension).clone()
    first = result.clone()
    place: int | None = None
    for value in values:
        rows = value.transpose(0, dimension)
        if rows.shape != first.shape:
            raise EngineError(f"its shape changes from {tuple(before.shape)} to {tuple(value.shape)}")
        place = _write(result, first, rows, place)
    return result.transpose(0, dimension).contiguous()


def _write(result: Tensor, before: Tensor, rows: Tensor, place: int | None) -> int | None:
    """Apply a shard's change from `before` to `rows` to `result`. Return the row after the last block in place."""
    size = len(before)
    changed = [i for i in range(size) if not torch.equal(before[i], rows[i])]
    if not changed:
        return place
    block = _block(changed, size)
    # In a queue of equal rows a shift is invisible, so new rows at the very end may count as added at the end.
    in_place = block is not None and len(changed) < size and sum(block) != size
    shift = None if in_place else _shift(before, rows, len(changed))
    if shift is not None and shift > 0:
        result.copy_(torch.cat([rows[:shift], result[: size - shift]]))
    elif shift is not None:
        result.copy_(torch.cat([result[-shift:], rows[size + shift :]]))
    elif block is not None:
        start, count = block
        place = start if place is None else place
        for i in range(count):
            result[(place + i) % size] = rows[(start + i) % size]
        return (place + count) % size
    else:
        raise EngineError("the rows that a batch changes are neither one block nor new rows at the front or the end")
    return place


def _block(changed: list[int], size: int) -> tuple[int, int] | None:
    """Return (first row, number of rows) of one block, which may wrap around the end. None if there are gaps."""
    rows = set(changed)
    starts = [i for i in changed if (i - 1) % size not in rows]
    return (starts[0] if starts else 0, len(changed)) if len(starts) <= 1 else None


def _shift(before: Tensor, rows: Tensor, most: int) -> int | None:
    """Return by how many rows (at most `most`) old rows moved to the back (above 0) or front (below 0), or None."""
    size = len(before)
    for count in range(1, min(size, most + 1)):
        if torch.equal(rows[count:], before[: size - count]):
            return count
        if torch.equal(rows[: size - count], before[count:]):
            return -count
    return None
