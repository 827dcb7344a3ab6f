"""The files with all points of the curves of an exec, beside the thinned ones (file.py).

Once an exec has BEGIN points, its folder `points` contains:

- `names.jsonl`: {"n", "source", "name", "unit"} introduces curve number n. {"n", "from"} says that a new run of
  increasing steps begins with this record. {"n", "off"}: this curve has too many such runs, and is not kept.
  {"full"}: the files have reached MOST_BYTES, and get no further points.
- `N.0`: the points of curve N, each 2 floats: step and value.
- `N.t`: the times of the same points, each a float: epoch seconds, 0 for an unknown time.
- `N.1`, `N.2`, `N.3`: a summary of each 64, 1024 and 16384 points: the first, the lowest, the highest and the last
  point.

All records have a fixed size, so a reader reads only those that it needs, and ignores a record that is cut off. Of
two runs, the later one counts between its first and its last step. A summary is written when the first point after it
arrives; therefore the last point may be replaced.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence

#: Number of points of an exec from which on all points are kept. No curve has been thinned then: a curve is thinned
#: when it has more than MOST_IN_ALL / MOST_CURVES points (book.py).
BEGIN = 1000
#: Maximum bytes of all points and times of an exec (about 22 million points), and number of runs of a curve.
MOST_BYTES, MOST_RUNS = 512 << 20, 1000
NAMES = "names.jsonl"
#: Points of a record of each level. Each level combines records of the one before it.
SIZES = (1, 64, 1024, 16384)
POINT, SUMMARY, TIME = struct.Struct("<2d"), struct.Struct("<8d"), struct.Struct("<d")

#: Step and value; 4 points of a summary: first, lowest, highest, last.
StoredPoint = tuple[float, float]
Summary = tuple[StoredPoint, StoredPoint, StoredPoint, StoredPoint]


def record_size(level: int) -> int:
    """Return the bytes of a record."""
    return SUMMARY.size if level else POINT.size


def file_name(number: int, level: int) -> str:
    """Return the name of the file of a curve."""
    return f"{number}.{level}"


def times_name(number: int) -> str:
    """Return the name of the file with the times of a curve."""
    return f"{number}.t"


def of_points(points: Sequence[StoredPoint]) -> Summary:
    """Return the summary of points."""
    return points[0], min(points, key=_value), max(points, key=_value), points[-1]


def of_summaries(parts: Sequence[Summary]) -> Summary:
    """Return the summary of points that these are the summaries of."""
    return (parts[0][0], min((part[1] for part in parts), key=_value), max((part[2] for part in parts), key=_value),
            parts[-1][3])


def packed(summaries: Iterable[Summary]) -> bytes:
    """Return summaries as bytes."""
    return b"".join(SUMMARY.pack(*(number for point in one for number in point)) for one in summaries)


def summaries_in(data: bytes) -> list[Summary]:
    """Return the summaries in bytes, without one that is cut off."""
    whole = data[: len(data) - len(data) % SUMMARY.size]
    return [((a, b), (c, d), (e, f), (g, h)) for a, b, c, d, e, f, g, h in SUMMARY.iter_unpack(whole)]


def points_in(data: bytes) -> list[StoredPoint]:
    """Return the points in bytes, without one that is cut off."""
    return list(POINT.iter_unpack(data[: len(data) - len(data) % POINT.size]))


def numbers_in(data: bytes, size: int) -> array[float]:
    """Return the numbers of the records in bytes, without a record that is cut off. `size`: bytes of a record."""
    found = array("d", data[: len(data) - len(data) % size])
    if sys.byteorder == "big":
        found.byteswap()
    return found


def _value(point: StoredPoint) -> float:
    return point[1]
