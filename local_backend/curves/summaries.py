"""The pictures and histograms in an event file of TensorBoard.

Pictures are found, not read: their place in the file and their size. A file may come from a hostile program, so it is
read in a process of its own (limited_work.py), with limits of records, tags, steps and time.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from local_backend.curves.binary import fields, signed

#: Bytes of a record without its text, and of the longest one that is read. Shorter ones than _LEAST hold scalars only.
_FRAME, _LEAST, LONGEST_EVENT = 16, 50, 20 << 20
#: Maximum number of tags of each kind, of steps of a tag, of pictures of a step, of buckets, and characters of a tag.
_MOST_TAGS, MOST_STEPS, _MOST_OF_STEP, _MOST_BUCKETS, _LONGEST_TAG = 100, 100, 16, 10_000, 200
#: Seconds of CPU time after which the rest of a file is left out.
_PATIENCE = 5.0
#: How pictures begin that pages show.
_PICTURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8")
#: Kind of a tensor that is a histogram.
_HISTOGRAMS = b"histograms"
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


class _Steps:
    """The steps of a tag: all, or so many that they are spread evenly; and the last one."""

    def __init__(self) -> None:
        self._kept: list[list[float]] = []
        self._stride, self._count = 1, 0
        self._last: list[float] = []

    def add(self, step: list[float]) -> None:
        if self._count % self._stride == 0:
            self._kept.append(step)
        self._count, self._last = self._count + 1, step
        if len(self._kept) > MOST_STEPS:
            del self._kept[1::2]
            self._stride *= 2

    def listed(self) -> list[list[float]]:
        return self._kept if self._kept[-1] is self._last else [*self._kept, self._last]


class _Found(dict[str, _Steps]):
    """The steps of each tag of one kind."""

    def add(self, tag: str, step: list[float]) -> None:
        if tag in self or len(self) < _MOST_TAGS:
            self.setdefault(tag, _Steps()).add(step)

    def listed(self) -> dict[str, list[list[float]]]:
        return {tag: self[tag].listed() for tag in sorted(self)}


def of_descriptor(descriptor: int) -> dict[str, Any]:
    """Return what an open event file has: `pictures`, tag → [step, place in the file, bytes]; `histograms`, tag →
    [step, *QUANTILES]; and `complete`, false if the file is damaged or takes too long to read."""
    pictures, histograms, complete = _Found(), _Found(), True
    with open(descriptor, "rb", closefd=False) as file:
        try:
            for start, event in _events(file):
                _take(event, start, pictures, histograms)
        except (ValueError, struct.error):
            complete = False
    return {"pictures": pictures.listed(), "histograms": histograms.listed(), "complete": complete}


def _events(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the place and the bytes of each event that may hold more than scalars. Raises ValueError, also
    when the time is over."""
    at, end = 0, time.process_time() + _PATIENCE
    while len(head := file.read(12)) == 12:
        (size,) = struct.unpack_from("<Q", head)
        if size > 1 << 40:
            raise ValueError("not an event file")
        if time.process_time() > end:
            raise ValueError("the file takes too long to read")
        if _LEAST <= size <= LONGEST_EVENT:
            event = file.read(size)
            if len(event) < size:
                return
            yield at + 12, event
        at += _FRAME + size
        file.seek(at)


def _take(event: bytes, start: int, pictures: _Found, histograms: _Found) -> None:
    """Add the pictures and histograms of an Event: step = 2, summary = 5, in it value = 1."""
    step, values = 0, list[bytes]()
    for field, value in fields(event):
        if field == 2 and isinstance(value, int):
            step = signed(value)
        elif field == 5 and isinstance(value, bytes):
            values += [one for inner, one in fields(value) if inner == 1 and isinstance(one, bytes)]
    for one in values:
        tag, shown, histogram = _value(one)
        for number, picture in enumerate(shown[:_MOST_OF_STEP]):
            name = f"{tag} {number + 1}" if len(shown) > 1 else tag
            pictures.add(name, [step, start + event.index(picture), len(picture)])
        if histogram:
            histograms.add(tag, [step, *histogram])


def _value(message: bytes) -> tuple[str, list[bytes], Sequence[float]]:
    """Return tag, pictures and quantiles of a Summary.Value: tag = 1, image = 4, histo = 5, tensor = 8. The pictures
    of a TensorProto are texts, string_val = 8, after their width and height. TensorFlow 2 writes histograms as tensors,
    and names their kind: metadata = 9, in it plugin_data = 1, in it plugin_name = 1."""
    tag, shown, histogram, tensor, plugin = "", list[bytes](), list[float](), b"", b""
    for field, value in fields(message):
        if not isinstance(value, bytes):
            continue
        if field == 1:
            tag = "".join(sign if sign.isprintable() else " " for sign in value.decode(errors="replace"))[:_LONGEST_TAG]
        elif field in (4, 8):
            inner = 4 if field == 4 else 8
            shown += [one for number, one in fields(value)
                      if number == inner and isinstance(one, bytes) and one.startswith(_PICTURES)]
            tensor = value if field == 8 else tensor
        elif field == 5:
            histogram = _quantiles(value)
        elif field == 9:
            plugin = _inner(_inner(value, 1), 1)
    return tag, shown, _tensor_quantiles(tensor) if plugin == _HISTOGRAMS else histogram


def _inner(message: bytes, wanted: int) -> bytes:
    """Return the bytes of a field of a message, none if it has no such field."""
    return next((value for field, value in fields(message) if field == wanted and isinstance(value, bytes)), b"")


def _tensor_quantiles(message: bytes) -> list[float]:
    """Return the quantiles of a TensorProto of doubles, tensor_content = 4: begin, end and count of each bucket."""
    content = _inner(message, 4)
    numbers = struct.unpack(f"<{len(content) // 8}d", content[: len(content) // 8 * 8])
    if not numbers or len(content) % 24 or len(numbers) > 3 * _MOST_BUCKETS:
        return []
    return _of_buckets(numbers[0], numbers[-2], numbers[1::3], numbers[2::3])


def _quantiles(message: bytes) -> list[float]:
    """Return the quantiles of a HistogramProto, none of an empty one: min = 1, max = 2, bucket_limit = 6, bucket =
    7."""
    least, most, limits, counts = 0.0, 0.0, list[float](), list[float]()
    for field, value in fields(message):
        if not isinstance(value, bytes) or len(value) % 8:
            continue
        numbers = struct.unpack(f"<{min(len(value) // 8, _MOST_BUCKETS)}d", value[: 8 * _MOST_BUCKETS])
        match field:
            case 1 if numbers:
                least = numbers[0]
            case 2 if numbers:
                most = numbers[0]
            case 6:
                limits += numbers
            case 7:
                counts += numbers
    return _of_buckets(least, most, limits, counts)


def _of_buckets(least: float, most: float, limits: Sequence[float], counts: Sequence[float]) -> list[float]:
    """Return the quantiles of values that are spread evenly in their buckets, none if there are no sound numbers."""
    total = math.fsum(counts) if all(map(math.isfinite, counts)) else 0.0
    is_sound = math.isfinite(least) and math.isfinite(most) and not any(map(math.isnan, limits))
    if not is_sound or total <= 0 or len(limits) != len(counts):
        return []
    found, passed, bottom = [least], 0.0, least
    wanted = [total * part for part in QUANTILES[1:-1]]
    for limit, count in zip(limits, counts, strict=True):
        top = min(max(limit, bottom), most)
        while wanted and count > 0 and wanted[0] <= passed + count:
            found.append(bottom + (top - bottom) * (wanted.pop(0) - passed) / count)
        passed, bottom = passed + count, top
    return [*found, *[most] * len(wanted), most]
