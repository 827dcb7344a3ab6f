"""Parts of the logs of a run: a window of lines around an offset, and a search that continues.

A log may have any size. No call reads more than MOST_BYTES of a window, or MOST_SEARCHED of a search. Texts come from
programs: they are made readable (`readable`), but they stay untrusted.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from local_backend.errors import Invalid, NotFound, StorageFailed
from local_backend.runtime.paths import DRIVER, ExecPaths, worker_task
from local_backend.services.access import Caller
from local_backend.services.execs import ExecService
from local_backend.services.executors import executors
from local_backend.store.execs import ExecRow

#: Maximum bytes of a window, of one search, and seconds of one search.
MOST_BYTES, MOST_SEARCHED, MOST_SECONDS = 64 << 10, 256 << 20, 0.25
#: Maximum number of places that a search returns, characters of a searched text, and characters of a shown place.
MOST_FOUND, LONGEST_TEXT, _SHOWN = 100, 200, 300
_CHUNK = 1 << 20
STDOUT, STDERR = "stdout", "stderr"
#: Name of the log in which the server and the runner note what they do.
LAUNCHER = "launcher"
#: Output that an elastic program itself stores in LOG_DIR.
STORED = f"{DRIVER}.log"
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_ESCAPE = b"\x1b"
_COLORS = re.compile(_TERMINAL.pattern.encode())
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class LogFile:
    """One log of a run. `title` names it for people."""

    name: str
    title: str
    path: Path
    size: int


@dataclass(frozen=True)
class LogLine:
    """A line, and the offset at which it begins."""

    at: int
    text: str


@dataclass(frozen=True)
class LogWindow:
    """Lines of a log: the bytes from `start` to before `end`. `size` is the present size of the log."""

    lines: list[LogLine]
    start: int
    end: int
    size: int


@dataclass(frozen=True)
class LogSearch:
    """Lines that contain a text. `next` is where the search continues; None: it has reached the end."""

    found: list[LogLine]
    next: int | None
    size: int


@dataclass(frozen=True)
class LogService:
    """Reads the logs of runs."""

    execs: ExecService

    def files(self, caller: Caller, exec_id: str) -> list[LogFile]:
        """Return the logs of a run, the most important first. Raises NotFound (`exec.not_found`)."""
        row = self.execs.find(caller, exec_id)
        return _files(row, self.execs.paths(row))

    def window(self, caller: Caller, exec_id: str, log: str, *, before: int | None = None, after: int | None = None
               ) -> LogWindow:
        """Return the lines that end before an offset, or those from the line with the byte at `after` on; without
        offsets, the last lines. Raises NotFound (`exec.not_found`), Invalid (`query.log`, `query.number`),
        StorageFailed."""
        with self._opened(caller, exec_id, log) as file:
            size = os.fstat(file.fileno()).st_size
            if after is not None:
                return _forward(file, _offset(after, size), size)
            return _backward(file, size if before is None else _offset(before, size), size)

    def search(self, caller: Caller, exec_id: str, log: str, text: str, start: int = 0) -> LogSearch:
        """Return lines from an offset on that contain a text. Upper and lower case of ASCII letters are equal. Raises
        the errors of `window`, and Invalid (`query.value`)."""
        if not 0 < len(text) <= LONGEST_TEXT:
            raise Invalid("query.value", f"text: write 1 to {LONGEST_TEXT} characters to search for")
        with self._opened(caller, exec_id, log) as file:
            size = os.fstat(file.fileno()).st_size
            return _searched(file, text.encode("utf-8", "replace").lower(), _offset(start, size), size)

    def _opened(self, caller: Caller, exec_id: str, log: str) -> BinaryIO:
        row = self.execs.find(caller, exec_id)
        paths = self.execs.paths(row)
        chosen = next((one for one in _files(row, paths) if one.name == log), None)
        if chosen is None:
            raise Invalid("query.log", f"log: {exec_id} has no log {log[:40]!r}")
        try:
            file = paths.opened(chosen.path)
        except OSError as problem:
            raise StorageFailed("exec.result_failed", f"The server cannot read the log ({problem.strerror})") from None
        if file is None:
            raise NotFound("query.log", f"log: the log {log[:40]!r} of {exec_id} no longer exists")
        return file


def _files(row: ExecRow, paths: ExecPaths) -> list[LogFile]:
    found: list[tuple[str, str, Path]] = []
    if row.elastic:
        found += [(STORED, "program (log)", paths.log_dir(DRIVER) / STDOUT)]
        found += [(f"{DRIVER}.{stream}", f"driver, {stream}", paths.capture(DRIVER, stream, True))
                  for stream in (STDOUT, STDERR)]
    for number in executors(row, paths):
        task = worker_task(number)
        found += [(f"{task}.{stream}", f"worker {number}, {stream}", paths.capture(task, stream, row.elastic))
                  for stream in (STDOUT, STDERR)]
    found.append((LAUNCHER, "launcher", paths.launcher_log))
    sizes = [(one, _size(one[2])) for one in found]
    return [LogFile(*one, size) for one, size in sizes if size is not None]


def main_log(files: list[LogFile]) -> LogFile | None:
    """Return the log to show first: the first one with content."""
    return next((one for one in files if one.size), files[0] if files else None)


def readable(line: bytes) -> str:
    """Return a line as a terminal would show it at last: without colors and control characters; of a line that was
    overwritten (a progress bar), only the last text."""
    text = _TERMINAL.sub("", line.decode("utf-8", "replace")).rstrip("\r")
    return _CONTROL.sub("\ufffd", text[text.rfind("\r") + 1 :])


def _size(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except OSError:
        return None


def _offset(number: int, size: int) -> int:
    if number < 0:
        raise Invalid("query.number", f"offset: {number} is less than 0")
    return min(number, size)


def _forward(file: BinaryIO, offset: int, size: int) -> LogWindow:
    """Return lines from the one with the byte at an offset on."""
    begin = max(0, offset - MOST_BYTES // 4)
    head = _read(file, begin, offset - begin)
    start = begin + head.rfind(b"\n") + 1 if b"\n" in head or begin == 0 else offset
    data = _read(file, start, MOST_BYTES)
    return _window(data if start + len(data) >= size else _whole(data), start, size)


def _backward(file: BinaryIO, offset: int, size: int) -> LogWindow:
    """Return the lines that end before an offset."""
    begin = max(0, offset - MOST_BYTES)
    data = _read(file, begin, offset - begin)
    cut = data.find(b"\n") + 1 if begin else 0
    if cut == len(data):  # one long line
        cut = 0
    return _window(data[cut:], begin + cut, size)


def _whole(data: bytes) -> bytes:
    """Return data up to the end of its last complete line; all data of a line that is too long."""
    return data[: data.rfind(b"\n") + 1 or len(data)]


def _window(data: bytes, start: int, size: int) -> LogWindow:
    lines, at = [], start
    for line in data.split(b"\n") if data else ():
        if line or at < start + len(data):
            lines.append(LogLine(at, readable(line)))
        at += len(line) + 1
    return LogWindow(lines, start, start + len(data), size)


def _read(file: BinaryIO, offset: int, most: int) -> bytes:
    file.seek(offset)
    return file.read(most)


def _searched(file: BinaryIO, text: bytes, start: int, size: int) -> LogSearch:
    found: list[LogLine] = []
    until, at = time.monotonic() + MOST_SECONDS, start
    stop = min(size, start + MOST_SEARCHED)
    while at < stop:
        chunk, done = _read(file, at, _CHUNK + MOST_BYTES), _CHUNK
        lines = _colored(chunk, text) if _ESCAPE in chunk else _plain(chunk, text, at == 0)
        for begin, done in lines:
            if begin >= 0:
                found.append(LogLine(at + begin, readable(chunk[begin : begin + _SHOWN].partition(b"\n")[0])))
            if len(found) == MOST_FOUND:
                return LogSearch(found, at + done if at + done < size else None, size)
        at += max(_CHUNK, done)
        if time.monotonic() > until:
            break
    return LogSearch(found, at if at < size else None, size)


def _plain(chunk: bytes, text: bytes, is_first: bool) -> Iterator[tuple[int, int]]:
    """Yield where each line with a text begins, and where the next line begins, for lines without colors."""
    inner, place = chunk.lower(), 0
    while 0 <= (place := inner.find(text, place)) < _CHUNK:
        begin = chunk.rfind(b"\n", 0, place) + 1
        if not begin and not is_first:  # the line begins before the chunk
            begin = max(0, place - _SHOWN // 2)
        place = chunk.find(b"\n", place) + 1 or len(chunk)
        yield begin, place


def _colored(chunk: bytes, text: bytes) -> Iterator[tuple[int, int]]:
    """Yield the same for lines with colors, which may divide the text. The last pair has -1, and the end of what was
    searched."""
    begin = 0
    while begin < min(len(chunk), _CHUNK):
        end = chunk.find(b"\n", begin) + 1 or len(chunk)
        if text in _COLORS.sub(b"", chunk[begin:end]).lower():
            yield begin, end
        begin = end
    yield -1, begin
