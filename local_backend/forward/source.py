"""The lines that processes of an exec write to `evaluation-metrics.txt`: read each line once, or all as they are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_backend.files import open_regular

FILE = "evaluation-metrics.txt"
#: Maximum bytes of a line with a metric; also the number of bytes of one read.
LONGEST = 1 << 20
#: Maximum files of one exec; elastic jobs may have had thousands of workers.
_MOST_FILES = 2000


@dataclass(frozen=True)
class SourceLine:
    """One metric. `source` is its file below the log folder of the exec, and `offset` is where its line begins
    there. Both together identify the line among all lines of the exec, however often it is sent. The next line
    begins at `end`."""

    source: str
    offset: int
    end: int
    metric: dict[str, Any]


@dataclass(frozen=True)
class Batch:
    """The result of a read: lines, the offsets at which to continue, and how many bytes were not metrics."""

    lines: list[SourceLine]
    offsets: dict[str, int]
    skipped: int = 0


def read(logs: Path, offsets: Mapping[str, int], most: int, final: bool) -> Batch:
    """Return up to `most` lines that are new since `offsets`. An incomplete last line is left out, unless `final`.

    A file that is shorter than its offset was started anew, and is read from its beginning. Raises OSError.
    """
    after, lines, skipped = dict(offsets), [], 0
    for name in _files(logs):
        file = open_regular(logs / name, logs.parent.parent)
        if file is None:
            continue
        with file:
            at = after.get(name, 0)
            if at > os.fstat(file.fileno()).st_size:
                at = 0
            file.seek(at)
            for content in _whole(file.read(LONGEST), final):
                metric = _metric(content)
                if metric is not None:
                    lines.append(SourceLine(name, at, at + len(content), metric))
                elif content.strip():
                    skipped += len(content)
                at += len(content)
                if len(lines) >= most:
                    break
            after[name] = at
        if len(lines) >= most:
            break
    return Batch(lines, after, skipped)


def written(logs: Path, final: bool) -> Iterator[bytes]:
    """Yield the metrics of all files as they are now, in pieces of whole lines. An empty line separates two files.
    Lines that are not metrics are left out, and so is an incomplete last line, unless `final`. Raises OSError."""
    between = b""
    for name in _files(logs):
        file = open_regular(logs / name, logs.parent.parent)
        if file is None:
            continue
        with file:
            told = False
            # Do not wait for lines that come in the meantime: a program may write faster than this function reads.
            at, end = 0, os.fstat(file.fileno()).st_size
            while lines := _whole(file.read(min(LONGEST, end - at)), final):
                at = file.seek(at + sum(map(len, lines)))
                metrics = b"".join(line.rstrip() + b"\n" for line in lines if _metric(line) is not None)
                if metrics:
                    yield (b"" if told else between) + metrics
                    told, between = True, b"\n"


def _files(logs: Path) -> Iterator[str]:
    """Yield the names below `logs` that may hold metrics: in the folder of each process, and one level below for a
    sub id. Links are not followed, because a program can make them point anywhere."""
    count = 0
    for folder in _folders(logs):
        for place in (folder, *(f"{folder}/{inner}" for inner in _folders(logs / folder))):
            if os.path.lexists(logs / place / FILE):
                yield f"{place}/{FILE}"
                count += 1
        if count >= _MOST_FILES:
            return


def _folders(place: Path) -> list[str]:
    try:
        with os.scandir(place) as found:
            return sorted(entry.name for entry in found if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _whole(content: bytes, final: bool) -> list[bytes]:
    """Return the complete lines of a piece of a file; with `final`, the last line counts as complete."""
    lines = content.replace(b"\r", b" ").splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n") and not final and len(content) < LONGEST:
        lines.pop()
    elif len(content) == LONGEST and len(lines) > 1 and not lines[-1].endswith(b"\n"):
        lines.pop()  # the line ends in the next piece
    return lines


def _metric(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line; None if it holds none. NaN and infinite numbers become text."""
    try:
        value = json.loads(line, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
