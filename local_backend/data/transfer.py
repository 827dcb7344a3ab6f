"""Transfers many files, and large files in parts, with several threads. A journal records which parts have arrived.
Memory does not grow with the data."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local_backend.data.errors import DataChanged, DataUnavailable
from local_backend.data.kind import FileFamily, SourceFile
from local_backend.data.progress import FetchMeter

#: Part lengths in bytes. Shorter parts do not pay: a request costs as much as reading some MiB. Longer parts only delay
#: the end, when the last parts to arrive still need their checksum.
SMALLEST = 8 * 2**20
LONGEST = 64 * 2**20
#: Parts are longer than SMALLEST only in a file that would have more parts than this.
_MANY = 1000
_READ = 1 << 20
#: Fields that a journal records of a whole file, in the order of WholeFile.
_OF_WHOLE = ("size", "sha256", "mtime_ns", "ctime_ns")
#: Threads that read at once. On a fast network more threads do not help; a slow network is full with these.
_THREADS = 10
#: Attempts in a row for a part without a received byte; then the server counts as down.
_ATTEMPTS = 4
_PAUSE_S = 0.25
_LOOK_S = 0.3


def part_ranges(size: int | None, ranges: bool) -> list[tuple[int, int | None]]:
    """Return start and end of each part of a file. One part with the end None is a file that cannot be read in
    parts."""
    if size is None or not ranges:
        return [(0, None)]
    length = min(max(SMALLEST, -(-size // _MANY)), LONGEST)
    return [(start, min(start + length, size)) for start in range(0, size, length)] or [(0, 0)]


@dataclass(frozen=True)
class WholeFile:
    """A complete file on this machine, as it was when it was put in place. Any change to the file changes its size or
    its times. A program can set back the time of the contents (mtime). It can set back the time of the last change
    (ctime) only by setting the clock."""

    path: str
    size: int
    sha256: str
    mtime_ns: int
    ctime_ns: int


@dataclass
class ArrivingFile:
    """A file that is being fetched. Several threads write its parts in place, in any order. A thread that adds a part
    extends the checksum up to the first gap."""

    number: int
    source: SourceFile
    #: Path until the file is complete, and final path.
    place: Path
    target: Path
    done: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.parts = part_ranges(self.source.size, self.source.ranges)
        self._lock = threading.Lock()
        self._hashing = threading.Lock()
        self._hash = hashlib.sha256()
        self._hashed = 0
        self._fd = -1

    @property
    def complete(self) -> bool:
        """Whether all parts have arrived."""
        return len(self.done) == len(self.parts)

    @property
    def arrived(self) -> int:
        """Bytes of the parts that have arrived."""
        return sum((end or 0) - start for start, end in (self.parts[part] for part in self.done))

    def open(self) -> int:
        """Return the file descriptor; the first caller opens it. Raises OSError."""
        with self._lock:
            if self._fd < 0:
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if self.done else os.O_TRUNC)
                self._fd = os.open(self.place, flags, 0o600)
            return self._fd

    def add(self, part: int, hashed: Any = None) -> bool:
        """Record that `part` is written; `hashed` is its checksum if it is the only part. Return True when no part is
        missing."""
        with self._lock:
            self.done.add(part)
            last = self.complete
        if hashed is not None:
            self._hash, self._hashed = hashed, len(self.parts)
        else:
            self._hash_further()
        return last

    def _hash_further(self) -> None:
        """Extend the checksum over the parts that follow, unless another thread does: that thread also sees parts that
        are added meanwhile."""
        while self._hashed < len(self.parts) and self._hashed in self.done:
            if not self._hashing.acquire(blocking=False):
                return
            try:
                self._hash_what_follows()
            finally:
                self._hashing.release()

    def _hash_what_follows(self) -> None:
        while self._hashed < len(self.parts) and self._hashed in self.done:
            self._hash_one(*self.parts[self._hashed])
            self._hashed += 1

    def _hash_one(self, start: int, end: int | None) -> None:
        buffer = memoryview(bytearray(_READ))
        while end is None or start < end:
            count = os.preadv(self._fd, [buffer if end is None else buffer[:min(_READ, end - start)]], start)
            if not count:
                break
            self._hash.update(buffer[:count])
            start += count

    def finish(self) -> WholeFile:
        """Move the file to its final path, readable and not writable. Raises OSError."""
        with self._hashing:
            self._hash_what_follows()
        os.fchmod(self._fd, 0o444)
        self.target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.place, self.target)
        found = os.fstat(self._fd)
        self.close()
        return WholeFile(self.source.path, found.st_size, self._hash.hexdigest(), found.st_mtime_ns, found.st_ctime_ns)

    def close(self) -> None:
        """Close the descriptor; keep the parts that have arrived."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


class Journal:
    """A record of arrived parts and whole files, one line for each, for the next attempt after a crash.

    A journal is true as long as the machine is up. Data that a process wrote survives the process, but not a power
    loss. `begin` identifies the boot and the content. A journal with another `begin` is ignored. So is a journal of a
    version that recorded other fields of a file.
    """

    def __init__(self, path: Path, begin: dict[str, Any]) -> None:
        self._path, self._begin = path, begin | {"whole": list(_OF_WHOLE)}
        self._lock = threading.Lock()
        self._file: Any = None
        self._good = False

    def read(self, files: Sequence[ArrivingFile]) -> dict[int, WholeFile]:
        """Mark the parts in `files` that have arrived. Return the whole files by their number."""
        whole: dict[int, WholeFile] = {}
        lines = self._lines()
        self._good = next(lines, None) == self._begin
        for line in lines if self._good else ():
            file = files[line["file"]]
            if "part" in line:
                file.done.add(line["part"])
            else:
                whole[file.number] = WholeFile(file.source.path, *(line[name] for name in _OF_WHOLE))
        for file in files:
            if file.done and not file.place.exists():
                file.done.clear()
            elif file.complete:
                # The process died before `finish`. Fetching the last part again also triggers checksum and `finish`.
                file.done.remove(max(file.done))
        return whole

    def start(self) -> None:
        """Open the journal for writing, after `read`. Raises OSError."""
        self._file = open(self._path, "ab" if self._good else "wb", buffering=0)  # noqa: SIM115 - closed by `close`
        if not self._good:
            self._write(self._begin)

    def part(self, file: ArrivingFile, part: int) -> None:
        """Record that a part of a file is written."""
        self._write({"file": file.number, "part": part})

    def whole(self, number: int, found: WholeFile) -> None:
        """Record that a file is at its final path."""
        self._write({"file": number} | {name: getattr(found, name) for name in _OF_WHOLE})

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, value: dict[str, Any]) -> None:
        # A line break also comes first: half a line of a killed process then spoils no other line.
        with self._lock:
            self._file.write(b"\n" + json.dumps(value).encode() + b"\n")

    def _lines(self) -> Iterator[dict[str, Any]]:
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            for text in file:
                with contextlib.suppress(ValueError):
                    value = json.loads(text)
                    if isinstance(value, dict) and value:
                        yield value


class Transfer:
    """Fetches files through a family. A file that fails stops the others; the journal keeps the parts that have
    arrived."""

    def __init__(self, family: FileFamily, files: Sequence[ArrivingFile], journal: Journal, meter: FetchMeter) -> None:
        self._family, self._files, self._journal, self._meter = family, files, journal, meter
        self.whole: dict[int, WholeFile] = {}
        self._tasks = self._all_tasks()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._problem: BaseException | None = None
        self._working = 0

    def run(self) -> None:
        """Transfer all files. Raises DataError, OSError (the disk), and Cancelled at once, whatever the server does."""
        count = min(_THREADS, sum(len(file.parts) for file in self._files))
        # Daemon threads end with the process: a thread that waits for a server must not delay that.
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        self._working = count
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive() and not self._stop.is_set():
                    thread.join(_LOOK_S)
                    self._meter.check()
        finally:
            self._stop.set()
        if self._problem is not None:
            raise self._problem

    def _all_tasks(self) -> Iterator[tuple[ArrivingFile, int]]:
        for file in self._files:
            for part in range(len(file.parts)):
                if part not in file.done:
                    yield file, part

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                with self._lock:
                    task = next(self._tasks, None)
                if task is None:
                    return
                self._bring(*task)
        except BaseException as problem:
            with self._lock:
                if self._problem is None and not self._stop.is_set():
                    self._problem = problem
            self._stop.set()
        finally:
            with self._lock:
                self._working -= 1
                last = self._working == 0
            for file in self._files if last else ():
                file.close()

    def _bring(self, file: ArrivingFile, part: int) -> None:
        hashed = self._fill(file, part)
        if hashed is None:
            return
        self._journal.part(file, part)
        if file.add(part, hashed if len(file.parts) == 1 else None):
            self.finish(file)

    def finish(self, file: ArrivingFile) -> None:
        """Finish a file whose parts have all arrived."""
        self._confirm(file)
        if self._stop.is_set():  # a later attempt may already work on this file
            return
        found = file.finish()
        self._journal.whole(file.number, found)
        self.whole[file.number] = found
        self._meter.advance(0, 1)

    def _confirm(self, file: ArrivingFile) -> None:
        """Let the family check that all parts belong to one file, with as many attempts as for a part."""
        for failures in range(1, _ATTEMPTS + 1):
            try:
                return self._family.confirm(file.source)
            except DataChanged:
                raise
            except DataUnavailable:
                if failures == _ATTEMPTS:
                    raise
                self._stop.wait(_PAUSE_S * 2 ** failures)

    def _fill(self, file: ArrivingFile, part: int) -> Any:
        """Write one part. After a broken connection continue at the break, or, if the server gives no ranges, from the
        start. Return the checksum, which counts only for a single part; None when the fetch was stopped."""
        start, end = file.parts[part]
        at, failures, fd, hashed = start, 0, file.open(), hashlib.sha256()
        while end is None or at < end:
            before = at
            try:
                for piece in self._pieces(file, at, end):
                    if self._stop.is_set():
                        return None
                    _write(fd, piece, at)
                    if len(file.parts) == 1:
                        hashed.update(piece)
                    at += len(piece)
                    self._meter.advance(len(piece))
                if at < (file.source.size or 0 if end is None else end):
                    raise DataUnavailable(f"{file.source.path}: the connection broke at byte {at:,}")
                break
            except DataChanged:
                raise
            except DataUnavailable:
                failures = 1 if at > before and end is not None else failures + 1
                if failures >= _ATTEMPTS or end is None:
                    self._meter.advance(start - at)
                if failures >= _ATTEMPTS:
                    raise
                if end is None:
                    at, hashed = start, hashlib.sha256()
                    os.ftruncate(fd, start)
                self._stop.wait(_PAUSE_S * 2 ** failures)
        return hashed

    def _pieces(self, file: ArrivingFile, start: int, end: int | None) -> Iterator[bytes]:
        """Yield the bytes that the family reads. Raises DataChanged when these are more bytes than the file had."""
        reading = self._family.read(file.source, start, end)
        end = file.source.size if end is None else end
        with contextlib.closing(reading):
            for piece in reading:
                if end is not None and start + len(piece) > end:
                    raise DataChanged(f"{file.source.path} is longer than when it was listed")
                yield piece
                start += len(piece)


def _write(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, at)
        view, at = view[count:], at + count
