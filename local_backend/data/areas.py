"""The users' own areas of DLI_DATA_FS, where the server creates data paths that do not exist yet.

On an embedded server, the area of its only user is all of DLI_DATA_FS. On another server, the area is the folder
users/NAME, and only its user and administrators may name data in it. File modes cannot separate the users, because all
jobs run as one user of the machine.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from local_backend.data.errors import DataError
from local_backend.files import FOLDER

#: The folder of all areas in DLI_DATA_FS.
AREAS = "users"
#: Most folders in a path that the server creates.
_DEEPEST = 64
#: Longest name of a folder in bytes.
_LONGEST = 255
_NO_FOLDER = frozenset({errno.ENOTDIR, errno.ELOOP})


def others(data_fs: Path, user: str) -> Iterator[Path]:
    """Yield the areas of all other users. A folder that other users of the machine can enter has no areas: the server
    did not make it."""
    folder = data_fs / AREAS
    try:
        if is_private(os.lstat(folder)):
            with os.scandir(folder) as found:
                yield from (Path(one.path) for one in found if one.name != user and one.is_dir(follow_symlinks=False))
    except OSError as problem:
        if problem.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise DataError(f"cannot read {folder}, the folder of users' own data: {problem.strerror}") from None


def area_of(user: str) -> str:
    """Return the area of a user, relative to DLI_DATA_FS."""
    return f"{AREAS}/{user}"


def parts_below(path: str, tops: Sequence[str], area: str) -> list[str]:
    """Return the names of the folders of a path, below the area (relative to DLI_DATA_FS) that it belongs to. `tops`
    are the spellings of DLI_DATA_FS in absolute paths. Raises DataError for a path that the server never creates."""
    if os.path.isabs(path):
        below = next((path[len(top):] for top in tops if path.startswith(f"{top}/")), None)
        if below is None:
            raise DataError(f"the data path '{path}' does not exist on the server; give a path relative to DLI_DATA_FS")
        path = below
    parts = names_of(path)
    if area and parts[:1] == [AREAS]:
        if "/".join(parts[:2]) != area:
            raise DataError(f"the data path '{path}' does not exist, and is not in your folder; use one below {area}")
        parts = parts[2:]
    return parts


def names_of(path: str) -> list[str]:
    """Return the names in a relative path that the server may create. Raises DataError."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise DataError(f"the server creates no data path with '..': '{path[:200]}'; leave it out")
    if not path.isprintable():
        raise DataError(f"the server creates no data path with unprintable characters: {path[:200]!a}; leave them out")
    if len(parts) > _DEEPEST or any(len(os.fsencode(part)) > _LONGEST for part in parts):
        raise DataError(f"the data path '{path[:200]}' is too long to be created; use at most {_DEEPEST} folders with "
                        f"names of at most {_LONGEST} bytes")
    return parts


def create(path: str, data_fs: Path, area: str) -> None:
    """Create the missing folders of a path below DLI_DATA_FS, for the user of the server alone. No link is followed:
    jobs can make links. The folders of the area must be private. Raises DataError and OSError."""
    root = os.path.realpath(data_fs)
    os.close(opened(root, os.path.relpath(path, root).split(os.sep), area, make=True))


def opened(root: str, parts: Sequence[str], area: str, *, make: bool) -> int:
    """Return a descriptor of the folder at these names below a real path, and with `make`, create the missing folders
    for the user of the server alone. No link is followed: jobs can make links. If the path begins with an `area`, the
    folders of the area must be private. Raises DataError and OSError."""
    private = area.count("/") + 1 if area else 0
    path, at = os.path.join(root, *parts), os.open(root, FOLDER)
    try:
        for number, part in enumerate(parts, 1):
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=at)
            inner = os.open(part, FOLDER, dir_fd=at)
            os.close(at)
            at = inner
            if number <= private and not is_private(os.fstat(at)):
                place = os.path.join(root, *parts[:number])
                raise DataError(f"cannot create {path}: other users of the machine can enter {place}; make it private: "
                                f"chmod 700 {place}")
        return os.dup(at)
    except OSError as problem:
        if problem.errno in _NO_FOLDER:
            raise DataError(f"cannot create {path}: a part of this path is a link or a file") from None
        raise
    finally:
        os.close(at)


def is_private(found: os.stat_result) -> bool:
    """Return whether this is a folder that only the user of the server can enter."""
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
