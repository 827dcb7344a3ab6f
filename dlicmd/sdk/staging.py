"""A large folder for the local backend: copied once into its home, and taken over by the server without an upload.

Only the user of the server can write there, so the folder needs no further proof of its origin, and the server never
reads a path that a client names.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from dlicmd.sdk import cancel
from dlicmd.sdk.errors import PackageError
from dlicmd.sdk.messages import Progress, file_count
from dlicmd.sdk.package import base_name, opened
from dlicmd.sdk.selection import Entry, Selection
from dlicmd.sdk.transport import FilePart, Multipart

#: The most bytes between two reports of progress, and those of a file system that copies through this process.
_CHUNK, _READ = 16 * 2**20, 2**20


class StagedFolder:
    """The selected files under the base name of their folder, in a new folder below `place`.

    While this object is open, it locks the folder: the server removes unlocked folders, which killed clients left.
    """

    def __init__(self, place: Path, selection: Selection, progress: Progress) -> None:
        """Choose the name. `copy` makes the folder."""
        self.name = secrets.token_hex(16)
        self.size = selection.size
        self._path = place / self.name
        self._selection, self._progress = selection, progress
        self._lock: int | None = None

    def copy(self) -> None:
        """Copy the files, unless they are there. File systems with shared blocks (XFS, Btrfs) store them once. Raises
        PackageError."""
        if os.path.lexists(self._path):
            return
        try:
            self._make()
            with self._progress(f"copying {file_count(len(self._selection.files))}", self.size) as shown:
                self._fill(shown or (lambda _: None))
        except OSError as problem:
            raise PackageError(f"cannot copy the folder to {self._path.parent}: {problem.strerror}") from None

    def close(self) -> None:
        """Remove the folder, if the server has not taken it over."""
        shutil.rmtree(self._path, ignore_errors=True)
        self._unlock()

    def _make(self) -> None:
        import fcntl  # not on Windows

        self._unlock()
        while not os.path.lexists(self._path):  # the server may remove the folder before it is locked
            self._path.mkdir(mode=0o700)
            with suppress(FileNotFoundError):
                self._lock = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(self._lock, fcntl.LOCK_SH)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _fill(self, progress: Callable[[int], None]) -> None:
        top, done = self._path / base_name(self._selection.folder), 0
        top.mkdir(mode=0o700)
        for entry in self._selection.entries:
            target = top / entry.name
            if entry.is_dir:
                target.mkdir(mode=0o700)
                continue
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "wb", buffering=0) as written, opened(entry) as read:
                about = os.fstat(read.fileno())
                os.fchmod(fd, 0o755 if about.st_mode & 0o100 else 0o644)
                for size in _transferred(read, written, entry, about.st_size):
                    done += size
                    progress(done)


class StagedBody(Multipart):
    """The body of a submission whose folder is staged. Each attempt begins with a complete folder: an earlier one may
    have taken it over and then failed."""

    def __init__(self, staged: StagedFolder, files: list[FilePart], fields: list[tuple[str, str]]) -> None:
        super().__init__(files, fields)
        self._staged = staged

    def rewind(self) -> None:
        """See Multipart."""
        self._staged.copy()
        super().rewind()


def _transferred(read: BinaryIO, written: BinaryIO, entry: Entry, size: int) -> Iterator[int]:
    """Copy `size` bytes, and yield the number of bytes of each piece. Raises PackageError, and OSError for errors in
    writing."""
    while size:
        cancel.check()
        count = _copied(read, written, min(size, _CHUNK), entry)
        if not count:
            raise PackageError(f"{entry.path} became shorter while it was copied; nothing was sent")
        size -= count
        yield count


def _copied(read: BinaryIO, written: BinaryIO, most: int, entry: Entry) -> int:
    """Copy the next bytes, at most `most`, and return their number; 0 at the end of the file."""
    try:
        count = os.copy_file_range(read.fileno(), written.fileno(), most)
    except (AttributeError, OSError):  # macOS lacks the call; it may refuse two file systems
        count = 0
    if count:
        return count
    try:
        data = memoryview(read.read(min(most, _READ)))
    except OSError as problem:
        raise PackageError(f"cannot read {entry.path}: {problem.strerror}; nothing was sent") from None
    count = len(data)
    while data:
        data = data[written.write(data):]
    return count
