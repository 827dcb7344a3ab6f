"""A row of the table, and how much is measured for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from elastic_bench.machine import lack

T = TypeVar("T")


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    #: Cycles 2→4→2, deaths and starts.
    changes: int
    #: The same for torchrun, which takes half a minute for each.
    slow_changes: int
    #: Rounds of blocks, and seconds of a block.
    rounds: int
    seconds: float


FULL = Effort(changes=6, slow_changes=3, rounds=8, seconds=4.0)
QUICK = Effort(changes=2, slow_changes=1, rounds=3, seconds=2.0)


@dataclass
class Row:
    """One line. Numbers are None where nothing could be measured; `note` then says why."""

    what: str
    target: str
    unit: str = "s"
    ours: float | None = None
    other: float | None = None
    ratio: float | None = None
    met: bool | None = None
    note: str = ""
    #: Everything behind the numbers, for machines.
    details: dict[str, Any] = field(default_factory=dict)

    def add_note(self, text: str) -> None:
        self.note = "; ".join(filter(None, (self.note, text)))


#: Measures some rows; the folder is for its files.
Measure = Callable[[Path, Effort], Iterator[Row]]


def attempt(side: str, workers: int, work: Callable[[], T]) -> tuple[T | None, str]:
    """(what `work` returns, "") or, when it cannot be measured with so many workers or at all, (None, why)."""
    missing = lack(workers)
    if missing:
        return None, missing
    try:
        return work(), ""
    except (RuntimeError, OSError) as error:
        return None, f"{side}: {error}"
