"""Data on this machine: directories below DLI_DATA_FS, storage volumes, their files (links are followed), and the
caches of fetched data.

The cache of shared storage lies beside the folders that jobs see, never inside them. Machines share this storage, users
do not: data that came through the connection of one user must not reach every user who gets the storage as data. So no
data source may lead into a cache.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlicmd.contract import data_sources as wire
from local_backend.data import areas
from local_backend.data.errors import DataError
from local_backend.data.kind import SourceFile
from local_backend.data.locations import named

_VOLUME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]{0,127}")
#: Suffix of the names of cache folders, on all disks.
_ENDING = ".dlicmd-cache"
#: Most folders that are searched, and most unreadable files and folders that are named.
_MOST, _NAMED = 100_000, 10
#: File types without content to read: opening one waits for another process or for a device.
_OTHERS = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"),
           (stat.S_ISBLK, "a device"))
_NOT_YOURS = "on a storage volume, or in a folder of another user, that you may not use"
_Identity = tuple[int, int]


@dataclass(frozen=True)
class DataRoots:
    """The places where data may lie. `anywhere` permits absolute paths of this machine: its user is the submitter.
    `closed` are the volumes, and the areas of other users, that the submitter may not use: name → real path. No data
    source may lead into `kept`, which are real paths. `shared_cache` is the configured cache for data fetched to
    DLI_DATA_FS, if any. `area` is the submitter's own folder in DLI_DATA_FS, empty for all of it. With `create`, a path
    of DLI_DATA_FS may be missing: then the path in the area is returned, and the caller creates it."""

    data_fs: Path
    volumes: Path
    anywhere: bool
    closed: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    shared_cache: Path | None = None
    area: str = ""
    create: bool = False


def from_meta(meta: str, roots: DataRoots) -> str:
    """Return DATA_DIR as a real path for a `--cs-datastore-meta` text; DLI_DATA_FS when the text names no path.

    Raises DataError.
    """
    values: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in meta.split(","))):
        key, equals, value = item.partition("=")
        if not equals:
            raise DataError(f"--cs-datastore-meta: '{item}' is not KEY=VALUE; write type=fs,data_path=PATH")
        if values.setdefault(key.strip(), value.strip()) != value.strip():
            raise DataError(f"--cs-datastore-meta: '{key.strip()[:80]}' is given twice with different values; "
                            "give it once")
    kind = values.pop("type", wire.FS)
    if kind != wire.FS:
        raise DataError(f"--cs-datastore-meta: the type must be fs, not '{kind[:80]}'; for other data use "
                        "--data-source")
    path = values.pop("data_path", "")
    if values:
        raise DataError(f"--cs-datastore-meta: unknown key '{next(iter(values))}'; the known keys are type and "
                        "data_path")
    return _directory(path, roots)


def places(location: Mapping[str, Any], roots: DataRoots) -> list[str]:
    """Return the paths that a location of type fs names, in its order, as absolute paths that exist. Without paths: the
    volume itself, or DLI_DATA_FS (empty if that does not exist). Raises DataError."""
    paths = named(location)
    if wire.VOLUME in location:
        place, what = volume(location[wire.VOLUME], roots), f"volume {location[wire.VOLUME]}"
        return [_below(place, path, what, roots) for path in paths or [""]]
    return [_directory(path, roots) for path in paths or [""]]


def mounted(values: Mapping[str, str], location: Mapping[str, Any], roots: DataRoots) -> list[str]:
    """Return the paths that a location names on the volume of a connection, as `places` does. Raises DataError."""
    base, what = volume(values["volume"], roots), f"volume {values['volume']}"
    if folder := values.get("folder", "").strip("/"):
        base, what = Path(_below(base, folder, what, roots)), f"{what}, folder {folder}"
    return [_below(base, path.lstrip("/"), what, roots) for path in named(location) or [""]]


def volume_directory(name: str) -> str:
    """Return the name of the directory at which a volume is mounted: `cpd::demo-project-pvc` → `demo_project_pvc`.
    Raises DataError."""
    directory = name.rpartition("::")[2].replace("-", "_")
    if not _VOLUME.fullmatch(directory):
        raise DataError(f"'{name[:80]}' is not a valid name of a storage volume")
    return directory


def volume(name: str, roots: DataRoots) -> Path:
    """Return the path at which a volume is mounted. The path stays the same wherever the data lies. Raises DataError,
    with the same words for a missing volume and for a volume that the submitter may not use."""
    path = roots.volumes / volume_directory(name)
    if path.name in roots.closed or not path.is_dir():
        raise DataError(f"storage volume '{name}' does not exist, or you may not use it; list the volumes with: "
                        f"local-backend volume list (create one with: local-backend volume add {path.name} DIR)")
    return path


def cache_of(target: str, roots: DataRoots) -> Path:
    """Return the cache folder for data that is fetched to shared storage, or to the volume mounted at `target`. Raises
    DataError."""
    shared = target == wire.SHARED
    if shared and roots.shared_cache is not None:
        return roots.shared_cache
    storage = roots.data_fs if shared else Path(target)
    if not storage.is_dir():
        raise DataError(f"cannot fetch data to {storage}: the folder does not exist")
    volumes = [one for one in roots.volumes.iterdir() if one.is_dir()] if roots.volumes.is_dir() else []
    return beside(storage, [roots.data_fs, *volumes], ", or set DLI_SHARED_CACHE_DIR" if shared else "")


def within(roots: DataRoots) -> list[str]:
    """Return the real paths outside of which there is no data; none for all of the machine."""
    if roots.anywhere:
        return []
    volumes = [one.path for one in os.scandir(roots.volumes)] if roots.volumes.is_dir() else []
    return [os.path.realpath(one) for one in (str(roots.data_fs), *volumes)]


def _directory(path: str, roots: DataRoots) -> str:
    """Return a path below DLI_DATA_FS, or, where permitted, anywhere on this machine. Return an empty text if no path
    is given and DLI_DATA_FS does not exist: such a job brings its own data."""
    _check_characters(path)
    if not path and not roots.data_fs.exists():
        return ""
    root, real = os.path.realpath(roots.data_fs), os.path.realpath(roots.data_fs / path)
    if os.path.isabs(path) and not inside(real, root):
        if roots.anywhere and os.path.exists(real):
            return _existing(real, path, roots)
        # WMLA joined the path to DLI_DATA_FS, with or without a leading slash.
        if os.path.exists(roots.data_fs / path.lstrip("/")):
            return _real(roots.data_fs, path.lstrip("/"), "DLI_DATA_FS", roots)
        if roots.anywhere:
            return _existing(real, path, roots)
        raise DataError(f"the data path {path} is not below DLI_DATA_FS ({roots.data_fs}); give a path relative to "
                        "DLI_DATA_FS")
    if inside(real, root) and not os.path.exists(real):
        return _own(path, root, roots)
    return _real(roots.data_fs, path, "DLI_DATA_FS", roots)


def _own(path: str, root: str, roots: DataRoots) -> str:
    """Return a path that DLI_DATA_FS, whose real path is `root`, lacks: the path in the submitter's own area. Raises
    DataError if the area lacks the path, too, and the path may not be missing."""
    base = Path(root, roots.area)
    parts = areas.parts_below(path, (str(roots.data_fs), root), roots.area)
    place = str(base.joinpath(*parts))
    if os.path.exists(place):
        return _real(base, "/".join(parts), f"{roots.area}, your own folder", roots)
    _check_permitted(place, path, roots)
    if not roots.create:
        raise DataError(f"the data path '{path}' does not exist on the server ({os.path.join(root, path)}); to create "
                        "a path of type fs, add --create-data-path (in an experiment: createDataPath)")
    if not os.path.exists(root):
        raise DataError(f"the data path '{path}' cannot be created: DLI_DATA_FS ({root}) does not exist on the server; "
                        "ask an administrator to create it")
    return place


def _below(base: Path, path: str, what: str, roots: DataRoots) -> str:
    """Return a path below the stable name `base`, which may be a link: keep the name, check its target."""
    _real(base, path, what, roots)
    return str(base / path)


def _real(base: Path, path: str, what: str, roots: DataRoots) -> str:
    _check_characters(path)
    root = os.path.realpath(base)
    real = os.path.realpath(os.path.join(root, path))
    if not inside(real, root):
        raise DataError(f"the data path '{path}' is outside {what} ({root})")
    return _existing(real, path, roots)


def _existing(real: str, path: str, roots: DataRoots) -> str:
    """Return `real` if the path exists. A file is permitted: then DATA_DIR names the file. Raises DataError."""
    _check_permitted(real, path, roots)
    if not os.path.exists(real):
        raise DataError(f"the data path '{path}' does not exist on the server ({real})")
    return real


def _check_permitted(real: str, path: str, roots: DataRoots) -> None:
    """Raise DataError for a path that the submitter may not use. Data of a volume is for its users alone, by any path,
    as is data in the area of a user. Fetched data is only for users who may use its connection."""
    if is_kept(real, roots.kept):
        raise DataError(f"the data path '{path}' is in a folder that is reserved for the server, such as its cache; "
                        "for data of another server name its connection (type connection)")
    if any(inside(real, closed) for closed in roots.closed.values()):
        raise DataError(f"the data path '{path}' is on a storage volume, or in a folder of another user, that you may "
                        "not use")


def _check_characters(path: str) -> None:
    if any(ord(character) < 32 for character in path) or len(path) > 4000:
        raise DataError("a data path is too long or contains control characters")


def beside(storage: Path, seen: Collection[Path], cure: str = "") -> Path:
    """Return the cache folder of this user of the machine, on the disk of `storage`; create nothing. `seen` are all
    folders that jobs may get. Raises DataError when no cache folder is possible. Its message ends with `cure`, an
    alternative."""
    real = os.path.realpath(storage)
    # Take the outermost folder: a cache beside a nested folder would be visible in the folder around it.
    top = min((one for one in (real, *map(os.path.realpath, seen)) if inside(real, one)), key=len)
    parent, name = os.path.split(top)
    if not name:
        way = next(one for one in (storage, *seen) if os.path.realpath(one) == top)
        raise DataError(f"cannot fetch data to {storage}: its cache must be outside the folders that jobs see, but "
                        f"{way} leads to {top}, the whole machine; make {way} lead to a folder{cure}")
    place = os.path.join(parent, f".{name}.{os.getuid()}{_ENDING}")
    problem = _problem(real, parent, place)
    if problem:
        raise DataError(f"cannot fetch data to {storage}: its cache must be outside the folders that jobs see, but "
                        f"{problem}; create {place} for the user of the server only (mode 0700){cure}")
    return Path(place)


def is_kept(real: str, kept: Collection[str]) -> bool:
    """Return whether a real path is in a cache or in another folder that the server keeps for itself."""
    ours = any(part.casefold().endswith(_ENDING) for part in real.split(os.sep))
    return ours or any(inside(real, folder) for folder in kept)


def inside(path: str, root: str) -> bool:
    """Return whether an absolute path is `root` or below it."""
    return os.path.commonpath([path, root]) == root


def _problem(storage: str, parent: str, place: str) -> str:
    """Return why the cache of `storage` cannot be at `place`; empty if it can."""
    try:
        found = os.lstat(place)
        mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
        return "" if mine else f"{place} is not a folder for the user of the server only"
    except FileNotFoundError:
        pass
    except OSError as problem:
        return f"{place}: {problem.strerror}"
    try:
        other = os.stat(storage).st_dev != os.stat(parent).st_dev
    except OSError as problem:
        return f"{problem.filename}: {problem.strerror}"
    if other:
        return f"{parent} is on another disk"
    return "" if os.access(parent, os.W_OK | os.X_OK) else f"{parent} is not writable"


@dataclass
class Unreadable:
    """Files and folders that cannot be read: their number, and path and reason of the first ones."""

    count: int = 0
    names: list[dict[str, str]] = field(default_factory=list)

    def add(self, path: str, why: OSError | str) -> None:
        """Add one file or folder."""
        self.count += 1
        if len(self.names) < _NAMED:
            self.names.append({"path": path, "message": why if isinstance(why, str) else why.strerror or str(why)})


@dataclass(frozen=True)
class _Folder:
    """A folder to search: its path below the top, its real path, and the identities of it and of the folders around
    it."""

    path: str
    real: str
    above: tuple[_Identity, ...]


@dataclass(frozen=True)
class DataSight:
    """What a reader of data may see, as real paths: only what is in one of the places `within`, if there are any, and
    nothing that is in `closed`. The folders in `kept` belong to the server and do not appear."""

    closed: Sequence[str] = ()
    kept: Sequence[str] = ()
    within: Sequence[str] = ()

    def trouble(self, real: str) -> str:
        """Return why the reader may not see a real path; empty if it may."""
        if any(inside(real, place) for place in self.closed):
            return _NOT_YOURS
        if self.within and not any(inside(real, place) for place in self.within):
            return "a link that leads out of the data of this server"
        return ""

    def open(self, path: str, flags: int) -> int:
        """Return a descriptor of a file or folder. Links are followed, and the place of what was opened is checked: a
        link may change at any time. Raises OSError."""
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            real = place_of(fd)
            if why := self.trouble(real) or ("reserved for the server" if is_kept(real, self.kept) else ""):
                raise PermissionError(errno.EACCES, why, path)
        except BaseException:
            os.close(fd)
            raise
        return fd


def place_of(fd: int) -> str:
    """Return the real path of an open file or folder. Raises OSError."""
    if sys.platform == "darwin":
        return fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024)).partition(b"\0")[0].decode()
    return os.readlink(f"/proc/self/fd/{fd}")


def files_of(top: str, sight: DataSight, unread: Unreadable) -> Iterator[SourceFile]:
    """Yield the files below a folder, or the file itself. Places that the reader may not see are left out. A folder
    that contains itself through a link is searched once. Files and folders that cannot be read go into `unread`.

    Raises DataError when `top` itself cannot be read, or is neither a file nor a folder.
    """
    try:
        found = os.stat(top)
        if other := next((what for is_one, what in _OTHERS if is_one(found.st_mode)), ""):
            raise DataError(f"{top} is {other}, not a file or a folder; name a file or a folder")
        fd = sight.open(top, os.O_RDONLY)
        found = os.fstat(fd)
        os.close(fd)
        if not stat.S_ISDIR(found.st_mode):
            if not os.access(top, os.R_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            yield SourceFile(os.path.basename(top), top, found.st_size)
            return
    except OSError as problem:
        raise DataError(f"the user that jobs run as cannot read {top}: {problem.strerror}") from None
    waiting = [_Folder("", top, (_identity(found),))]
    for _ in range(_MOST):
        if not waiting:
            return
        folders: list[_Folder] = []
        yield from _files(waiting.pop(), sight, unread, folders)
        waiting += reversed(folders)
    unread.add(waiting[-1].path, f"not searched: there are more than {_MOST:,} folders")


def _files(folder: _Folder, sight: DataSight, unread: Unreadable, folders: list[_Folder]) -> Iterator[SourceFile]:
    """Yield the files in a folder; add its subfolders to `folders`."""
    try:
        fd = sight.open(folder.real, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as problem:
        unread.add(folder.path, problem)
        return
    try:
        real = place_of(fd)
        with os.scandir(fd) as found:
            names = sorted(found, key=lambda one: one.name)
        for one in names:
            yield from _seen(one, _Folder(f"{folder.path}/{one.name}".lstrip("/"), f"{real}/{one.name}", folder.above),
                             sight, unread, folders)
    except OSError as problem:
        unread.add(folder.path, problem)
    finally:
        os.close(fd)


def _seen(
    one: os.DirEntry[str], entry: _Folder, sight: DataSight, unread: Unreadable, folders: list[_Folder]
) -> Iterator[SourceFile]:
    """Yield a file that the reader may see; add a folder to `folders`."""
    try:
        about = one.stat()
    except OSError as problem:
        # A file that was removed meanwhile does not count.
        if one.is_symlink() or problem.errno != errno.ENOENT:
            unread.add(entry.path, "a broken link" if problem.errno == errno.ENOENT else problem)
        return
    real = os.path.realpath(entry.real) if one.is_symlink() else entry.real
    if is_kept(real, sight.kept):
        return
    if why := sight.trouble(real):
        unread.add(entry.path, why)
    elif stat.S_ISDIR(about.st_mode):
        if _identity(about) not in entry.above:
            folders.append(_Folder(entry.path, real, (*entry.above, _identity(about))))
    elif stat.S_ISREG(about.st_mode):
        if os.access(entry.real, os.R_OK):
            yield SourceFile(entry.path, entry.real, about.st_size)
        else:
            unread.add(entry.path, os.strerror(errno.EACCES))


def _identity(found: os.stat_result) -> _Identity:
    return found.st_dev, found.st_ino
