"""A value that a reader found, and the sources of values."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, Protocol

#: Sources, the most trusted first. A curve that several sources have is shown from the first of them.
#: RESOURCES are measured by the runner, in a file of their own.
LOG, FABRIC, EMETRICS, TENSORBOARD, WANDB, MLFLOW, HUGGINGFACE, LIGHTNING, PRINTED, RESOURCES = SOURCES = (
    "dlicmd.log", "fabric", "emetrics", "tensorboard", "wandb", "mlflow", "huggingface", "lightning", "printed",
    "resources",
)
#: Units of a step. LINE counts the values of a curve, because the program named no step.
STEP, EPOCH, BATCH, LINE, SECOND = UNITS = ("step", "epoch", "batch", "line", "second")
#: First words of the names of curves of RESOURCES, and the units of their values.
CPU, MEMORY, GPU, GPU_MEMORY = RESOURCE_KINDS = ("cpu", "memory", "gpu", "gpu-memory")
_VALUE_UNITS = {CPU: "cores", MEMORY: "bytes", GPU: "gpus", GPU_MEMORY: "bytes"}
#: Curves that the engine reports about a training itself, not about its model.
OF_RUN = ("samplesPerSecond", "workers", "deaths")
#: Maximum number of characters of a name.
LONGEST_NAME = 100
#: Maximum of steps and times: floats represent all whole numbers up to this one. Readers drop larger values.
_LARGEST = 2.0**53


class MetricValue(NamedTuple):
    """One point. Without a `step`, the step is the number of the value. `time`: epoch seconds. `total`: the last step
    of the training, if the program names it."""

    name: str
    value: float
    step: float | None = None
    unit: str = LINE
    time: float | None = None
    total: float | None = None


class Reader(Protocol):
    """Reads one file as it grows."""

    source: str

    def feed(self, data: bytes, final: bool) -> tuple[int, list[MetricValue]]:
        """Return the number of consumed bytes of `data`, and the values in them. The next call begins with the other
        bytes. `final`: the file no longer grows. Raises ValueError if the rest of the file is unreadable."""


#: Makes the reader of a file.
MakeReader = Callable[[], Reader]


def clean(name: object) -> str:
    """Return a name that fits into one line of a table, or "" if nothing remains."""
    return _cleaned(name[:1000]) if isinstance(name, str) else ""


@lru_cache(1000)
def _cleaned(name: str) -> str:
    return " ".join("".join(sign if sign.isprintable() else " " for sign in name).split())[:LONGEST_NAME]


def value_unit(source: str, name: str) -> str:
    """Return the unit of the values of a curve, empty if it is unknown."""
    return _VALUE_UNITS.get(name.partition(" ")[0], "") if source == RESOURCES else ""


def number(value: object) -> float | None:
    """Return a JSON value or a text as a number, or None. The number may be infinite or NaN."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value) if len(str(value)) < 60 else None
    except (ValueError, OverflowError):
        return None


def sound(value: float | None) -> float | None:
    """Return a step or a time if it is usable, else None."""
    return value if value is not None and math.isfinite(value) and abs(value) < _LARGEST else None
