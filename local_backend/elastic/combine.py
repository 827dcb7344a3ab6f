"""How the values that the shards of a step leave in one buffer become one value. Pure functions of tensors.

Every shard starts from the same value `before`, so none of these depends on which worker computed which shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from local_backend.elastic.errors import EngineError


@dataclass(frozen=True)
class Rule:
    """What becomes of a buffer."""

    #: "mean", "sum", "first", "gather" (the values of all shards are needed), or "still" (training must not change it).
    kind: str
    #: Of "sum": the changes are added up modulo this number.
    modulo: int | None = None
    #: Of "gather": (value before the step, values of all shards in order) → new value.
    function: Callable[[Tensor, list[Tensor]], Tensor] | None = None


#: A buffer without a rule.
STILL = Rule("still")


def rule_of(declared: Any) -> Rule:
    """The rule that a user has declared, which `recipe.Recipe` has checked."""
    kind, more = declared if isinstance(declared, (tuple, list)) else (declared, None)
    if kind == "concatenate":
        dimension = more or 0
        return Rule("gather", function=lambda before, values: concatenate(before, values, dimension))
    if kind == "sum":
        return Rule("sum", modulo=more)
    return Rule(kind) if isinstance(kind, str) else Rule("gather", function=kind)


def concatenate(before: Tensor, values: Sequence[Tensor], dimension: int = 0) -> Tensor:
    """A queue into which the shards have written one after the other, each as many rows as it wrote into `before`.

    Three ways to write are understood: rows in place, one block of them that may go around the end (a queue with a
    pointer); new rows at the front, the last ones fall out; new rows at the end, the first ones fall out. Raises
    EngineError for any other change.
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
    """Write into `result` what a shard has written into `before` to get `rows`; the place behind a block in place."""
    size = len(before)
    changed = [i for i in range(size) if not torch.equal(before[i], rows[i])]
    if not changed:
        return place
    block = _block(changed, size)
    # In a queue of equal rows nothing shows a shift: new rows at its very end are then taken for pushed.
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
        raise EngineError("a batch changes rows of it that are not one block, at the front or at the end")
    return place


def _block(changed: list[int], size: int) -> tuple[int, int] | None:
    """(first row, number of rows) of rows that follow each other, around the end too; None when there are gaps."""
    rows = set(changed)
    starts = [i for i in changed if (i - 1) % size not in rows]
    return (starts[0] if starts else 0, len(changed)) if len(starts) <= 1 else None


def _shift(before: Tensor, rows: Tensor, most: int) -> int | None:
    """By how many rows, up to `most`, the old ones have moved to the back (above 0) or to the front (below 0)."""
    size = len(before)
    for count in range(1, min(size, most + 1)):
        if torch.equal(rows[count:], before[: size - count]):
            return count
        if torch.equal(rows[: size - count], before[count:]):
            return -count
    return None
