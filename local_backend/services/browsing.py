"""The folders and files of DLI_DATA_FS and of volumes, as jobs of the caller would see them. Only for reading."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from local_backend.data import storage
from local_backend.data.errors import DataError
from local_backend.data.storage import DataSight
from local_backend.errors import Invalid, NotFound
from local_backend.services.access import Caller
from local_backend.services.base import Base

#: Most entries of a folder that are read and that are shown; most bytes of a file that an answer has.
_READ, _SHOWN = 100_000, 1000
MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class BrowsedEntry:
    """A file or folder. `size` is in bytes, `modified` in epoch seconds."""

    name: str
    is_folder: bool
    size: int
    modified: float


@dataclass(frozen=True)
class BrowsedPlace:
    """What a path means: a file, or a folder with the first of its `entries`, folders first."""

    is_folder: bool
    size: int
    modified: float
    entries: list[BrowsedEntry]
    #: Whether the folder has more entries.
    more: bool = False


@dataclass(frozen=True)
class BrowseService:
    """Queries about files of data. `volume` is the name of a volume, empty for DLI_DATA_FS. `path` is relative; where
    jobs may use all of this machine, it may also be absolute."""

    base: Base

    def place(self, caller: Caller, volume: str, path: str) -> BrowsedPlace:
        """Return what a path means. The caller's own folder in DLI_DATA_FS is empty before the first file. Raises
        NotFound (`data.not_found`), Unavailable (`volume.unreadable`)."""
        roots = self.base.data_roots(caller)
        if not volume and roots.area and path.strip("/") == roots.area and not (roots.data_fs / roots.area).exists():
            return BrowsedPlace(True, 0, time.time(), [])
        with self._opened(caller, volume, path) as (fd, sight):
            found = os.fstat(fd)
            if not stat.S_ISDIR(found.st_mode):
                return BrowsedPlace(False, found.st_size, found.st_mtime, [])
            with os.scandir(fd) as scanned:
                names = sorted(islice(scanned, _READ + 1), key=lambda one: one.name)
            real = storage.place_of(fd)
            entries = [one for one in (_entry(found, real, sight) for found in names[:_READ]) if one is not None]
        entries.sort(key=lambda one: (not one.is_folder, one.name))
        more = len(entries) > _SHOWN or len(names) > _READ
        return BrowsedPlace(True, 0, found.st_mtime, entries[:_SHOWN], more)

    def head(self, caller: Caller, volume: str, path: str, most: int = MOST_BYTES) -> bytes:
        """Return at most the first `most` bytes of a file. Raises NotFound (`data.not_found`), Invalid
        (`data.invalid`) for a folder, Unavailable (`volume.unreadable`)."""
        with self._opened(caller, volume, path) as (fd, _):
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Invalid("data.invalid", f"{path[:200]!r} is not a file")
            found = b""
            while len(found) < most and (piece := os.read(fd, most - len(found))):
                found += piece
            return found

    @contextmanager
    def _opened(self, caller: Caller, volume: str, path: str) -> Iterator[tuple[int, DataSight]]:
        """Open a path that the caller may read. Links are followed, and the place of what was opened is checked."""
        roots = self.base.data_roots(caller)
        if volume or not roots.anywhere:
            path = path.lstrip("/")
        location = {"paths": [path]} if path else {}
        try:
            places = storage.places(location | ({"volume": volume} if volume else {}), roots)
            if len(places) != 1 or not places[0]:
                raise DataError("the folder of data (DLI_DATA_FS) does not exist")
            sight = DataSight(list(roots.closed.values()), roots.kept, storage.within(roots))
            fd = sight.open(places[0], os.O_RDONLY)
        except DataError as problem:
            raise NotFound("data.not_found", str(problem)) from None
        except OSError as problem:
            raise NotFound("data.not_found", f"the server cannot read {path[:200]!r}: {problem.strerror}") from None
        try:
            yield fd, sight
        except OSError as problem:
            raise NotFound("data.not_found", f"the server cannot read {path[:200]!r}: {problem.strerror}") from None
        finally:
            os.close(fd)


def _entry(found: os.DirEntry[str], folder: str, sight: DataSight) -> BrowsedEntry | None:
    """Return a file or folder in a folder; None for other entries, and for those that jobs of the caller do not see."""
    try:
        about = found.stat()
    except OSError:
        return None
    path = os.path.join(folder, found.name)
    real = os.path.realpath(path) if found.is_symlink() else path
    if sight.trouble(real) or storage.is_kept(real, sight.kept) or not (
        stat.S_ISDIR(about.st_mode) or stat.S_ISREG(about.st_mode)
    ):
        return None
    is_folder = stat.S_ISDIR(about.st_mode)
    return BrowsedEntry(found.name, is_folder, 0 if is_folder else about.st_size, about.st_mtime)
