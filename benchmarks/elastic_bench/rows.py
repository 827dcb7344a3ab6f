"""A row of the table, and the number of measurements for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from elastic_bench.machine import lack

T = TypeVar("T")


@dataclass(frozen=True)
class Effort:
    """The number of measurements."""

    #: Number of cycles 2→4→2, of deaths and of starts.
    changes: int
    #: The same for torchrun, which needs half a minute for each.
    slow_changes: int
    #: Number of rounds, and seconds of a block.
    rounds: int
    seconds: float


FULL = Effort(changes=6, slow_changes=3, rounds=8, seconds=4.0)
QUICK = Effort(changes=2, slow_changes=1, rounds=3, seconds=2.0)


@dataclass
class Row:
    """One row of the table. Numbers are None if they could not be measured; `note` then says why."""

    what: str
    target: str
    unit: str = "s"
    ours: float | None = None
    other: float | None = None
    ratio: float | None = None
    met: bool | None = None
    note: str = ""
    #: All single measurements, for the JSON output.
    details: dict[str, Any] = field(default_factory=dict)

    def add_note(self, text: str) -> None:
        self.note = "; ".join(filter(None, (self.note, text)))


#: Function that measures some rows. The folder is for its files.
Measure = Callable[[Path, Effort], Iterator[Row]]


def attempt(side: str, workers: int, work: Callable[[], T]) -> tuple[T | None, str]:
    """Return (the result of `work`, ""). If this side cannot be measured, or not with so many workers, return (None,
    reason)."""
    missing = lack(workers)
    if missing:
        return None, missing
    try:
        return work(), ""
    except (RuntimeError, OSError) as error:
        return None, f"{side}: {error}"
