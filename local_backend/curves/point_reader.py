"""Reads the points of curves (layout.py) that a part of a chart needs: a bounded number of bytes, however long the
curve is. A program can change the files, so nothing in them is trusted."""

from __future__ import annotations

import math
import operator
import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import compress
from typing import BinaryIO, NamedTuple

from local_backend.curves.book import MOST_CURVES, same, shown
from local_backend.curves.layout import (
    MOST_RUNS,
    NAMES,
    SIZES,
    TIME,
    file_name,
    numbers_in,
    points_in,
    record_size,
    times_name,
)
from local_backend.curves.model import SOURCES, UNITS, clean
from local_backend.curves.points import entries

#: Opens a file of the folder; None for one that is missing, or that is not a plain file.
Open = Callable[[str], BinaryIO | None]
_LONGEST = 4 << 20
#: Least number of columns for which a level is chosen, and maximum number of records for each column.
_LEAST, _FOR_COLUMN = 256, 16
#: Maximum bytes that one curve reads, in spite of a damaged file.
_MOST = 16 << 20
#: Maximum number of points with a time read for each, and with groups of 64; more points have groups of 1024.
#: Maximum number of times that are read for groups.
_MOST_TIMED, _KNOWN_TIMES = (1 << 20, 1 << 22), 10_000
Piece = tuple[int, int]
#: Numbers of a summary.
_WIDE = 8


class PointArrays(NamedTuple):
    """Points in the order of their steps."""

    steps: array[float]
    values: array[float]


@dataclass
class StoredCurve:
    """A curve of which all points are kept."""

    number: int
    name: str
    source: str
    unit: str
    runs: list[int] = field(default_factory=list)
    #: Whether the curve is no longer kept.
    off: bool = False
    left: int = 0

    def __len__(self) -> int:
        return 0 if self.off else 1


class PointReader:
    """The curves in a folder."""

    def __init__(self, opened: Open) -> None:
        """Raises OSError."""
        self._opened = opened
        self._curves: dict[int, StoredCurve] = {}
        #: Whether the files are at their limit, and lack the newest points.
        self.full = False
        file = opened(NAMES)
        if file is None:
            return
        with file:
            for entry in entries(file.read(_LONGEST)):
                self._take(entry)

    def _take(self, entry: object) -> None:
        match entry:
            case {"n": int(number), "source": str(source), "name": str(name), "unit": str(unit)}:
                if source in SOURCES and unit in UNITS and len(self._curves) < MOST_CURVES and number >= 0:
                    self._curves[number] = StoredCurve(number, clean(name), source, unit)
            case {"n": int(number), "from": int(start)} if number in self._curves:
                if len(self._curves[number].runs) <= MOST_RUNS:
                    self._curves[number].runs.append(start)
            case {"n": int(number), "off": True} if number in self._curves:
                self._curves[number].off = True
            case {"full": True}:
                self.full = True

    @property
    def complete(self) -> bool:
        """Whether the files have all points of all curves."""
        return not self.full and not any(curve.off for curve in self._curves.values())

    def __bool__(self) -> bool:
        return bool(self._curves)

    def curves(self, metrics: Collection[str]) -> list[StoredCurve]:
        """Return the curves that are shown: those with these names, or all."""
        wanted = {same(name) for name in metrics}
        return [curve for curve in shown(self._curves.values()) if not wanted or same(curve.name) in wanted]

    def points(self, curve: StoredCurve, width: int, start: float | None, stop: float | None) -> PointArrays:
        """Return points of a part of a curve, and one more on each side. If there are many for each of `width` columns,
        return only the first, lowest, highest and last ones of small groups. Raises OSError."""
        with _CurveFiles(self._opened, curve.number) as files:
            return files.part(curve.runs, width, start, stop)

    def timed(self, curve: StoredCurve, start: float | None, stop: float | None) -> PointArrays:
        """Return the points of a part of a curve with their times in place of their steps, in the order of their times;
        without the points of unknown times. Of very many points, return the first, lowest, highest and last ones of
        small groups, with times between those of the first and the last one. Raises OSError."""
        with _CurveFiles(self._opened, curve.number) as files:
            return files.timed(curve.runs, start, stop)

    def last_step(self, curve: StoredCurve) -> float:
        """Return the largest step of a curve; minus infinity without points. Raises OSError."""
        steps = self.points(curve, 1, None, None).steps
        return steps[-1] if steps else -math.inf


class _CurveFiles:
    """The open files of a curve."""

    def __init__(self, opened: Open, number: int) -> None:
        self._files = [opened(file_name(number, level)) for level in range(len(SIZES))]
        self._counts = [0 if file is None else os.fstat(file.fileno()).st_size // record_size(level)
                        for level, file in enumerate(self._files)]
        self._times = opened(times_name(number))
        self._left = _MOST

    def __enter__(self) -> _CurveFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (*self._files, self._times):
            if file is not None:
                file.close()

    def part(self, runs: list[int], width: int, start: float | None, stop: float | None) -> PointArrays:
        """See PointReader.points."""
        pieces = []
        for begin, end in self._pieces(runs):
            low = begin if start is None else max(begin, self._place(start, begin, end, bisect_left) - 1)
            high = end if stop is None else min(end, self._place(stop, begin, end, bisect_right) + 1)
            if low < high:
                pieces.append((low, high))
        level = _level(sum(high - low for low, high in pieces), width)
        found = array("d")
        for low, high in pieces:
            found += self._collected(low, high, level)
        return _sound(found[0::2], found[1::2])

    def timed(self, runs: list[int], start: float | None, stop: float | None) -> PointArrays:
        """See PointReader.timed."""
        pieces = []
        for begin, end in self._pieces(runs):
            records = range(begin, end)
            low = begin if start is None else begin + max(0, bisect_left(records, start, key=self._time) - 1)
            high = end if stop is None else begin + bisect_right(records, stop, key=self._time) + 1
            if low < min(high, end):
                pieces.append((low, min(high, end)))
        level = _level_of_times(sum(high - low for low, high in pieces))
        moments, values = array("d"), array("d")
        for low, high in pieces:
            found = self._collected(low, high, level)
            moments += self._moments(low, low + len(found) // 2) if level == 0 else self._between(
                found[0::2], low, high)
            values += found[1::2]
        return _in_time(moments, values)

    def _moments(self, low: int, high: int) -> array[float]:
        """Return the times of the records from `low` to before `high`: 0 for those that the file lacks."""
        data = b"" if self._times is None else os.pread(self._times.fileno(), (high - low) * TIME.size, low * TIME.size)
        found = numbers_in(data, TIME.size)
        return found + array("d", bytes((high - low - len(found)) * TIME.size))

    def _time(self, number: int) -> float:
        return self._moments(number, number + 1)[0]

    def _between(self, steps: array[float], low: int, high: int) -> array[float]:
        """Return the times of points of these steps, between the known times of records from `low` to before `high`."""
        numbers = (*range(low, high - 1, -(-(high - low) // _KNOWN_TIMES)), high - 1)
        known = [one for one in ((self._step(number), self._time(number)) for number in numbers) if one[1]]
        places = [step for step, _ in known]
        found = array("d")
        for step in steps:
            at = bisect_left(places, step)
            if at < len(known) and known[at][0] == step:
                found.append(known[at][1])
            elif 0 < at < len(known):
                (before, begin), (after, end) = known[at - 1 : at + 1]
                found.append(begin + (end - begin) * (step - before) / (after - before))
            else:
                found.append(0.0)
        return found

    def _pieces(self, runs: list[int]) -> list[Piece]:
        """Return the records that count, in the order of their steps: of two runs, the later one counts between its
        first and its last step."""
        count = self._counts[0]
        starts = sorted({0, *(start for start in runs if 0 < start < count)})
        ranges = [(start, end) for start, end in zip(starts, [*starts[1:], count], strict=True) if start < end]
        if len(ranges) == 1:
            return ranges
        #: Intervals of steps, without their limits, that no later run covers.
        free: list[tuple[float, float]] = [(-math.inf, math.inf)]
        found: list[tuple[float, Piece]] = []
        for begin, end in reversed(ranges):
            first, last = self._step(begin), self._step(end - 1)
            rest: list[tuple[float, float]] = []
            for low, high in free:
                if first >= high or last <= low:
                    rest.append((low, high))
                    continue
                place = self._place(low, begin, end, bisect_right), self._place(high, begin, end, bisect_left)
                if place[0] < place[1]:
                    found.append((self._step(place[0]), place))
                rest += [one for one in ((low, first), (last, high)) if one[0] < one[1]]
            free = rest
        return [piece for _, piece in sorted(found)]

    def _collected(self, low: int, high: int, level: int) -> array[float]:
        """Return step and value of points of the records from `low` to before `high`, from whole records of a level as
        far as possible, and from those of the level below it at both ends."""
        if low >= high:
            return array("d")
        if level == 0:
            return numbers_in(self._read(0, low, high - low), record_size(0))
        size = SIZES[level]
        first, last = -(-low // size), min(high // size, self._counts[level])
        if first >= last:
            return self._collected(low, high, level - 1)
        inner = _ordered(numbers_in(self._read(level, first, last - first), record_size(level)))
        before = self._collected(low, first * size, level - 1)
        return before + inner + self._collected((first + len(inner) // _WIDE) * size, high, level - 1)

    def _place(self, step: float, begin: int, end: int, bisect: Callable[..., int]) -> int:
        """Return the number of the first record at or after a step (bisect_left), or after it (bisect_right)."""
        if math.isinf(step):
            return begin if step < 0 else end
        return begin + bisect(range(begin, end), step, key=self._step)

    def _step(self, number: int) -> float:
        found = points_in(self._read(0, number, 1))
        return found[0][0] if found else math.inf

    def _read(self, level: int, first: int, count: int) -> bytes:
        """Return records of a level: fewer when the limit is reached."""
        file, size = self._files[level], record_size(level)
        if file is None:
            return b""
        most = min(count * size, self._left)
        data = os.pread(file.fileno(), most, first * size) if most > 0 else b""
        self._left -= len(data)
        return data


def _level(points: int, width: int) -> int:
    """Return the level whose records are read to draw so many points. A record must be small beside a column, unless
    there is only one."""
    if width == 1:
        return len(SIZES) - 1
    most = _FOR_COLUMN * max(width, _LEAST)
    return next((level for level in range(len(SIZES) - 1)
                 if points <= most * (SIZES[1] // _FOR_COLUMN if level == 0 else SIZES[level])), len(SIZES) - 1)


def _level_of_times(points: int) -> int:
    """Return the level whose records are read to draw so many points over their times."""
    return next((level for level, most in enumerate(_MOST_TIMED) if points <= most), len(_MOST_TIMED))


def _in_time(moments: array[float], values: array[float]) -> PointArrays:
    """Return the points with known times and finite values, in the order of their times."""
    found = [one for one in zip(moments, values, strict=True) if one[0] and math.isfinite(one[0] + one[1])]
    if not all(map(operator.le, moments, moments[1:])):
        found.sort(key=operator.itemgetter(0))
    return PointArrays(array("d", [moment for moment, _ in found]), array("d", [value for _, value in found]))


def _ordered(numbers: array[float]) -> array[float]:
    """Return the numbers of summaries with the lowest and the highest point of each in the order of their steps."""
    swapped = compress(range(2, len(numbers), _WIDE), map(operator.gt, numbers[2::_WIDE], numbers[4::_WIDE]))
    for at in swapped:
        numbers[at : at + 4] = numbers[at + 2 : at + 4] + numbers[at : at + 2]
    return numbers


def _sound(steps: array[float], values: array[float]) -> PointArrays:
    """Return the points with finite values and growing steps."""
    if math.isfinite(sum(steps)) and math.isfinite(sum(values)) and all(map(operator.le, steps, steps[1:])):
        if all(map(operator.lt, steps, steps[1:])):
            return PointArrays(steps, values)
        is_new = [True, *map(operator.lt, steps, steps[1:])]
        return PointArrays(array("d", compress(steps, is_new)), array("d", compress(values, is_new)))
    found = PointArrays(array("d"), array("d"))
    for step, value in zip(steps, values, strict=True):
        if math.isfinite(step) and math.isfinite(value) and (not found.steps or step > found.steps[-1]):
            found.steps.append(step)
            found.values.append(value)
    return found
