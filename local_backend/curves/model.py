"""A value that a reader found, and the sources of values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

#: Sources, the most trusted first. A curve that several sources have is shown from the first of them.
LOG, FABRIC, EMETRICS, TENSORBOARD, WANDB, MLFLOW, HUGGINGFACE, LIGHTNING, PRINTED = SOURCES = (
    "dlicmd.log", "fabric", "emetrics", "tensorboard", "wandb", "mlflow", "huggingface", "lightning", "printed",
)
#: Units of a step. LINE counts the values of a curve, because the program named no step.
STEP, EPOCH, BATCH, LINE = UNITS = ("step", "epoch", "batch", "line")
#: Maximum number of characters of a name.
LONGEST_NAME = 100
#: Steps and times beyond this are left out. Floats hold all whole numbers up to here.
_LARGEST = 2.0**53


class MetricValue(NamedTuple):
    """One point. Without a `step`, the values of the name are counted. `time`: epoch seconds."""

    name: str
    value: float
    step: float | None = None
    unit: str = LINE
    time: float | None = None


class Reader(Protocol):
    """Reads one file as it grows."""

    source: str

    def feed(self, data: bytes, final: bool) -> tuple[int, list[MetricValue]]:
        """Return how many bytes of `data` are done, and the values in them. The next call begins with the other bytes.
        `final`: the file does not grow any more. Raises ValueError if the rest of the file is unreadable."""


#: Makes the reader of a file.
MakeReader = Callable[[], Reader]


def clean(name: object) -> str:
    """Return a name that fits into one line of a table; "" if there is none."""
    if not isinstance(name, str):
        return ""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in name[:1000]).split())[:LONGEST_NAME]


def number(value: object) -> float | None:
    """Return a number of a JSON value or a text; None if it is none. The number may be infinite or NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value) if len(str(value)) < 60 else None
    except (ValueError, OverflowError):
        return None


def sound(value: float | None) -> float | None:
    """Return a step or a time if it is usable, else None."""
    return value if value is not None and math.isfinite(value) and abs(value) < _LARGEST else None
