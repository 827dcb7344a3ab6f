"""The curves of an exec in memory: one value per step, thinned when there are many, and shown once."""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from dlicmd.contract.reading import whole
from local_backend.curves.model import FABRIC, OF_RUN, SOURCES, MetricValue, clean, sound

#: Maximum number of curves, of points of one curve, and of points of all curves together.
MOST_CURVES, MOST_POINTS, MOST_IN_ALL = 200, 10_000, 200_000
_OF_RUN = frozenset((FABRIC, name) for name in OF_RUN)
#: Parts of a name that only say that a value belongs to the training.
_TRAIN = re.compile(r"^(train|training)_(?=.)")


class KeptCurve:
    """One curve of one source: points in the order of their steps."""

    def __init__(self, name: str, source: str, unit: str) -> None:
        self.name, self.source, self.unit = name, source, unit
        self.steps, self.values, self.times = array("d"), array("d"), array("d")
        #: Number of values that were not finite, and of those that came after the last finite one.
        self.left = self.left_since = 0
        #: Step and value that came last, the last step of the training if it is known, and how many values came.
        self.last: tuple[float, float] | None = None
        self.total: float | None = None
        self.count = 0
        #: Of so many values, one stays; the number of the last value, from 0; whether it is between two that stay.
        self._stride, self._ordinal, self._between = 1, -1, False

    def __len__(self) -> int:
        return len(self.steps)

    def points(self) -> list[tuple[float, float, float | None]]:
        """Return (step, value, epoch seconds or None)."""
        return [(step, value, None if math.isnan(at) else at)
                for step, value, at in zip(self.steps, self.values, self.times, strict=True)]

    def add(self, step: float | None, value: float, at: float | None) -> float | None:
        """Add a value, and return its step; None if it is not finite. The last value of a step counts."""
        self.count += 1
        if not math.isfinite(value):
            self.left += 1
            self.left_since += 1
            return None
        self.left_since = 0
        place = float(self.count) if step is None else step
        self.last = (place, value)
        moment = math.nan if at is None else at
        if not self.steps or place > self.steps[-1]:
            self._append(place, value, moment)
            return place
        index = bisect_left(self.steps, place)
        if self.steps[index] == place:
            self.values[index], self.times[index] = value, moment
        else:
            for line, one in ((self.steps, place), (self.values, value), (self.times, moment)):
                line.insert(index, one)
        return place

    def has(self, step: float, value: float) -> bool:
        """Return whether the curve has this value at this step."""
        index = bisect_left(self.steps, step)
        return index < len(self.steps) and self.steps[index] == step and self.values[index] == value

    def thin(self, most: int) -> None:
        """Leave out every second point while there are more than `most`."""
        while len(self) > most > 1:
            self._stride *= 2
            between = self._ordinal % self._stride != 0
            for line in (self.steps, self.values, self.times):
                last = line[-1]
                if self._between:
                    del line[-1]
                del line[1::2]
                if between:
                    line.append(last)
            self._between = between

    def _append(self, step: float, value: float, at: float) -> None:
        """Add a point at the end. It replaces the last one, if that one is between two that stay."""
        if self._between:
            self.steps[-1], self.values[-1], self.times[-1] = step, value, at
        else:
            self.steps.append(step)
            self.values.append(value)
            self.times.append(at)
        self._ordinal += 1
        self._between = self._ordinal % self._stride != 0


class Book:
    """All curves of an exec."""

    def __init__(self) -> None:
        self.curves: list[KeptCurve] = []
        self._found: dict[tuple[str, str], int] = {}
        self._most = MOST_POINTS

    def add(self, source: str, found: MetricValue) -> tuple[int, float] | None:
        """Add a value. Return the number of its curve, and its step; None if the value has no place."""
        index = self.place(source, clean(found.name), found.unit)
        if index is None:
            return None
        curve = self.curves[index]
        if found.step is not None and (sound(found.step) is None or found.unit != curve.unit):
            return None
        step = curve.add(found.step, found.value, sound(found.time))
        curve.total = sound(found.total)
        if len(curve) > self._most:
            curve.thin(self._most)
        return None if step is None else (index, step)

    def has(self, source: str, name: str, step: float, value: float) -> bool:
        """Return whether a curve has this value at this step."""
        index = self._found.get((source, clean(name)))
        return index is not None and self.curves[index].has(step, value)

    def place(self, source: str, name: str, unit: str) -> int | None:
        """Return the number of a curve, which is created if it is new; None if there are too many, or no name."""
        index = self._found.get((source, name))
        if index is None and name and len(self.curves) < MOST_CURVES:
            index = self._found[source, name] = len(self.curves)
            self.curves.append(KeptCurve(name, source, unit))
            self._most = max(2, min(MOST_POINTS, MOST_IN_ALL // len(self.curves)))
            for curve in self.curves:
                curve.thin(self._most)
        return index

    def last(self) -> dict[str, dict[str, Any]]:
        """Return the last values: name → {value, step, stepUnit, steps, left}, without unknown `steps` and `left` 0;
        the most important curves first, losses before others."""
        found: dict[str, dict[str, Any]] = {}
        for curve in sorted(shown(self.curves), key=_importance):
            if (curve.source, curve.name) in _OF_RUN:
                continue
            if curve.last is not None and curve.name not in found:
                step, value = curve.last
                found[curve.name] = {"value": value, "step": whole(step), "stepUnit": curve.unit}
                if curve.total is not None and curve.total >= step:
                    found[curve.name]["steps"] = whole(curve.total)
                if curve.left_since:
                    found[curve.name]["left"] = curve.left_since
        return found


class SourcedCurve(Protocol):
    """A curve, as far as the choice between sources needs it."""

    name: str
    source: str
    left: int

    def __len__(self) -> int:
        """Return the number of points, or whether there are any."""


C = TypeVar("C", bound=SourcedCurve)


def shown(curves: Iterable[C]) -> list[C]:
    """Return the curves without those that a more trusted source has, too. `train/loss` of one source is `loss` of
    another, and names differ in case and signs."""
    ordered = sorted((curve for curve in curves if len(curve) or curve.left), key=lambda one: SOURCES.index(one.source))
    kept: list[C] = []
    seen: dict[str, str] = {}
    for curve in ordered:
        if seen.setdefault(same(curve.name), curve.source) == curve.source:
            kept.append(curve)
    return kept


def same(name: str) -> str:
    """Return a text that is equal for all spellings of a name."""
    return _TRAIN.sub("", re.sub(r"[\W_]+", "_", name.casefold()).strip("_"))


def _importance(curve: KeptCurve) -> tuple[int, int, str]:
    name = same(curve.name)
    words = name.split("_")
    kind = 0 if name == "loss" else 1 if "loss" in words else 2 if {"acc", "accuracy"} & set(words) else 3
    return kind, len(words), name

