"""Files that come in parts: which there are, and which of them are here already."""

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

#: Parts are at least so long: a request costs as much as reading some MiB. Longer ones bring nothing but a wait at the
#: end, when the checksum of those that came last is still to be taken.
SMALLEST = 8 * 2**20
LONGEST = 64 * 2**20
#: Only a file with more parts than that has longer ones.
_MANY = 1000
_READ = 1 << 20
#: What a journal says of a whole file, in the order of Whole.
_OF_WHOLE = ("size", "sha256", "mtime_ns", "ctime_ns")


def plan(size: int | None, ranges: bool) -> list[tuple[int, int | None]]:
    """Where the parts of a file begin and end. One part without end is a file that cannot be read in parts."""
    if size is None or not ranges:
        return [(0, None)]
    length = min(max(SMALLEST, -(-size // _MANY)), LONGEST)
    return [(start, min(start + length, size)) for start in range(0, size, length)] or [(0, 0)]


@dataclass(frozen=True)
class Whole:
    """A file that is here, as it was when it was put down: whoever alters it alters its size or its times. That of its
    contents can be set back, that of its last change (ctime) by nobody but who sets the clock."""

    path: str
    size: int
    sha256: str
    mtime_ns: int
    ctime_ns: int


@dataclass
class Arriving:
    """A file on its way. Its parts are written where they belong, in any order, by several threads; whoever adds one
    takes the checksum as far as it goes without a gap."""

    number: int
    entry: Entry
    #: Where it is until it is whole, and then.
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
        """Whether all parts are here."""
        return len(self.done) == len(self.parts)

    @property
    def arrived(self) -> int:
        """Bytes of the parts that are here."""
        return sum((end or 0) - start for start, end in (self.parts[part] for part in self.done))

    def open(self) -> int:
        """Its descriptor, opened by who comes first. Raises OSError."""
        with self._lock:
            if self._fd < 0:
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if self.done else os.O_TRUNC)
                self._fd = os.open(self.place, flags, 0o600)
            return self._fd

    def add(self, part: int, hashed: Any = None) -> bool:
        """Part `part` is written; `hashed` is its checksum when it is the only one. True when it was the last."""
        with self._lock:
            self.done.add(part)
            last = self.complete
        if hashed is not None:
            self._hash, self._hashed = hashed, len(self.parts)
        else:
            self._hash_further()
        return last

    def _hash_further(self) -> None:
        """Take the checksum of the parts that follow, unless another thread does: it sees what is added meanwhile."""
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
        """Put it in its place, readable and not writable. Raises OSError."""
        with self._hashing:
            self._hash_what_follows()
        os.fchmod(self._fd, 0o444)
        self.target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.place, self.target)
        found = os.fstat(self._fd)
        self.close()
        return Whole(self.entry.path, found.st_size, self._hash.hexdigest(), found.st_mtime_ns, found.st_ctime_ns)

    def close(self) -> None:
        """Let go of it; what has arrived stays."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


class Journal:
    """What has arrived, one line for each part and each whole file, for who goes on after a crash.

    It is true as long as the machine is up: what a process has written survives it, but not a loss of power. `begin`
    says which boot and which content it is about; a journal of another is worth nothing, nor is one of a version of
    ours that said other things of a file.
    """

    def __init__(self, path: Path, begin: dict[str, Any]) -> None:
        self._path, self._begin = path, begin | {"whole": list(_OF_WHOLE)}
        self._lock = threading.Lock()
        self._file: Any = None
        self._good = False

    def read(self, files: Sequence[Arriving]) -> dict[int, Whole]:
        """Take note of the parts that are here; the files that are whole, by their number."""
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
                # Killed before it was put in its place: the last part comes again, and with it the checksum.
                file.done.remove(max(file.done))
        return whole

    def start(self) -> None:
        """Open it for writing, after `read`. Raises OSError."""
        self._file = open(self._path, "ab" if self._good else "wb", buffering=0)  # noqa: SIM115 - closed by `close`
        if not self._good:
            self._write(self._begin)

    def part(self, file: Arriving, part: int) -> None:
        """A part of a file is written."""
        self._write({"file": file.number, "part": part})

    def whole(self, number: int, found: Whole) -> None:
        """A file is in its place."""
        self._write({"file": number} | {name: getattr(found, name) for name in _OF_WHOLE})

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, value: dict[str, Any]) -> None:
        # The line break stands first too: half a line of one who was killed spoils no other.
        with self._lock:
            self._file.write(b"\n" + json.dumps(value).encode() + b"\n")

    def _lines(self) -> Iterator[dict[str, Any]]:
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            for text in file:
                with contextlib.suppress(ValueError):
                    value = json.loads(text)
                    if isinstance(value, dict) and value:
                        yield value
