"""Results of jobs as zips. A zip is made on demand, has no name on disk, and is kept for a while after an interrupted
transfer."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
import threading
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from local_backend.files import open_below, open_folder, regular_files

#: Seconds for which the server keeps a zip after an interrupted transfer, so that the client can continue it.
KEPT_SECONDS = 600.0
#: Maximum number of kept zips. A further one replaces the oldest.
_MOST = 4
_CHUNK = 1 << 20
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Timestamp of all entries: equal content must give an equal zip.
_EPOCH = (1980, 1, 1, 0, 0, 0)

#: Identifies the content of a folder without reading it: name, inode, size and times of every file.
Mark = tuple[tuple[str, int, int, int, int], ...]


@dataclass(eq=False)
class Archive:
    """A zip. `digest` is its SHA-256, `length` its size in bytes, `mark` the mark of the files in it."""

    file: IO[bytes]
    length: int
    digest: bytes
    mark: Mark

    def stream(self, start: int) -> Iterator[bytes]:
        """Yield the bytes from offset `start` on."""
        self.file.seek(start)
        while chunk := self.file.read(_CHUNK):
            yield chunk


class Archives:
    """Kept zips, by folder. To pack gigabytes again for each try could take longer than the client's connection
    lasts. The zips have no names, so nothing of them stays on disk, even if the server is killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Path, Archive] = {}

    def take(self, folder: Path, mark: Mark) -> Archive | None:
        """Return the kept zip of a folder and hand it over to the caller. Return None if there is none, or if the
        content of the folder has changed."""
        with self._lock:
            found = self._kept.pop(folder, None)
        if found is not None and found.mark != mark:
            found.file.close()
            return None
        return found

    def keep(self, folder: Path, archive: Archive) -> None:
        """Keep a zip until it is taken or dropped, or until newer zips exceed the maximum number."""
        with self._lock:
            gone = [self._kept.pop(folder)] if folder in self._kept else []
            self._kept[folder] = archive
            if len(self._kept) > _MOST:
                gone.append(self._kept.pop(next(iter(self._kept))))
        for old in gone:
            old.file.close()

    def drop(self, folder: Path, archive: Archive) -> None:
        """Close a kept zip, unless it has been taken."""
        with self._lock:
            if self._kept.get(folder) is not archive:
                return
            del self._kept[folder]
        archive.file.close()


def pack(folder: Path, mark: Mark, place: Path) -> Archive:
    """Return a new zip of the files in `mark`, on the disk of `place`. Raises OSError."""
    # The file never has a name, so nothing of it stays on disk, even if the server is killed.
    file = tempfile.TemporaryFile(dir=place)  # noqa: SIM115
    try:
        write_zip(file, folder, mark)
        length, digest = _measure(file)
    except BaseException:
        file.close()
        raise
    return Archive(file, length, digest, mark)


def mark_of(folder: Path, left_out: list[str] | None = None) -> Mark:
    """Return name, inode, size and times of the regular files below a folder, sorted. No link is followed, not even
    if a program has replaced the folder by a link. Raises OSError when something below the folder cannot be read.

    A file with a second name outside of the folder of the exec, which is around `folder`, is left out: a program can
    link a file of another user or of the server. The names of these files are appended to `left_out`."""
    top = open_folder(folder, folder.parent.parent)
    if top is None:
        return ()
    try:
        found = list(regular_files(top))
    finally:
        os.close(top)
    linked = {_inode(one) for _, one in found if one.st_nlink > 1}
    names = _names_of(linked, folder.parent) if linked else Counter()
    own = [(name, one) for name, one in found if one.st_nlink <= max(1, names[_inode(one)])]
    if left_out is not None:
        left_out += sorted({name for name, _ in found} - {name for name, _ in own})
    return tuple(sorted((name, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for name, one in own))


def _inode(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _names_of(inodes: Collection[tuple[int, int]], root: Path) -> Counter[tuple[int, int]]:
    """Return how many names each of these files has below a folder. Raises OSError."""
    top = open_folder(root, root.parent)
    if top is None:
        return Counter()
    try:
        return Counter(_inode(one) for _, one in regular_files(top, locked=[]) if _inode(one) in inodes)
    finally:
        os.close(top)


def write_zip(archive: IO[bytes], folder: Path, mark: Mark) -> None:
    """Write the files in `mark` as entries `model/...`. A file that was removed in the meantime is left out, and so is
    one that was replaced by a link. Raises OSError when a file cannot be read: a partial result must not look
    complete."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target:
        top = open_folder(folder, folder.parent.parent)
        if top is None:
            return
        try:
            for name, inode, *_ in mark:
                _add(target, top, (name, inode), f"{folder.name}/{_utf8(name)}")
        finally:
            os.close(top)


def _add(target: zipfile.ZipFile, top: int, marked: tuple[str, int], shown: str) -> None:
    fd = open_below(top, marked[0], _FILE)
    if fd is None:
        return
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or (found.st_nlink > 1 and found.st_ino != marked[1]):
            return
        entry = zipfile.ZipInfo(shown, _EPOCH)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = 0o644 << 16
        with target.open(entry, "w", force_zip64=True) as sink:
            while chunk := file.read(_CHUNK):
                sink.write(chunk)


def _utf8(name: str) -> str:
    """Return a file name for a zip, whose names are UTF-8. Every other byte becomes `%` and two hexadecimal digits."""
    return re.sub(r"[\udc80-\udcff]", lambda found: f"%{ord(found[0]) - 0xDC00:02X}", name)


def _measure(archive: IO[bytes]) -> tuple[int, bytes]:
    """Return the length in bytes and the SHA-256 of a zip."""
    archive.seek(0)
    sha = hashlib.sha256()
    while chunk := archive.read(_CHUNK):
        sha.update(chunk)
    return archive.tell(), sha.digest()
