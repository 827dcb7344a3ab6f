"""When the output of a program was written: times beside the output files.

Programs write their output files directly. The runner looks at the sizes of these files while the program runs, and
notes each new size with its time. So a line has the time of the first look at which the line was complete: at most
`EVERY` seconds too late. A file of times has at most `MOST` notes. When it is full, every second note is dropped, so
that the times of a very long output become coarser.
"""

from __future__ import annotations

import bisect
import os
import stat
import struct
import time
from collections.abc import Iterable
from pathlib import Path

from local_backend.files import write_atomic
from local_backend.runtime.paths import ExecPaths

#: Seconds between two readings of the sizes.
EVERY = 0.5
MOST = 16_384
#: A note: time in epoch seconds, and size of the output file in bytes.
_NOTE = struct.Struct("<dQ")


class TimesWriter:
    """Notes the sizes of the output files of one attempt."""

    def __init__(self, paths: ExecPaths) -> None:
        self._paths = paths
        #: Output file → its file of times, and the last noted size.
        self._watched: dict[Path, tuple[Path, int]] = {}
        #: Time of the next reading, in seconds of the monotonic clock; None without files.
        self.due: float | None = None

    def watch(self, task: str, files: Iterable[tuple[str, Path]]) -> None:
        """Watch the output files of a task, each with the name of its stream. What they contain already has been noted
        by an earlier attempt."""
        for stream, file in files:
            self._watched[file] = (self._paths.output_times(task, stream), _size(file))
        self.due = time.monotonic() + EVERY

    def leave(self, files: Iterable[Path]) -> None:
        """Note the final sizes of the output files of an ended task."""
        for file in files:
            self._look(file)
            self._watched.pop(file, None)

    def tick(self) -> None:
        """Note the sizes of all files if a reading is due."""
        if self.due is not None and time.monotonic() >= self.due:
            for file in list(self._watched):
                self._look(file)
            self.due = time.monotonic() + EVERY if self._watched else None

    def _look(self, file: Path) -> None:
        if file not in self._watched:
            return
        times, noted = self._watched[file]
        size = _size(file)
        if size == noted:
            return
        try:
            _append(times, size, fresh=size < noted)
        except OSError:
            return  # for example, the disk is full: the next note also covers these lines
        self._watched[file] = times, size


class Times:
    """The noted times of one output file."""

    def __init__(self, paths: ExecPaths, task: str, stream: str) -> None:
        notes: list[tuple[float, int]] = []
        file = paths.opened(paths.output_times(task, stream))
        if file is not None:
            with file:
                content = file.read((MOST + 1) * _NOTE.size)
            notes = list(_NOTE.iter_unpack(content[: len(content) // _NOTE.size * _NOTE.size]))
        self._times = [moment for moment, _ in notes]
        self._sizes = [size for _, size in notes]

    @property
    def known(self) -> bool:
        """Whether any time was noted."""
        return bool(self._times)

    def after(self, offset: int, otherwise: float) -> tuple[float, int | None]:
        """Return the time at which the byte at `offset` was written, and the offset up to which this time holds. The
        time is `otherwise` and the offset None for a byte after the last note."""
        at = bisect.bisect_right(self._sizes, offset)
        if at == len(self._sizes):
            return max(otherwise, self._times[-1]) if self._times else otherwise, None
        return self._times[at], self._sizes[at]

    def first_since(self, moment: float) -> int:
        """Return an offset before which all bytes were written before `moment`."""
        at = bisect.bisect_left(self._times, moment)
        return self._sizes[at - 1] if at else 0


def _append(times: Path, size: int, fresh: bool) -> None:
    """Add a note; with `fresh`, drop all earlier notes, because the output file was replaced. Raises OSError."""
    times.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    note = _NOTE.pack(time.time(), size)
    fd = os.open(times, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "rb+", buffering=0) as file:
        if fresh:
            file.truncate(0)
        length = file.seek(0, os.SEEK_END)
        if length < MOST * _NOTE.size:
            file.write(note)
            return
        file.seek(0)
        kept = [entry for number, entry in enumerate(_NOTE.iter_unpack(file.read(MOST * _NOTE.size))) if number % 2]
    write_atomic(times, b"".join(_NOTE.pack(*entry) for entry in kept) + note, durable=False)


def _size(file: Path) -> int:
    try:
        found = file.lstat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
