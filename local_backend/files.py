"""Atomic writes: temporary name, fsync, rename, fsync of the directory. Readers never see a half-written file.

Reads and removals of files that a program may have replaced."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

#: A file system with fewer free bytes counts as full: a record and a journal of the database need this many.
_ROOM = 64 * 1024
#: Flags to open a folder that may have been replaced by a link.
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Depth below which folders are moved up if removal fails: a path of 10 names of maximum length is still short
#: enough.
_DEPTH = 10
#: Errors of open for a missing file, and for a link that is not followed.
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
#: Maximum bytes of a JSON file to read. All JSON files of the backend are smaller.
_LARGEST = 64 * 2**20


def write_atomic(path: Path, data: bytes, mode: int = 0o600, durable: bool = True) -> None:
    """Replace `path` atomically by a file with `data` and `mode`.

    With `durable`, the content is on the disk when this returns. Raises OSError; no temporary file remains then.
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
    """Write a JSON value with `write_atomic`."""
    write_atomic(path, json.dumps(value).encode(), durable=durable)


def read_json(path: Path) -> Any:
    """Return the JSON value in `path`; None if the file is missing or not JSON. Raises OSError.

    A job can replace its files by anything. Links, pipes and files above `_LARGEST` are not read: the result is None.
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
    """Open a file below the folder `top` for reading; a program may still be writing to it. Return None if the file is
    missing, or if something else is in its place: a link, also as a folder of the path; a file that could block; a file
    with a second name elsewhere."""
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
    """Return whether an open file is regular and has no second name: a program could have linked it from elsewhere."""
    found = os.fstat(fd)
    return stat.S_ISREG(found.st_mode) and found.st_nlink <= 1


def open_below(top: int, relative: str, flags: int) -> int | None:
    """Return a descriptor of `relative` below the folder `top`; None if it is missing, or if the path contains a link.
    Raises OSError."""
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


def make_folder(folder: Path, top: Path) -> int:
    """Return a descriptor of `folder` below the folder `top`, and make the folders that are missing. What a program has
    put in the place of a folder, such as a link, is removed. Raises OSError."""
    at = os.open(top, FOLDER)
    try:
        for part in folder.relative_to(top).parts:
            with suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=at)
            try:
                inner = os.open(part, FOLDER, dir_fd=at)
            except OSError as problem:
                if problem.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                os.unlink(part, dir_fd=at)
                os.mkdir(part, 0o700, dir_fd=at)
                inner = os.open(part, FOLDER, dir_fd=at)
            os.close(at)
            at = inner
        return os.dup(at)
    finally:
        os.close(at)


def open_folder(folder: Path, top: Path) -> int | None:
    """Return a descriptor of `folder` below the folder `top`; None if one of the two is missing, or if the path between
    them contains a link. Raises OSError."""
    try:
        above = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return open_below(above, str(folder.relative_to(top)), FOLDER)
    finally:
        os.close(above)


def regular_files(
    top: int, left_out: Collection[str] = (), locked: list[str] | None = None
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the relative name and the status of each regular file below the open folder `top`, in any order. No link is
    followed, and folders with a name in `left_out` are not searched. The names of folders that this process may not
    read are appended to `locked`. Without `locked`, and for other failures, raises OSError."""
    waiting = [""]
    while waiting:  # a loop: folders may be nested more deeply than Python allows calls
        base = waiting.pop()
        try:
            folder = open_below(top, base or ".", FOLDER)
        except PermissionError:
            if locked is None:
                raise
            locked.append(base)
            continue
        if folder is None:
            continue
        try:
            for name in os.listdir(folder):
                relative = f"{base}/{name}" if base else name
                try:
                    found = os.lstat(name, dir_fd=folder)
                except FileNotFoundError:
                    continue
                except PermissionError:  # the folder may be listed, but not searched
                    if locked is None:
                        raise
                    locked.append(base)
                    break
                if stat.S_ISDIR(found.st_mode):
                    waiting += [] if name in left_out else [relative]
                elif stat.S_ISREG(found.st_mode):
                    yield relative, found
        finally:
            os.close(folder)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def full_disk(path: Path) -> str | None:
    """Return a sentence if the file system of `path` is too full even for small files, else None."""
    try:
        if shutil.disk_usage(path).free >= _ROOM:
            return None
    except OSError:
        return None
    return f"the disk of {path} is full; the end of jobs is recorded when space is free again"


def remove_tree(folder: Path) -> None:
    """Remove a folder with its content; if a program has replaced the folder by a link, remove the link.

    Links inside are not followed. Permissions that a program took away are restored where needed. Raises OSError when
    something cannot be removed; a missing folder is not an error.
    """
    def retry(remove: Callable[..., Any], path: str, _why: object) -> None:
        if not os.path.lexists(path):
            return
        for locked in (os.path.dirname(path), path):
            if not os.path.islink(locked):
                os.chmod(locked, stat.S_IRWXU)
        if remove in (os.unlink, os.rmdir):
            remove(path)
        else:
            shutil.rmtree(path)

    if folder.is_symlink():
        folder.unlink()
        return
    try:
        shutil.rmtree(folder, onerror=retry)
    except (RecursionError, OSError):
        # The cause may be nesting that is too deep for recursion, descriptors or path length.
        if not _flatten(folder):
            raise
        shutil.rmtree(folder, onerror=retry)


def _flatten(folder: Path) -> bool:
    """Move all folders that are nested too deeply up to the top, repeatedly. Return whether any folder was moved."""
    any_moved, moved = False, True
    while moved:
        moved = False
        for base, names, _ in os.walk(folder):
            if len(Path(base).relative_to(folder).parts) < _DEPTH:
                continue
            for name in names:
                os.rename(os.path.join(base, name), folder / secrets.token_hex(8))
                any_moved = moved = True
            names.clear()
    return any_moved
