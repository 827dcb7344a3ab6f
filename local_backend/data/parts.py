"""Files that arrive in parts: which parts exist, and which have arrived."""

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

from local_backend.data.kinds.base import Entry

#: Part lengths in bytes. Shorter parts do not pay: a request costs as much as reading some MiB. Longer parts only delay
#: the end, when the last parts to arrive still need their checksum.
SMALLEST = 8 * 2**20
LONGEST = 64 * 2**20
#: Parts are longer than SMALLEST only in a file that would have more parts than this.
_MANY = 1000
_READ = 1 << 20
#: Fields that a journal records of a whole file, in the order of Whole.
_OF_WHOLE = ("size", "sha256", "mtime_ns", "ctime_ns")


def plan(size: int | None, ranges: bool) -> list[tuple[int, int | None]]:
    """Return start and end of each part of a file. One part with the end None is a file that cannot be read in
    parts."""
    if size is None or not ranges:
        return [(0, None)]
    length = min(max(SMALLEST, -(-size // _MANY)), LONGEST)
    return [(start, min(start + length, size)) for start in range(0, size, length)] or [(0, 0)]


@dataclass(frozen=True)
class Whole:
    """A complete file on this machine, as it was when it was put in place. Any change to the file changes its size or
    its times. A program can set back the time of the contents (mtime). It can set back the time of the last change
    (ctime) only by setting the clock."""

    path: str
    size: int
    sha256: str
    mtime_ns: int
    ctime_ns: int


@dataclass
class Arriving:
    """A file that is being fetched. Several threads write its parts in place, in any order. A thread that adds a part
    extends the checksum up to the first gap."""

    number: int
    entry: Entry
    #: Path until the file is complete, and final path.
    place: Path
    target: Path
    done: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.parts = plan(self.entry.size, self.entry.ranges)
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

    def finish(self) -> Whole:
        """Move the file to its final path, readable and not writable. Raises OSError."""
        with self._hashing:
            self._hash_what_follows()
        os.fchmod(self._fd, 0o444)
        self.target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.place, self.target)
        found = os.fstat(self._fd)
        self.close()
        return Whole(self.entry.path, found.st_size, self._hash.hexdigest(), found.st_mtime_ns, found.st_ctime_ns)

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

    def read(self, files: Sequence[Arriving]) -> dict[int, Whole]:
        """Mark the parts in `files` that have arrived. Return the whole files by their number."""
        whole: dict[int, Whole] = {}
        lines = self._lines()
        self._good = next(lines, None) == self._begin
        for line in lines if self._good else ():
            file = files[line["file"]]
            if "part" in line:
                file.done.add(line["part"])
            else:
                whole[file.number] = Whole(file.entry.path, *(line[name] for name in _OF_WHOLE))
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

    def part(self, file: Arriving, part: int) -> None:
        """Record that a part of a file is written."""
        self._write({"file": file.number, "part": part})

    def whole(self, number: int, found: Whole) -> None:
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
