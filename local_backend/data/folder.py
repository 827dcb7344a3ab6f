"""The files at a path of this machine, as a program that follows links sees them, and the unreadable ones."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from local_backend.data.cache_place import inside as is_inside
from local_backend.data.cache_place import is_kept
from local_backend.data.errors import DataError
from local_backend.data.kinds.base import Entry

#: Most folders that are searched, and most unreadable files and folders that are named.
_MOST, _NAMED = 100_000, 10
#: File types without content to read: opening one waits for another process or for a device.
_OTHERS = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"),
           (stat.S_ISBLK, "a device"))
_NOT_YOURS = "on a storage volume that you may not use"
_Identity = tuple[int, int]


@dataclass
class Unread:
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


def files_of(top: str, closed: Sequence[str], kept: Sequence[str], unread: Unread) -> Iterator[Entry]:
    """Yield the files below a folder, or the file itself. `closed` are places that the reader may not use. The folders
    in `kept` belong to the server and are left out. A folder that contains itself through a link is searched once.
    Files and folders that cannot be read go into `unread`.

    Raises DataError when `top` itself cannot be read, or is neither a file nor a folder.
    """
    try:
        found = os.stat(top)
        if other := next((what for is_one, what in _OTHERS if is_one(found.st_mode)), ""):
            raise DataError(f"{top} is {other}, not a file or a folder; name a file or a folder")
        if not stat.S_ISDIR(found.st_mode):
            if not os.access(top, os.R_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            yield Entry(os.path.basename(top), top, found.st_size)
            return
        os.scandir(top).close()
    except OSError as problem:
        raise DataError(f"the user that jobs run as cannot read {top}: {problem.strerror}") from None
    waiting = [_Folder("", os.path.realpath(top), (_identity(found),))]
    for _ in range(_MOST):
        if not waiting:
            return
        folders: list[_Folder] = []
        yield from _files(waiting.pop(), closed, kept, unread, folders)
        waiting += reversed(folders)
    unread.add(waiting[-1].path, f"not searched: there are more than {_MOST:,} folders")


def _files(
    folder: _Folder, closed: Sequence[str], kept: Sequence[str], unread: Unread, folders: list[_Folder]
) -> Iterator[Entry]:
    """Yield the files in a folder; add its subfolders to `folders`."""
    try:
        with os.scandir(folder.real) as found:
            inside = sorted(found, key=lambda one: one.name)
    except OSError as problem:
        unread.add(folder.path, problem)
        return
    for one in inside:
        path = f"{folder.path}/{one.name}".lstrip("/")
        try:
            about = os.stat(one.path)
        except OSError as problem:
            # A file that was removed meanwhile does not count.
            if one.is_symlink() or problem.errno != errno.ENOENT:
                unread.add(path, "a broken link" if problem.errno == errno.ENOENT else problem)
            continue
        real = os.path.realpath(one.path) if one.is_symlink() else one.path
        if is_kept(real, kept):
            continue
        if any(is_inside(real, place) for place in closed):
            unread.add(path, _NOT_YOURS)
        elif stat.S_ISDIR(about.st_mode):
            if _identity(about) not in folder.above:
                folders.append(_Folder(path, real, (*folder.above, _identity(about))))
        elif stat.S_ISREG(about.st_mode):
            if os.access(one.path, os.R_OK):
                yield Entry(path, one.path, about.st_size)
            else:
                unread.add(path, os.strerror(errno.EACCES))


def _identity(found: os.stat_result) -> _Identity:
    return found.st_dev, found.st_ino
