"""The progress of a program: the values that a runner passes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from dlicmd.contract import wire
from dlicmd.contract.reading import whole
from local_backend.curves.book import MOST_CURVES
from local_backend.curves.model import UNITS, clean, number, sound
from local_backend.runtime.launcher_log import one_line

#: Seconds between two deliveries.
_EVERY = 0.2
#: Names of the numbers. All other names are dropped, so that a program cannot make the progress large.
_NUMBERS = frozenset({
    wire.WORKERS, wire.EPOCH, wire.EPOCHS, wire.STEP, wire.STEPS, wire.LOSS, wire.ACCURACY, wire.SAMPLES_PER_SECOND,
    wire.SECONDS_LEFT, wire.GENERATION, wire.RESIZES, wire.DEATHS, wire.READY_KERNELS, wire.PAUSE, wire.STEP_SECONDS,
})
#: Names of numbers that may have any value. All others are counts and times.
_ANY = frozenset({wire.LOSS, wire.ACCURACY})


def valid(values: object) -> dict[str, Any]:
    """Return the values with known names and usable content: numbers, a message of one line, or None for no value,
    and the last values of metrics. Counts and times are finite and not negative."""
    if not isinstance(values, Mapping):
        return {}
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name == wire.MESSAGE and isinstance(value, str | None):
            found[name] = value and one_line(value)
        elif name == wire.LAST_METRICS:
            found[name] = _last(value)
        elif name in _NUMBERS and _is_usable(name, value):
            found[name] = value
    return found


def _is_usable(name: str, value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and (name in _ANY or 0 <= value < math.inf)


def _last(values: object) -> dict[str, dict[str, Any]]:
    """Return the last values of metrics: name → {value, step, stepUnit, steps, left}, at most MOST_CURVES."""
    found: dict[str, dict[str, Any]] = {}
    for name, one in values.items() if isinstance(values, Mapping) else ():
        match one:
            case {"value": int() | float() as value, "step": int() | float() as step} if clean(name):
                amount, place = number(value), sound(number(step))
                if amount is not None and math.isfinite(amount) and place is not None and len(found) < MOST_CURVES:
                    entry = found[clean(name)] = {"value": amount, "step": whole(place)}
                    if one.get(wire.STEP_UNIT) in UNITS:
                        entry[wire.STEP_UNIT] = one[wire.STEP_UNIT]
                    if (total := sound(number(one.get(wire.STEPS)))) is not None:
                        entry[wire.STEPS] = whole(total)
                    if type(left := one.get(wire.LEFT)) is int and left > 0 and sound(left):
                        entry[wire.LEFT] = left
    return found


def furthest(values: Mapping[str, Any]) -> float:
    """Return the highest step in the values: the engine's, or that of the metrics of another program. -1 for none."""
    metrics = [one.get(wire.STEP) for one in (values.get(wire.LAST_METRICS) or {}).values()]
    steps = [step for step in (values.get(wire.STEP), *metrics) if isinstance(step, int | float)]
    return float(max(steps, default=-1))


class Progress:
    """The latest values; `flush` delivers them at most five times a second. The next value replaces a lost one."""

    def __init__(self, deliver: Callable[[Mapping[str, Any]], None]) -> None:
        #: The latest value of each name.
        self.values: dict[str, Any] = {}
        #: When the values are due to be delivered; None when all are delivered.
        self.due: float | None = None
        self._deliver = deliver
        self._delivered = -_EVERY

    def update(self, values: Mapping[str, Any]) -> None:
        """Take new values; values not named here stay."""
        self.values |= valid(values)
        if self.due is None:
            self.due = max(time.monotonic(), self._delivered + _EVERY)
        self.flush()

    def flush(self, now: bool = False) -> None:
        """Deliver the new values if they are due, or at once with `now`."""
        moment = time.monotonic()
        if self.due is None or (moment < self.due and not now):
            return
        self.due, self._delivered = None, moment
        self._deliver(dict(self.values))
