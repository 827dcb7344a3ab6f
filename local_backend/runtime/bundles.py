"""Code bundles: submitted code, stored once by its content, for any number of workloads.

A bundle is the folder `bundles/<digest>/`. It never changes. Each workload runs in a working copy of its own, because
programs write into their folder. The database is the only authority on use: a bundle may be removed when no row names
it. Rows and bundles are compared on the writer thread of the database, where no row can appear in between.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import Connection

from local_backend.runtime.paths import HomePaths
from local_backend.store import execs
from local_backend.store.database import Database

_CHUNK, _LARGEST_RANGE = 1 << 20, 1 << 30
#: More files and folders than this are flushed all at once.
_MANY = 128
#: Errors of the rename when another submission has stored the same code.
_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY})


class BundleLost(Exception):
    """The bundle is missing, or its content has changed."""


def digest(folder: Path) -> str:
    """Return the SHA-256, in hexadecimal digits, over the names, modes and bytes of everything below a folder. Raises
    OSError, and BundleLost for anything but files and folders."""
    found = hashlib.sha256()
    for name, mode in entries(folder):
        # Names contain no NUL. The length of a file separates its bytes from the next name.
        if mode is None:
            found.update(b"%s\0folder\0" % os.fsencode(name))
            continue
        with _opened(folder / name) as file:
            size = os.fstat(file.fileno()).st_size
            found.update(b"%s\0%o\0%d\0" % (os.fsencode(name), mode, size))
            while piece := file.read(_CHUNK):
                found.update(piece)
    return found.hexdigest()


def keep(home: HomePaths, code: Path) -> str:
    """Store the code in a folder, unless it is stored already, and return its digest. The bundle is not forced to the
    disk: an exec has a copy that is, and after a power failure the digest shows whether the bundle is complete. Raises
    OSError and BundleLost."""
    name = digest(code)
    target = home.bundle(name)
    if _is_intact(target):
        return name
    made = _temporary(home, name)
    try:
        made.mkdir(mode=0o700)
        _copy(code, made)
        if target.is_dir():
            shutil.rmtree(_retired(home, name), ignore_errors=True)
        os.rename(made, target)
    except BaseException as problem:
        shutil.rmtree(made, ignore_errors=True)
        if isinstance(problem, OSError) and problem.errno in _TAKEN:
            return name
        raise
    return name


def keep_durably(home: HomePaths, code: Path) -> str:
    """Store the code as `keep` does, and force the bundle to the disk: no exec has a durable copy of it. Raises OSError
    and BundleLost."""
    while True:
        name = keep(home, code)
        top = home.bundle(name)
        try:
            make_durable([home.bundles, top, *(top / inside for inside, _ in entries(top))])
            return name
        except FileNotFoundError:  # the last exec that named it was deleted meanwhile
            continue


def copy(home: HomePaths, name: str, target: Path) -> None:
    """Make a working copy of a bundle in the existing, empty folder `target`. The copy is durable when this returns.
    Raises OSError. Raises BundleLost if the copy does not have the digest of the bundle."""
    try:
        made = _copy(home.bundle(name), target)
    except FileNotFoundError as problem:
        raise BundleLost from problem
    if digest(target) != name:
        raise BundleLost
    make_durable(made)


def drop(home: HomePaths, database: Database, names: Collection[str]) -> None:
    """Remove those of these bundles that no row names. Raises OSError and the errors of the database. Files that
    cannot be removed stay until the next server starts."""

    def retire(connection: Connection) -> list[Path]:
        named = execs.bundles(connection, names)
        retired = [_retired(home, name) for name in names if name not in named and home.bundle(name).is_dir()]
        for folder in retired:
            # In this transaction: no new row may name a bundle of which a part is removed.
            if folder.name in names:
                shutil.rmtree(folder, ignore_errors=True)
        return [folder for folder in retired if folder.name not in names]

    for folder in database.write(retire) if names else ():
        shutil.rmtree(folder, ignore_errors=True)


def sweep(home: HomePaths, named: Collection[str]) -> None:
    """Remove everything except the bundles `named`: an interrupted server left the rest. Only for a server that
    starts. Raises OSError."""
    for left in sorted(set(os.listdir(home.bundles)) - set(named)):
        shutil.rmtree(home.bundles / left, ignore_errors=True)


def _retired(home: HomePaths, name: str) -> Path:
    """Take a bundle out of use, and return its new path. If the disk refuses a new name, it keeps its path."""
    away = _temporary(home, name)
    try:
        os.rename(home.bundle(name), away)
    except OSError:
        return home.bundle(name)
    return away


def _temporary(home: HomePaths, name: str) -> Path:
    return home.bundles / f".{name}.{secrets.token_hex(4)}.tmp"


def entries(top: Path) -> Iterator[tuple[str, int | None]]:
    """Yield the name relative to `top` and the permission bits of each file, and the name and None of each folder.
    Names are in order, and a folder comes before its content. Raises OSError, and BundleLost for anything else."""
    folders = [""]
    while folders:
        inside = folders.pop()
        with os.scandir(top / inside) as found:
            entries = sorted(found, key=lambda entry: os.fsencode(entry.name), reverse=True)
        for entry in reversed(entries):
            if entry.is_file(follow_symlinks=False):
                yield inside + entry.name, entry.stat(follow_symlinks=False).st_mode & 0o777
            elif entry.is_dir(follow_symlinks=False):
                yield inside + entry.name, None
            else:
                raise BundleLost
        folders += [f"{inside}{entry.name}/" for entry in entries if entry.is_dir(follow_symlinks=False)]


def _opened(path: Path) -> BinaryIO:
    return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _is_intact(bundle: Path) -> bool:
    """Return whether a bundle exists, and still has the content that its name states."""
    try:
        return digest(bundle) == bundle.name
    except (OSError, BundleLost):
        return False


def _copy(source: Path, target: Path) -> list[Path]:
    """Copy everything below a folder into an empty folder. Return that folder, and the copied files and folders.
    Raises OSError and BundleLost."""
    made = [target]
    for name, mode in entries(source):
        path = target / name
        made.append(path)
        if mode is None:
            path.mkdir(mode=0o700)
            continue
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as written, _opened(source / name) as read:
            _transfer(read, written)
            os.fchmod(fd, mode)
    return made


def make_durable(made: list[Path]) -> None:
    """Force files and folders to the disk. Raises OSError."""
    if sys.platform == "linux" and len(made) > _MANY:
        os.sync()  # cheaper than one flush per file
        return
    for path in made:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _transfer(read: BinaryIO, written: BinaryIO) -> None:
    """Copy the content of a file. File systems with shared blocks (XFS, Btrfs) then store it once."""
    try:
        while os.copy_file_range(read.fileno(), written.fileno(), _LARGEST_RANGE):
            pass
    except (AttributeError, OSError):  # macOS lacks the call; it may refuse two file systems
        shutil.copyfileobj(read, written, _CHUNK)
