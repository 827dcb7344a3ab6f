"""The output of a program: the streams of its processes, merged by the time at which they were written.

Output is read in segments of whole lines with one time, so that memory does not grow with the output, and most lines
are never looked at one by one.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from local_backend.runtime.output_times import Times
from local_backend.runtime.paths import ExecPaths

#: Maximum bytes of a segment. A longer line is cut there.
LARGEST = 256 << 10
_CHUNK = 64 << 10


class OutputStream(NamedTuple):
    """A stream of a process: `name` is stdout or stderr."""

    task: str
    name: str
    path: Path


class Segment(NamedTuple):
    """Whole lines of a stream that were written at one time, in epoch seconds. The last line of a stream may lack its
    newline."""

    time: float
    stream: OutputStream
    text: bytes


@dataclass(frozen=True)
class OutputSpan:
    """The bytes of a stream to read, from `start` up to `end`."""

    stream: OutputStream
    start: int
    end: int


@dataclass(frozen=True)
class OutputExtent:
    """The part of the output to read: only lines since a time in epoch seconds, only the last `tail` lines, only bytes
    after the offset of each stream. `whole`: without a last line that is not complete."""

    since: float | None = None
    tail: int | None = None
    offsets: Mapping[str, int] | None = None
    whole: bool = False


def spans(paths: ExecPaths, streams: Sequence[OutputStream], extent: OutputExtent) -> list[OutputSpan]:
    """Return the bytes to read of each stream, as far as the stream has been written now. With
    `tail`, every stream has that number of last lines, so that all streams together have more."""
    found = []
    for stream in streams:
        file = paths.opened(stream.path)
        if file is None:
            continue
        with file:
            size = os.fstat(file.fileno()).st_size
            end = _line_start(file, size) if extent.whole else size
            start = min((extent.offsets or {}).get(key(stream), 0), end)
            if extent.since is not None:
                start = max(start, _since(paths, stream, file, extent.since, end))
            if extent.tail is not None:
                start = max(start, last_lines_start(file, extent.tail, end))
            found.append(OutputSpan(stream, start, end))
    return found


def key(stream: OutputStream) -> str:
    """Return the name of a stream in a cursor."""
    return f"{stream.task}.{stream.name}"


def segments(paths: ExecPaths, wanted: Iterable[OutputSpan]) -> Iterator[Segment]:
    """Yield the segments of all streams, ordered by time."""
    with ExitStack() as opened:
        parts = [_of_stream(paths, span, opened) for span in wanted if span.start < span.end]
        yield from heapq.merge(*parts, key=lambda segment: segment.time)


def lines_of(text: bytes) -> list[bytes]:
    """Return the lines of a segment, without their newlines."""
    return text.removesuffix(b"\n").split(b"\n")


def without_first(found: Iterable[Segment], lines: int) -> Iterator[Segment]:
    """Yield segments without their first `lines` lines, which may leave them empty."""
    for segment in found:
        if lines == 0 or not segment.text:
            yield segment
            continue
        count = len(lines_of(segment.text))
        yield segment._replace(text=segment.text.split(b"\n", lines)[lines] if count > lines else b"")
        lines -= min(count, lines)


def last_lines_start(file: BinaryIO, lines: int, end: int) -> int:
    """Return the offset at which the last `lines` lines before `end` begin. Reads from the end, and only as far as
    needed. A last line without a newline counts."""
    if lines == 0:
        return end
    position, wanted = end, lines
    while position > 0:
        step = min(_CHUNK, position)
        position -= step
        file.seek(position)
        block = file.read(step)
        at = len(block)
        if position + at == end and block.endswith(b"\n"):
            at -= 1  # this newline ends the last line and does not begin another
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            wanted -= 1
            if wanted == 0:
                return position + at + 1
    return 0


def _line_start(file: BinaryIO, offset: int) -> int:
    """Return where the line with the byte at `offset` begins."""
    position = offset
    while position > 0:
        step = min(_CHUNK, position)
        position -= step
        file.seek(position)
        at = file.read(step).rfind(b"\n")
        if at >= 0:
            return position + at + 1
    return 0


def _since(paths: ExecPaths, stream: OutputStream, file: BinaryIO, moment: float, end: int) -> int:
    """Return where the first line begins that was complete at a time or later. Without noted times, the time of the
    last change of the file counts for all its lines."""
    times = Times(paths, stream.task, stream.name)
    if not times.known:
        return 0 if os.fstat(file.fileno()).st_mtime >= moment else end
    offset = times.first_since(moment)
    return end if offset >= end else _line_start(file, offset)


def _of_stream(paths: ExecPaths, span: OutputSpan, opened: ExitStack) -> Iterator[Segment]:
    file = paths.opened(span.stream.path)
    if file is None:
        return
    opened.enter_context(file)
    times = Times(paths, span.stream.task, span.stream.name)
    changed = os.fstat(file.fileno()).st_mtime
    file.seek(span.start)
    rest, at = b"", span.start  # `at`: offset of the first byte of `rest`
    while chunk := file.read(min(_CHUNK, span.end - at - len(rest))):
        block = rest + chunk
        cut = block.rfind(b"\n") + 1 or (len(block) if len(block) >= LARGEST else 0)
        yield from _timed(span.stream, block[:cut], at, times, changed)
        rest, at = block[cut:], at + cut
    if rest:
        yield from _timed(span.stream, rest, at, times, changed)


def _timed(stream: OutputStream, block: bytes, at: int, times: Times, changed: float) -> Iterator[Segment]:
    """Yield the lines of a block, which begins at the offset `at`, in segments of one time."""
    begin = 0
    while begin < len(block):
        first_end = (block.find(b"\n", begin) + 1 or len(block)) - 1
        moment, until = times.after(at + first_end, changed)
        # All lines that end before `until` have this time.
        last = len(block) if until is None else block.rfind(b"\n", begin, max(until - at, 0)) + 1
        last = max(last, first_end + 1)
        yield Segment(moment, stream, block[begin:last])
        begin = last
