"""Files that are never seen half-written: temporary name, fsync, rename, fsync of the directory."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any, BinaryIO

#: Bytes without which a file system counts as full: a record and a journal of the database.
_ROOM = 64 * 1024
#: How a folder is opened that may have become a link.
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: What opening says when there is nothing, or a link that is not followed.
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
#: No JSON file of ours has as many bytes.
_LARGEST = 64 * 2**20


def write_atomic(path: Path, data: bytes, mode: int = 0o600, durable: bool = True) -> None:
    """Replace `path` by a file with `data` and `mode`, whole or not at all.

    With `durable` the content has reached the disk when this returns. Raises OSError; nothing is left behind then.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with open(fd, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def write_json(path: Path, value: Any, durable: bool = True) -> None:
    """`write_atomic` of a JSON value."""
    write_atomic(path, json.dumps(value).encode(), durable=durable)


def read_json(path: Path) -> Any:
    """The JSON value in `path`, or None when there is no such file or it is not JSON. Raises OSError.

    A job can put anything in the place of its files: links, pipes and what is larger than any of ours are not read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        if problem.errno in (errno.ELOOP, errno.ENXIO):
            return None
        raise
    try:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            return None
        with open(fd, "rb", closefd=False) as file:
            return json.loads(file.read())
    except (ValueError, RecursionError):
        return None
    finally:
        os.close(fd)


def open_regular(path: Path, top: Path) -> BinaryIO | None:
    """A file below the folder `top` that a program may still be writing; None when it is not there, and when something
    else is in its place: a link, also of a folder on the way, what could block, a file with a second name elsewhere."""
    try:
        above = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fd = open_below(above, str(path.relative_to(top)), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    finally:
        os.close(above)
    if fd is None:
        return None
    if not is_plain(fd):
        os.close(fd)
        return None
    return open(fd, "rb")


def is_plain(fd: int) -> bool:
    """Whether an open file is a regular one without a second name: a program could have linked it from elsewhere."""
    found = os.fstat(fd)
    return stat.S_ISREG(found.st_mode) and found.st_nlink <= 1


def open_below(top: int, relative: str, flags: int) -> int | None:
    """A descriptor of what lies below the folder `top`, None when it is gone or a link is on the way. Raises
    OSError."""
    *folders, name = relative.split("/")
    at = os.dup(top)
    try:
        for folder in folders:
            inner = os.open(folder, FOLDER, dir_fd=at)
            os.close(at)
            at = inner
        return os.open(name, flags, dir_fd=at)
    except OSError as problem:
        if problem.errno in _NOT_THERE:
            return None
        raise
    finally:
        os.close(at)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def full_disk(path: Path) -> str | None:
    """A sentence when the file system of `path` has no room left for even small files, else None."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    if found.f_bavail * found.f_frsize >= _ROOM:
        return None
    return f"the disk of {path} is full; what ends now is recorded when there is room again"
