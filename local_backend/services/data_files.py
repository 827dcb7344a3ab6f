"""Files that users store as data of jobs: in DLI_DATA_FS, and in volumes."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlicmd.contract.sizes import show_size
from local_backend.data import areas, storage
from local_backend.data.errors import DataError
from local_backend.data.storage import DataRoots, DataSight
from local_backend.errors import AccessDenied, Conflict, Invalid, NotFound, OverQuota, StorageFailed
from local_backend.runtime.sizes import on_disk
from local_backend.services.access import Caller
from local_backend.services.base import Base
from local_backend.sources.volumes import is_volume
from local_backend.submit.quota import check_room
from local_backend.submit.receive import MOST_OF_FOLDER, ReceivedUpload

#: Most files of an upload by a form, which has some other fields, too.
MOST_FILES = MOST_OF_FOLDER - 10
#: Names of the folders below a place, and the last name of a file → the received file.
_Files = Mapping[tuple[str, ...], Mapping[str, Path]]


@dataclass(frozen=True)
class StoredFiles:
    """Stored files. `path` is their folder, relative to the volume or to DLI_DATA_FS, as jobs name it."""

    path: str
    files: int
    bytes: int


@dataclass(frozen=True)
class _DataPlace:
    """A folder for data: names below a real path. The first folders are the `area` of the user, if it has one."""

    root: str
    parts: tuple[str, ...]
    area: str
    sight: DataSight

    def opened(self, inner: Sequence[str], *, make: bool) -> int:
        """Return a descriptor of a folder below this one. Raises Invalid (`data.path`), OSError."""
        parts = [*self.parts, *inner]
        real = os.path.join(self.root, *parts)  # no link is followed below
        if self.sight.trouble(real) or storage.is_kept(real, self.sight.kept):
            raise Invalid("data.path", f"the server stores no data in {real}, which is not for your jobs")
        try:
            return areas.opened(self.root, parts, self.area, make=make)
        except DataError as problem:
            raise Invalid("data.path", str(problem)) from None


@dataclass(frozen=True)
class DataFileService:
    """Stores files of users. On a server for a team, users store files in volumes, and in their own folders of
    DLI_DATA_FS; on an embedded server, in all of DLI_DATA_FS."""

    base: Base

    def own(self, caller: Caller) -> str:
        """Return the folder of the caller in DLI_DATA_FS, relative to it; empty for all of it."""
        return "" if self.base.settings.embedded else areas.area_of(caller.name)

    def may_store(self, caller: Caller, volume: str, path: str) -> bool:
        """Return whether the caller may store files in a folder that exists."""
        own = self.own(caller)
        return bool(volume) or not own or f"{path.strip('/')}/".startswith(f"{own}/")

    def store(
        self, caller: Caller, volume: str, path: str, upload: ReceivedUpload, *, replace: bool = False
    ) -> StoredFiles:
        """Store received files in the folder `path` of a volume, or of DLI_DATA_FS if `volume` is empty, and create the
        folders that are missing. A name of a file may be a path. Without `replace`, no file may exist.

        Raises Invalid (`data.path`, `data.no_files`), NotFound (`data.not_found`), AccessDenied (`data.shared`),
        Conflict (`data.exists`), OverQuota (`quota.bytes`), StorageFailed, Unavailable (`volume.unreadable`).
        """
        with self.base.recorded(caller, "data.upload", f"{volume}:{path}" if volume else path):
            place = self._place(caller, volume, path)
            files = _by_folder(upload)
            size = sum(source.stat().st_size for found in files.values() for source in found.values())
            self._check_room(place, size)
            try:
                taken = _taken(place, files, replace=replace)
            except OSError as problem:
                raise StorageFailed.from_os(problem) from None
            if taken:
                more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
                raise Conflict("data.exists", f"{taken[0]}{more} already exists; choose another folder, or replace "
                                              "what exists")
            count = _moved(place, files)
            return StoredFiles("/".join(place.parts), count, size)

    def _place(self, caller: Caller, volume: str, path: str) -> _DataPlace:
        roots = self.base.data_roots(caller)
        sight = DataSight(list(roots.closed.values()), roots.kept, storage.within(roots))
        try:
            found = storage.volume(volume, roots) if volume else None
        except DataError as problem:
            raise NotFound("data.not_found", str(problem)) from None
        if found is not None and not is_volume(self.base.settings, found):
            raise Invalid("data.path", f"the volume {volume} leads to a folder that is not for jobs; ask an "
                                       "administrator to add the volume again")
        try:
            if found is not None:
                return _DataPlace(os.path.realpath(found), tuple(areas.names_of(path)), "", sight)
            parts = areas.parts_below(path.lstrip("/"), (), roots.area)
        except DataError as problem:
            raise Invalid("data.path", str(problem)) from None
        if not roots.data_fs.is_dir():
            raise NotFound("data.not_found", f"DLI_DATA_FS ({roots.data_fs}) does not exist on the server; ask an "
                                             "administrator to create it")
        return _DataPlace(os.path.realpath(roots.data_fs), (*_area(roots, path, parts), *parts), roots.area, sight)

    def _check_room(self, place: _DataPlace, size: int) -> None:
        """Raise StorageFailed if a disk would be too full, OverQuota if the folder of the user would be too large."""
        settings = self.base.settings
        try:
            other = os.stat(place.root).st_dev != os.stat(settings.paths.incoming).st_dev
        except OSError as problem:
            raise StorageFailed.from_os(problem) from None
        check_room(settings.paths, settings.quotas, size if other else 0, (Path(place.root),))
        most = settings.quotas.stored_bytes
        if not place.area or most is None:
            return
        before = on_disk(Path(place.root, place.area))
        if before + size > most:
            raise OverQuota(
                "quota.bytes", f"the data in {place.area} uses {show_size(before)}, and this upload needs "
                f"{show_size(size)}; the limit is {show_size(most)}; remove data that you do not need")


def _area(roots: DataRoots, path: str, parts: Sequence[str]) -> list[str]:
    """Return the names of the folder of the user. Raises AccessDenied for a path that means shared data: jobs would get
    it in place of the new files."""
    if not roots.area:
        return []
    area = roots.area.split("/")
    named = [part for part in path.split("/") if part not in ("", ".")][:len(area)] == area
    if parts and not named and os.path.lexists(roots.data_fs / parts[0]):
        raise AccessDenied(
            "data.shared", f"{parts[0]} in DLI_DATA_FS is shared, and only administrators can change it, on the "
            f"machine of the server; choose another name, or a folder below {roots.area}")
    return area


def _by_folder(upload: ReceivedUpload) -> _Files:
    """Return the received files by their folders. Raises Invalid (`data.path`, `data.no_files`)."""
    found: dict[tuple[str, ...], dict[str, Path]] = {}
    for name, source in upload.files:
        if not name:  # a field of a form in which no file was chosen
            continue
        try:
            *names, last = areas.names_of(name) or [""]
        except DataError as problem:
            raise Invalid("data.path", str(problem)) from None
        if not last or name.endswith("/"):
            raise Invalid("data.path", f"'{name[:200]}' is not the name of a file")
        here = found.setdefault(tuple(names), {})
        if last in here:
            raise Invalid("data.path", f"the upload contains '{name[:200]}' twice")
        here[last] = source
    if not found:
        raise Invalid("data.no_files", "the upload contains no file; choose files or a folder")
    for folders in found:
        for depth in range(len(folders)):
            if folders[depth] in found.get(folders[:depth], {}):
                name = "/".join(folders[:depth + 1])
                raise Invalid("data.path", f"the upload contains '{name[:200]}' as a file and as a folder")
    return found


def _taken(place: _DataPlace, files: _Files, *, replace: bool) -> list[str]:
    """Return the files that exist already; with `replace`, only folders that have the name of a file. Raises Invalid,
    OSError."""
    taken = []
    for folders, found in files.items():
        try:
            at = place.opened(folders, make=False)
        except FileNotFoundError:
            continue
        try:
            with os.scandir(at) as entries:
                taken += ["/".join((*folders, one.name)) for one in entries
                          if one.name in found and (not replace or one.is_dir(follow_symlinks=False))]
        finally:
            os.close(at)
    return sorted(taken)


def _moved(place: _DataPlace, files: _Files) -> int:
    """Move the received files to their place. Return their number. Raises StorageFailed."""
    count, total = 0, sum(map(len, files.values()))
    try:
        for folders, found in files.items():
            at = place.opened(folders, make=True)
            try:
                for name, source in found.items():
                    _move(source, at, name)
                    count += 1
            finally:
                os.close(at)
    except OSError as problem:
        code = "storage.full" if problem.errno in (errno.ENOSPC, errno.EDQUOT) else "storage.failed"
        raise StorageFailed(code, f"the server stored {count} of {total} files, and then failed ({problem.strerror}). "
                                  "Upload them again later, and replace what exists") from None
    return count


def _move(source: Path, at: int, name: str) -> None:
    """Move a file into an open folder, at once or not at all; from another disk, copy it. Raises OSError."""
    try:
        os.rename(source, name, dst_dir_fd=at)
        return
    except OSError as problem:
        if problem.errno != errno.EXDEV:
            raise
    temporary = f".{secrets.token_hex(8)}.part"
    target = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=at)
    try:
        with open(target, "wb") as writing, source.open("rb") as reading:
            shutil.copyfileobj(reading, writing, 1 << 20)
        os.rename(temporary, name, src_dir_fd=at, dst_dir_fd=at)
    except BaseException:
        os.unlink(temporary, dir_fd=at)
        raise
