"""Location of the caches of shared storage: beside the folders that jobs see, never inside them.

Machines share this storage, users do not. Data that came through the connection of one user must not reach every user
who gets the storage as data. So no data source may lead into a cache.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

from local_backend.data.errors import DataError

#: Suffix of the names of cache folders, on all disks.
_ENDING = ".dlicmd-cache"


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
