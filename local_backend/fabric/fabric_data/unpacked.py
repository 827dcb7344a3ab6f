"""Tables in the form that training reads: each column is a file that is mapped into memory.

Parquet is made for reading many rows at once, but training reads rows in random order. So the wanted columns are
written once, as plain arrays, into a folder that all processes of the machine share and that later runs find again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fabric_data.errors import DataProblem
from fabric_data.places import Remote

FOLDER_VARIABLE, BYTES_VARIABLE = "FABRIC_DATA_CACHE", "FABRIC_DATA_CACHE_BYTES"
#: Bytes that may stay for later runs, unless the environment sets another limit.
MOST_BYTES = 50 * 2**30
_DONE = "done"
#: Seconds after its last use in which an entry is not removed: its files may not be open yet.
_YOUNG = 600.0


def folder() -> Path:
    """Return the folder for unpacked tables."""
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "fabric_data"


def key_of(files: Sequence[Path | Remote], wanted: object) -> str:
    """Return a key of files, by size and time of change. `wanted` says which part is unpacked, and as what."""
    seen = [
        file.identity() if isinstance(file, Remote)
        else [str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files
    ]
    return hashlib.sha256(json.dumps([seen, wanted], sort_keys=True).encode()).hexdigest()[:32]


def entry(key: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder of this key. If it does not exist, `fill` fills it: once, while other processes wait.

    Raises DataProblem if the folder cannot be stored, and the errors of `fill`. In both cases no files remain.
    """
    root = folder()
    found = root / key
    if not _use(found):
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _alone(root / f"{key}.lock"):
                if not _use(found):
                    _make(root, found, fill)
                    _trim(root, keep=found)
        except OSError as problem:
            raise DataProblem(f"the table cannot be unpacked to {root}: {problem.strerror or problem}; "
                              f"set {FOLDER_VARIABLE} to another folder") from None
    return found


def _use(found: Path) -> bool:
    """Return whether an entry is complete, and record its use, as the time of change of its last file."""
    try:
        os.utime(found / _DONE)
    except OSError:
        return False
    return True


def _make(root: Path, found: Path, fill: Callable[[Path], None]) -> None:
    for leftover in (found, *root.glob(f"{found.name}.part-*")):
        shutil.rmtree(leftover, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=f"{found.name}.part-", dir=root))
    try:
        fill(part)
        (part / _DONE).touch()
        part.rename(found)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _trim(root: Path, keep: Path) -> None:
    """Remove the entries used longest ago until the rest fits. A process can still use an entry that it has open."""
    given = os.environ.get(BYTES_VARIABLE, "")
    room = int(given) if given.isascii() and given.isdigit() else MOST_BYTES
    used = sorted(filter(None, map(_used, root.glob(f"*/{_DONE}"))), reverse=True)
    for at, path, size in used:
        room -= size
        if room < 0 and path != keep and time.time() - at > _YOUNG:
            shutil.rmtree(path, ignore_errors=True)


def _used(done: Path) -> tuple[float, Path, int] | None:
    """Return (time of the last use, entry, bytes), None for an entry that another process is removing."""
    try:
        return done.stat().st_mtime, done.parent, sum(file.stat().st_size for file in done.parent.iterdir())
    except OSError:
        return None
