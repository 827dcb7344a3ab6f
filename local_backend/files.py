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


def open_regular(path: Path) -> BinaryIO | None:
    """A file that a program may still be writing, None when it is not there; never a link, nor anything that could
    block."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    return open(fd, "rb")


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
