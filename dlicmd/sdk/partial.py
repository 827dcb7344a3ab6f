"""Unfinished downloads: `<NAME>.part`, and beside it the note `<NAME>.part.json`, which describes the whole file.

The note is written before any content and removed last. So a `.part` file without a note of ours is foreign and is
never touched. A process that works on a download holds a lock on its note.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from dlicmd.sdk import hints
from dlicmd.sdk.errors import ResultError
from dlicmd.sdk.messages import debug

PART, NOTE = ".part", ".part.json"
_MOST = 16_384
_CHUNK = 2**20


class Label(NamedTuple):
    """The identity of a download: `etag` and `digest` as the server gave them ("" for none), `size` in bytes or None,
    and the `path` of a single file of the exec ("" for its whole result)."""

    exec_id: str
    etag: str = ""
    digest: str = ""
    size: int | None = None
    path: str = ""

    @property
    def resumable(self) -> bool:
        """Whether the server can confirm that its content is unchanged, and the whole file can be checked at the
        end."""
        return bool(self.etag and self.digest and self.size)


class Partial:
    """An unfinished download. `close` keeps it, `remove` deletes it."""

    def __init__(self, base: Path, label: Label, note: FileIO, file: FileIO) -> None:
        self.label = label
        self.path = _named(base, PART)
        self._note_path = _named(base, NOTE)
        self._note, self._file = note, file
        self._digest = hashlib.sha256()
        self.size = 0

    def read_again(self) -> None:
        """Read the existing bytes, but never count them as the whole file, so that a request for the rest follows."""
        self._file.seek(0)
        left = (self.label.size or 1) - 1
        while left and (chunk := self._file.read(min(_CHUNK, left))):
            self._digest.update(chunk)
            self.size += len(chunk)
            left -= len(chunk)
        self._file.truncate(self.size)
        self._file.seek(self.size)

    def begin(self, label: Label) -> None:
        """Start over with the file that `label` describes."""
        self._file.seek(0)
        self._file.truncate(0)
        self._digest, self.size, self.label = hashlib.sha256(), 0, label
        self._note.seek(0)
        self._note.truncate(0)
        self._note.write(json.dumps(label._asdict()).encode())
        os.fsync(self._note.fileno())

    def write(self, chunk: bytes) -> None:
        """Add the next bytes. Raises OSError."""
        left = memoryview(chunk)
        while left:
            left = left[self._file.write(left) :]
        self._digest.update(chunk)
        self.size += len(chunk)

    def seal(self) -> None:
        """Make the file durable and close it, so that it can be moved. The note stays locked. Raises OSError."""
        os.fsync(self._file.fileno())
        self._file.close()

    def sha256(self) -> bytes:
        """Return the SHA-256 of all bytes so far."""
        return self._digest.digest()

    def close(self) -> None:
        """Close the download, and keep its files for later."""
        self._file.close()
        self._note.close()

    def remove(self) -> None:
        """Remove the file and its note. If the file has been moved to its place, remove the note alone."""
        self._file.close()
        self.path.unlink(missing_ok=True)
        if sys.platform == "win32":
            self._note.close()
        self._note_path.unlink(missing_ok=True)
        self._note.close()


def find(folder: Path, exec_id: str, path: str = "") -> Partial | None:
    """Return the newest unfinished download in `folder` of an exec's result, or of its file `path`, that can be
    resumed; None when there is none."""
    try:
        notes = sorted(folder.glob(f"*{NOTE}"), key=lambda path: path.lstat().st_mtime_ns, reverse=True)
    except OSError:
        return None
    for note_path in notes:
        found = _reopened(note_path, exec_id, path)
        if found is not None:
            return found
    return None


def claim(folder: Path, name: str, exec_id: str) -> Partial:
    """Return an empty download for `name`. Raises ResultError when another file or process is in the way, and
    OSError."""
    base = folder / name
    part_path, note_path = _named(base, PART), _named(base, NOTE)
    # Check the file first: a note exists for longer than its file.
    for path in (part_path, note_path):
        if os.path.lexists(path) and not _is_ours(path):
            raise _in_the_way(path)
    if os.path.lexists(part_path) and not os.path.lexists(note_path):
        raise _in_the_way(part_path)
    note = _open(note_path)
    try:
        if not _lock(note, note_path):
            raise ResultError(f"another dlicmd process is downloading {base}; wait for it, or {hints.another_folder()}")
        if _label(note) is None:
            raise _in_the_way(note_path)
        _drop_second_name(part_path)
        made = Partial(base, Label(exec_id), note, _open(part_path))
    except BaseException:
        note.close()
        raise
    return made


def _reopened(note_path: Path, exec_id: str, path: str) -> Partial | None:
    """Return the download of this note, if it is ours, is for this content and can be resumed; else None. A note
    without a file is removed."""
    base = Path(str(note_path)[: -len(NOTE)])
    note = None
    try:
        note = _open(note_path, existing=True)
        label = _label(note)
        wanted = label is not None and (label.exec_id, label.path) == (exec_id, path) and label.resumable
        if label is None or not wanted or not _lock(note, note_path):
            raise ValueError("the file belongs to another download")
        _drop_second_name(_named(base, PART))
        if not os.path.lexists(_named(base, PART)):
            note_path.unlink()
            raise ValueError("the file is missing")
        found = Partial(base, label, note, _open(_named(base, PART), existing=True))
        found.read_again()
    except (OSError, ValueError) as problem:
        debug(f"{note_path}: {problem}")
        if note is not None:
            note.close()
        return None
    return found


def _named(base: Path, suffix: str) -> Path:
    return base.with_name(base.name + suffix)


def _in_the_way(path: Path) -> ResultError:
    return ResultError(f"{path} exists already and is not an unfinished download of yours; move it, or "
                       f"{hints.another_folder()}")


def _is_ours(path: Path | int) -> bool:
    """Return whether this is a regular file of this user."""
    found = os.stat(path) if isinstance(path, int) else path.lstat()
    return stat.S_ISREG(found.st_mode) and (not hasattr(os, "geteuid") or found.st_uid == os.geteuid())


def _drop_second_name(path: Path) -> None:
    """Remove `path` if its file has several names. Such a file is a result that a killed dlicmd moved to its place, or
    another file. Neither must be written to."""
    try:
        if path.lstat().st_nlink > 1:
            path.unlink()
    except FileNotFoundError:
        pass


def _open(path: Path, existing: bool = False) -> FileIO:
    """Open for reading and writing, never through a link. Raises OSError; PermissionError when the file is not ours."""
    flags = os.O_RDWR | (0 if existing else os.O_CREAT)
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    fd = os.open(path, flags, 0o666)
    if not _is_ours(fd):
        os.close(fd)
        raise PermissionError(1, "not a regular file of this user", str(path))
    return open(fd, "r+b", buffering=0)


def _lock(note: FileIO, path: Path) -> bool:
    """Lock a note for as long as it is open. Return False when another process holds the lock, or has just removed the
    note."""
    if sys.platform == "win32":
        return True
    import fcntl  # not on Windows

    try:
        fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as problem:
        debug(f"cannot lock {path}: {problem.strerror}")
    try:
        return os.path.samestat(os.fstat(note.fileno()), os.lstat(path))
    except FileNotFoundError:
        return False


def _label(note: FileIO) -> Label | None:
    """Return the label in a note; an empty label if the note was never finished; None if the file is not a note."""
    note.seek(0)
    text = note.read(_MOST)
    if not text:
        return Label("")
    try:
        found: Any = json.loads(text)
        label = Label(**found)
    except (ValueError, TypeError, RecursionError):
        return None
    size = label.size
    texts = (label.exec_id, label.etag, label.digest, label.path)
    typed = all(isinstance(value, str) for value in texts) and (size is None or (type(size) is int and size >= 0))
    return label if typed else None
