"""Writes all points of the curves of an exec (layout.py). The runner does this, as the user of the job."""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from pathlib import Path
from typing import Any

from local_backend.curves.layout import (
    MOST_BYTES,
    MOST_RUNS,
    NAMES,
    POINT,
    SIZES,
    TIME,
    StoredPoint,
    Summary,
    file_name,
    numbers_in,
    of_points,
    of_summaries,
    packed,
    points_in,
    record_size,
    summaries_in,
    times_name,
)

_LEVELS = range(1, len(SIZES))
#: Maximum bytes that are read to make lost summaries again, and of the list of names.
_MOST_MENDED, _LONGEST = 16 << 20, 4 << 20
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_POINT_BYTES = POINT.size + TIME.size
#: Points that are read together when an old point is looked for.
_TOGETHER = 256

Key = tuple[str, str, str]


class PointWriter:
    """Keeps all points of an exec. `add` remembers a point, `flush` writes. A writer continues what an earlier one has
    left."""

    def __init__(self, folder: Path, most: int = MOST_BYTES) -> None:
        """Raises OSError."""
        self._folder, self._most = folder, most
        folder.mkdir(mode=0o700, exist_ok=True)
        self._curves: dict[Key, _StoredCurve | None] = {}
        self._lines: list[str] = []
        self._full, self._bytes = False, 0
        runs: dict[int, list[int]] = {}
        off: set[int] = set()
        numbers: dict[int, Key] = {}
        for entry in entries(_read(folder / NAMES, 0, _LONGEST)):
            match entry:
                case {"n": int(number), "source": str(source), "name": str(name), "unit": str(unit)}:
                    numbers[number] = source, name, unit
                case {"n": int(number), "from": int(start)}:
                    runs.setdefault(number, []).append(start)
                case {"n": int(number), "off": True}:
                    off.add(number)
                case {"full": True}:
                    self._full = True
        self._next = max(numbers, default=-1) + 1
        for number, key in numbers.items():
            curve = None if number in off else _StoredCurve(folder, number, runs.get(number, []))
            self._curves[key] = curve
            self._bytes += 0 if curve is None else curve.count * _POINT_BYTES

    def add(self, key: Key, step: float, value: float, at: float | None) -> None:
        """Take the point of a curve: source, name, unit. `at`: its time, epoch seconds."""
        if self._full:
            return
        if key not in self._curves:
            source, name, unit = key
            self._note(n=self._next, source=source, name=name, unit=unit)
            self._curves[key] = _StoredCurve(self._folder, self._next, [])
            self._next += 1
        curve = self._curves[key]
        if curve is None:
            return
        before, runs = curve.count, len(curve.runs)
        curve.add(step, value, at or 0.0)
        self._bytes += (curve.count - before) * _POINT_BYTES
        if len(curve.runs) > runs:
            self._note(n=curve.number, **{"from": curve.runs[-1]})
            if len(curve.runs) > MOST_RUNS:
                self._note(n=curve.number, off=True)
                self._curves[key] = None
        if self._bytes >= self._most:
            self._full = True
            self._note(full=True)

    def flush(self) -> None:
        """Write the new points. Raises OSError; the next call then writes them."""
        if self._lines:
            data = "".join(self._lines).encode()
            _write(self._folder / NAMES, None, data)
            self._lines.clear()
        for curve in self._curves.values():
            if curve is not None:
                curve.flush()

    def _note(self, **values: Any) -> None:
        self._lines.append(json.dumps(values, separators=(",", ":")) + "\n")


class _StoredCurve:
    """The files of one curve."""

    def __init__(self, folder: Path, number: int, runs: list[int]) -> None:
        self.number = number
        self._paths = [folder / file_name(number, level) for level in range(len(SIZES))]
        self._times_path = folder / times_name(number)
        self.count = _size(self._paths[0]) // POINT.size
        #: Number of the record that was found last, and records that were read together with the number of the first.
        self._hint, self._near = -1, (0, list[StoredPoint]())
        #: Points that are not written yet, or may be replaced, with their times; the number of the first one.
        self._new: list[StoredPoint] = []
        self._times: list[float] = []
        self._written = 0
        #: The parts of the next summary of each level, and summaries that are not written yet with their place.
        self._parts: list[list[Summary]] = [[] for _ in SIZES]
        self._block: list[StoredPoint] = []
        self._summaries: list[list[Summary]] = [[] for _ in SIZES]
        self._places = [0] * len(SIZES)
        self._mend()
        self.runs = [start for start in runs if start < self.count] or [0]
        self._last = self._at(self.count - 1)[0] if self.count else float("-inf")
        self._top = max((self._at(end - 1)[0] for _, end in self._ranges()), default=float("-inf"))

    def add(self, step: float, value: float, at: float) -> None:
        """Take a point. A point that is there already changes nothing."""
        if step == self._last and self._new:
            if self._new[-1] != (step, value):
                self._new[-1] = self._block[-1] = (step, value)
                self._times[-1] = at
            return
        if step <= self._top:
            if self._has(step, value):
                return
            if step <= self._last or self._last == self._top:
                self.runs.append(self.count)
        elif self._last < self._top:
            self.runs.append(self.count)
        self._append((step, value), at)

    def flush(self) -> None:
        """Write what is new. Raises OSError."""
        if not self._new:
            return
        _write(self._times_path, self._written * TIME.size, b"".join(map(TIME.pack, self._times)))
        _write(self._paths[0], self._written * POINT.size, b"".join(POINT.pack(*point) for point in self._new))
        for level in _LEVELS:
            if self._summaries[level]:
                _write(self._paths[level], self._places[level] * record_size(level), packed(self._summaries[level]))
                self._places[level] += len(self._summaries[level])
                self._summaries[level].clear()
        self._written += len(self._new) - 1
        del self._new[:-1], self._times[:-1]

    def _append(self, point: StoredPoint, at: float) -> None:
        if len(self._block) == SIZES[1]:
            self._summarize(1, of_points(self._block))
            self._block.clear()
        self._block.append(point)
        self._new.append(point)
        self._times.append(at)
        self.count += 1
        self._last = point[0]
        self._top = max(self._top, point[0])

    def _summarize(self, level: int, found: Summary) -> None:
        self._summaries[level].append(found)
        if level + 1 < len(SIZES):
            parts = self._parts[level]
            parts.append(found)
            if len(parts) == SIZES[level + 1] // SIZES[level]:
                self._summarize(level + 1, of_summaries(parts))
                parts.clear()

    def _mend(self) -> None:
        """Make the files agree after an interrupted write. Begin anew if too much is lost. Raises OSError."""
        blocks = max(0, self.count - 1) // SIZES[1]
        self._places[1] = known = min(_size(self._paths[1]) // record_size(1), blocks)
        if (blocks - known) * SIZES[1] * POINT.size > _MOST_MENDED:
            for path in (*self._paths, self._times_path):
                path.unlink(missing_ok=True)
            self.count = self._places[1] = blocks = known = 0
        for level in _LEVELS[:-1]:
            self._mend_level(level, level + 1)
        lost = points_in(_read(self._paths[0], known * SIZES[1] * POINT.size, (blocks - known) * SIZES[1] * POINT.size))
        for at in range(0, len(lost), SIZES[1]):
            self._summarize(1, of_points(lost[at : at + SIZES[1]]))
        begin = blocks * SIZES[1]
        self._block = points_in(_read(self._paths[0], begin * POINT.size, (self.count - begin) * POINT.size))
        self.count = begin + len(self._block)
        self._new, self._written = self._block[-1:], max(0, self.count - 1)
        known_times = numbers_in(_read(self._times_path, self._written * TIME.size, TIME.size), TIME.size)
        self._times = list(known_times or (0.0,)) if self._new else []

    def _mend_level(self, level: int, above: int) -> None:
        """Combine the records of a level that the level above it does not combine yet."""
        fan, size, known = SIZES[above] // SIZES[level], record_size(level), self._places[level]
        have = min(_size(self._paths[above]) // size, known // fan)
        found = summaries_in(_read(self._paths[level], have * fan * size, (known - have * fan) * size))
        found += self._summaries[level]
        self._places[above] = have
        whole = len(found) // fan * fan
        self._summaries[above] = [of_summaries(found[at : at + fan]) for at in range(0, whole, fan)]
        self._parts[level] = found[whole:]

    def _ranges(self) -> list[tuple[int, int]]:
        """Return the records of each run, from the first to before the last."""
        ends = [*self.runs[1:], self.count]
        return [(start, end) for start, end in zip(self.runs, ends, strict=True) if start < end]

    def _has(self, step: float, value: float) -> bool:
        """Return whether this point counts at this step already."""
        following = self._hint + 1
        if 0 < following < self.count and self._at(following) == (step, value) and len(self.runs) == 1:
            self._hint = following
            return True
        for start, end in reversed(self._ranges()):
            if self._at(start)[0] <= step <= self._at(end - 1)[0]:
                place = bisect_left(range(start, end), step, key=lambda one: self._at(one)[0]) + start
                self._hint = place
                return place < end and self._at(place) == (step, value)
        return False

    def _at(self, number: int) -> StoredPoint:
        if number >= self._written and self._new:
            return self._new[number - self._written]
        begin, points = self._near
        if not 0 <= number - begin < len(points):
            begin = number - number % _TOGETHER
            most = min(_TOGETHER, self._written - begin)
            points = points_in(_read(self._paths[0], begin * POINT.size, most * POINT.size))
            self._near = begin, points
        return points[number - begin] if number - begin < len(points) else (float("inf"), 0.0)


def entries(data: bytes) -> list[object]:
    """Return the JSON values of complete lines, without lines that are none."""
    found: list[object] = []
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError):
            continue
    return found


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _read(path: Path, offset: int, most: int) -> bytes:
    """Return bytes of a file; none for a missing file. Raises OSError."""
    if most <= 0:
        return b""
    try:
        fd = os.open(path, os.O_RDONLY | _FLAGS)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(fd, most, offset)
    finally:
        os.close(fd)


def _write(path: Path, offset: int | None, data: bytes) -> None:
    """Write bytes at an offset, or at the end. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | _FLAGS, 0o600)
    try:
        place = os.fstat(fd).st_size if offset is None else offset
        view = memoryview(data)
        while view:
            written = os.pwrite(fd, view, place)
            view, place = view[written:], place + written
    finally:
        os.close(fd)
