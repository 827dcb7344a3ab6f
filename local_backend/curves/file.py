"""The file with the curves of an exec: the runner appends, the server reads.

The first line is {"generation": N, "began": epoch seconds}. Then {"i", "name", "source", "unit"} introduces curve
number i, {"i", "p"} adds points [step, value, epoch seconds or null], and {"i", "left"} says how many values were not
finite. Of two points of one step, the later one counts. A file that is too long is written anew, with another
generation.
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from local_backend.curves.book import MOST_CURVES, MOST_IN_ALL, MOST_POINTS, Book, KeptCurve, same, shown
from local_backend.curves.model import LINE, SOURCES, UNITS, MetricValue, clean, number, sound, value_unit
from local_backend.files import sync_directory, write_atomic

#: Maximum bytes that a server reads. A file that is longer than 2 times its shortest form, and this many bytes, is
#: written anew.
LONGEST, _SLACK = 64 << 20, 4 << 20
#: Maximum number of points in one line, and maximum bytes of a line.
_LINE, _LONGEST_LINE = 1000, 1 << 20
#: Maximum number of points in an answer.
_MOST_SHOWN = 2 * MOST_IN_ALL

Point = tuple[float, float, float | None]


class CurveFile:
    """Writes the curves of a book to a file."""

    def __init__(self, path: Path, book: Book, began: float) -> None:
        """Begin a new generation of the file. `began`: when the exec first ran (epoch seconds). Raises OSError."""
        self._path, self._book, self._began = path, book, began
        self._new: dict[int, dict[float, Point]] = {}
        self._known, self._size, self._limit = 0, 0, 0
        self._left: dict[int, int] = {}
        #: Whether a write has failed: the file then lacks points that the book has.
        self._lacks = False
        self._rewrite()

    def note(self, index: int, step: float, value: float, at: float | None) -> None:
        """Remember a point that `flush` writes."""
        self._new.setdefault(index, {})[step] = (step, value, at)

    def flush(self) -> None:
        """Append the new points. Raises OSError; the next call then writes the whole file."""
        lines = [*self._introduced(), *self._points()]
        if not lines and not self._lacks:
            return
        lacked, self._lacks = self._lacks, True
        data = "".join(lines).encode()
        if lacked or self._size + len(data) > self._limit:
            self._rewrite()
            self._lacks = False
            return
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if os.write(fd, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        finally:
            os.close(fd)
        self._size += len(data)
        self._lacks = False

    def sync(self) -> None:
        """Bring what is written to the disk. Raises OSError."""
        fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_directory(self._path.parent)

    def _introduced(self) -> list[str]:
        """Return lines for the new curves, and for changed numbers of values that were left out."""
        lines = [_line(i=index, name=curve.name, source=curve.source, unit=curve.unit)
                 for index, curve in enumerate(self._book.curves[self._known:], self._known)]
        self._known = len(self._book.curves)
        for index, curve in enumerate(self._book.curves):
            if curve.left != self._left.get(index, 0):
                self._left[index] = curve.left
                lines.append(_line(i=index, left=curve.left))
        return lines

    def _points(self) -> list[str]:
        found, self._new = self._new, {}
        return [line for index, points in found.items() for line in _lines(index, list(points.values()))]

    def _rewrite(self) -> None:
        self._known, self._left, self._new = 0, {}, {}
        head = [_line(generation=time.time_ns() // 1_000_000, began=self._began), *self._introduced()]
        points = [line for index, curve in enumerate(self._book.curves) for line in _lines(index, curve.points())]
        data = "".join([*head, *points]).encode()
        write_atomic(self._path, data, durable=False)
        self._size, self._limit = len(data), min(LONGEST, 2 * len(data) + _SLACK)


def _line(**values: Any) -> str:
    return json.dumps(values, separators=(",", ":")) + "\n"


def _lines(index: int, points: list[Point]) -> list[str]:
    return [_line(i=index, p=points[at : at + _LINE]) for at in range(0, len(points), _LINE)]


class Reading(NamedTuple):
    """What a file contains: `whole` says whether `curves` has all points, or only those after the cursor."""

    curves: list[dict[str, Any]]
    cursor: str
    whole: bool


def began(file: BinaryIO) -> float | None:
    """Return when the exec first ran, from the first line of a file. The file is then at its beginning again."""
    head = _entry(file.readline(_SLACK))
    file.seek(0)
    return sound(number(head.get("began"))) if isinstance(head, dict) else None


def load(file: BinaryIO, book: Book) -> None:
    """Add the curves of a file to a book, without those whose steps only count values: the reader of their file begins
    again."""
    names: dict[int, MetricValue] = {}
    sources: dict[int, str] = {}
    for line in file.read(LONGEST).splitlines():
        entry = _entry(line)
        match entry:
            case {"i": int(index), "name": str(name), "source": str(source), "unit": str(unit)} if unit != LINE:
                if source in SOURCES and unit in UNITS:
                    names[index], sources[index] = MetricValue(name, 0.0, unit=unit), source
            case {"i": int(index), "p": list(points)} if index in names:
                for step, value, at in _sound_points(points):
                    book.add(sources[index], names[index]._replace(value=value, step=step, time=at))


def read(file: BinaryIO, cursor: str, metrics: Collection[str]) -> Reading:
    """Return the curves that are shown, as JSON objects: all points, or those after the cursor of an earlier call.
    `metrics`: names to return, all without any. A `cursor` that is unknown returns all points."""
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    lines = _lines_of(file)
    head = next(lines, b"")
    generation = _generation(head)
    if generation is None:
        return Reading([], "0.0", True)
    began, _, offset = cursor.partition(".")
    known = began == str(generation) and offset.isdecimal() and len(offset) < 15
    start = int(offset) if known and int(offset) <= end else 0
    curves: dict[int, KeptCurve] = {}
    #: The steps of each curve after the cursor.
    fresh: dict[int, set[float]] = {}
    at = len(head)
    for line in lines:
        at += len(line)
        match _entry(line):
            case {"i": int(index), "name": str(name), "source": str(source), "unit": str(unit)}:
                if source in SOURCES and unit in UNITS and len(curves) < MOST_CURVES:
                    curves[index] = KeptCurve(clean(name), source, unit)
            case {"i": int(index), "left": int(left)} if index in curves:
                curves[index].left = left
            case {"i": int(index), "p": list(points)} if index in curves:
                sound_points = _sound_points(points)
                for point in sound_points:
                    curves[index].add(*point)
                curves[index].thin(MOST_POINTS)
                if at > start > 0:
                    _note(fresh.setdefault(index, set()), curves[index], sound_points)
    wanted = {same(name) for name in metrics}
    numbers = {id(curve): index for index, curve in curves.items()}
    chosen = [curve for curve in shown(curves.values()) if not wanted or same(curve.name) in wanted]
    _bound(chosen)
    objects = [_object(curve, None if start == 0 else fresh.get(numbers[id(curve)], set())) for curve in chosen]
    return Reading([found for found in objects if start == 0 or found["points"]], f"{generation}.{at}", start == 0)


def _note(fresh: set[float], curve: KeptCurve, points: list[Point]) -> None:
    """Add the steps of new points. Forget those that the curve no longer has when there are too many."""
    fresh.update(point[0] for point in points)
    if len(fresh) > 2 * MOST_POINTS:
        fresh.intersection_update(curve.steps)


def _bound(curves: Collection[KeptCurve]) -> None:
    """Thin curves that have too many points together: a program can change the file."""
    most = MOST_POINTS
    while sum(map(len, curves)) > _MOST_SHOWN:
        most //= 2
        for curve in curves:
            curve.thin(most)


def _object(curve: KeptCurve, steps: Collection[float] | None) -> dict[str, Any]:
    """Return a curve as a JSON object, with the points of these steps, or with all."""
    points = [list(point) for point in curve.points() if steps is None or point[0] in steps]
    found = {"name": curve.name, "source": curve.source, "unit": value_unit(curve.source, curve.name),
             "stepUnit": curve.unit, "points": points}
    return {**found, "left": curve.left} if curve.left else found


def _lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield the complete lines of a file, up to LONGEST bytes. A line that is too long comes in pieces."""
    at = 0
    while at < LONGEST and (line := file.readline(min(_LONGEST_LINE, LONGEST - at))):
        if not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
            return
        at += len(line)
        yield line


def _generation(head: bytes) -> int | None:
    """Return the generation of a file from its first line, None if it has none."""
    match _entry(head):
        case {"generation": int(generation)}:
            return generation
    return None


def _entry(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _sound_points(points: list[object]) -> list[Point]:
    """Return the valid points of a line. Programs can change the file, so any value is possible."""
    found: list[Point] = []
    for point in points:
        match point:
            case [int() | float() as step, int() | float() as value, int() | float() | None as at]:
                place, amount = sound(number(step)), number(value)
                if place is not None and amount is not None and math.isfinite(amount):
                    found.append((place, amount, sound(number(at))))
    return found
