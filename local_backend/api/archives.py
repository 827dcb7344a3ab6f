"""Zips of what jobs stored: made on demand without a name on disk, and kept for a while when their transfer was cut."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from local_backend.api.textlog import open_log

#: Seconds for which a zip whose transfer was cut waits for its client to come back.
KEPT_SECONDS = 600.0
#: Zips that wait at a time; beyond it the oldest goes.
_MOST = 4
_CHUNK = 1 << 20
#: Entries carry no time of their own, so that equal content is an equal zip.
_EPOCH = (1980, 1, 1, 0, 0, 0)

#: What tells one content of a folder from another without reading it: name, inode, size and times of every file.
Mark = tuple[tuple[str, int, int, int, int], ...]


@dataclass(eq=False)
class Archive:
    """A zip: `digest` is its SHA-256, `length` its bytes, `mark` that of the files that are in it."""

    file: IO[bytes]
    length: int
    digest: bytes
    mark: Mark

    def stream(self, start: int) -> Iterator[bytes]:
        """The bytes from `start` on."""
        self.file.seek(start)
        while chunk := self.file.read(_CHUNK):
            yield chunk


class Archives:
    """Zips that wait to be asked for again, by folder. Packing gigabytes anew for each try could take a client longer
    than its connection lasts. They have no names: nothing of them is left, however the server ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Path, Archive] = {}

    def take(self, folder: Path, mark: Mark) -> Archive | None:
        """The kept zip of a folder whose content is still the same; it belongs to the caller then."""
        with self._lock:
            found = self._kept.pop(folder, None)
        if found is not None and found.mark != mark:
            found.file.close()
            return None
        return found

    def keep(self, folder: Path, archive: Archive) -> None:
        """Keep a zip until it is taken, `drop`ped, or others need its place."""
        with self._lock:
            gone = [self._kept.pop(folder)] if folder in self._kept else []
            self._kept[folder] = archive
            if len(self._kept) > _MOST:
                gone.append(self._kept.pop(next(iter(self._kept))))
        for old in gone:
            old.file.close()

    def drop(self, folder: Path, archive: Archive) -> None:
        """Its time is over, unless it has been taken."""
        with self._lock:
            if self._kept.get(folder) is not archive:
                return
            del self._kept[folder]
        archive.file.close()


def pack(folder: Path, mark: Mark, place: Path) -> Archive:
    """A new zip of the files in `mark`, on the disk of `place`. Raises OSError."""
    # Without a name from the start: nothing of it is left, however this ends.
    file = tempfile.TemporaryFile(dir=place)  # noqa: SIM115
    try:
        write_zip(file, folder, [entry[0] for entry in mark])
        length, digest = _measure(file)
    except BaseException:
        file.close()
        raise
    return Archive(file, length, digest, mark)


def mark_of(folder: Path) -> Mark:
    """Names and marks of the regular files below a folder, sorted; links are not followed."""
    return tuple(sorted(_marks(folder)))


def _marks(folder: Path) -> Iterator[tuple[str, int, int, int, int]]:
    for base, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(base, name)
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(found.st_mode):
                relative = os.path.relpath(path, folder)
                yield relative, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def write_zip(archive: IO[bytes], folder: Path, files: list[str]) -> None:
    """Write the files as entries `model/...`. One that went away in the meantime is left out."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target:
        for name in files:
            file = open_log(folder / name)
            if file is None:
                continue
            with file:
                entry = zipfile.ZipInfo(f"{folder.name}/{name}", _EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                with target.open(entry, "w", force_zip64=True) as sink:
                    while chunk := file.read(_CHUNK):
                        sink.write(chunk)


def _measure(archive: IO[bytes]) -> tuple[int, bytes]:
    """Length and SHA-256."""
    archive.seek(0)
    sha = hashlib.sha256()
    while chunk := archive.read(_CHUNK):
        sha.update(chunk)
    return archive.tell(), sha.digest()
