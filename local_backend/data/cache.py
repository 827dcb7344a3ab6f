"""Files that were fetched, shared between jobs: one folder for each content, whole or on its way.

    salt                    makes names of entries say nothing about what they are of
    KEY.lock                held by who fetches, checks or removes the entry; it goes with the entry
    KEY/manifest.json       the files; an entry without it is not whole
    KEY/files/...           the files, readable and not writable
    KEY/arriving/N  KEY/journal   what is on its way; KEY/wanted says how many bytes it is going to have
    KEY/uses/N              a link to the folder of a job that has links to these files: as long as that folder is
                            there, the entry stays
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from local_backend import files
from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.kinds.base import Entry
from local_backend.data.model import Meter
from local_backend.data.parts import Whole
from local_backend.data.pause import pause

_MANIFEST = "manifest.json"
_FILES, _ARRIVING, _JOURNAL, _USES, _WANTED = "files", "arriving", "journal", "uses", "wanted"
_ROOM_LOCK = ".room.lock"
_LOCK = ".lock"
#: What entries are called. Whatever else lies in the folder belongs to somebody else.
_ENTRY = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Manifest:
    """What an entry has. It was put down, or its checksums were last compared, while the machine was on `boot`."""

    boot: str
    files: tuple[Whole, ...]

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(file.size for file in self.files)


class CacheEntry:
    """One content. Only who holds its lock may change it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files, self.arriving = folder / _FILES, folder / _ARRIVING
        self.journal, self._uses = folder / _JOURNAL, folder / _USES

    @property
    def lock_path(self) -> Path:
        """What is locked, beside the folder."""
        return self.folder.with_name(self.folder.name + _LOCK)

    def manifest(self) -> Manifest | None:
        """None when it is not whole. Raises OSError."""
        found = files.read_json(self.folder / _MANIFEST)
        try:
            return None if found is None else Manifest(found["boot"], tuple(Whole(**one) for one in found["files"]))
        except (KeyError, TypeError):
            return None

    def complete(self, manifest: Manifest) -> None:
        """All its files are in their place: from now on it is whole."""
        # To wait for the disk would be to wait for all the data. Should the machine go down before it is there, the
        # checksums tell.
        files.write_json(self.folder / _MANIFEST, asdict(manifest), durable=False)
        self.journal.unlink(missing_ok=True)
        shutil.rmtree(self.arriving, ignore_errors=True)

    def altered(self, manifest: Manifest) -> list[Whole]:
        """Files that are not as they were put down, by size and times."""
        return [one for one in manifest.files if not _is_as_put_down(self.files / one.path, one)]

    def use(self, folder: Path) -> None:
        """`folder` is going to have links to the files. It is there already."""
        self._uses.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
        with contextlib.suppress(FileExistsError):
            os.symlink(folder, self._uses / name)

    def used(self) -> bool:
        """Whether a job has links to it, or waits for it."""
        with contextlib.suppress(FileNotFoundError):
            return any(os.path.isdir(link.path) for link in os.scandir(self._uses))
        return False

    def touch(self) -> None:
        """It was used now."""
        with contextlib.suppress(OSError):
            os.utime(self.folder)

    def expect(self, size: int) -> None:
        """It is going to have so many bytes, which are not for others from now on."""
        self.folder.mkdir(exist_ok=True)
        files.write_json(self.folder / _WANTED, size, durable=False)

    def size(self) -> int:
        """Bytes that it takes, or will take when it is whole."""
        manifest = self.manifest()
        if manifest is not None:
            return manifest.size
        wanted = files.read_json(self.folder / _WANTED)
        return max(wanted if isinstance(wanted, int) else 0, self.arrived())

    def arrived(self) -> int:
        """Bytes that its files take on the disk now."""
        return _bytes_below(self.files) + _bytes_below(self.arriving)

    def discard(self) -> None:
        """Remove it, the manifest first: half an entry is none."""
        (self.folder / _MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


class Cache:
    """The folder of all entries, of at most `limit` bytes."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def entry(self, kind: str, values: Mapping[str, str], found: Sequence[Entry], alone: str) -> CacheEntry:
        """The entry for these files as that connection has them. Who comes with other credentials has another one: what
        one may read need not be for all. `alone` tells apart those who may not share files without a version."""
        shared = all(entry.version for entry in found)
        parts = [[entry.path, entry.key, entry.size, entry.version] for entry in found]
        text = json.dumps([kind, sorted(values.items()), parts, None if shared else alone])
        key = hmac.new(self._salt(), text.encode(), hashlib.sha256).hexdigest()[:40]
        return CacheEntry(self.folder / key)

    @contextlib.contextmanager
    def locked(self, entry: CacheEntry, meter: Meter) -> Iterator[None]:
        """Wait for whoever has the entry, and have it. Raises Cancelled."""
        fd = self._try(entry)
        while fd is None:
            meter.say("waiting for another job that fetches the same")
            pause(meter)
            fd = self._try(entry)
        try:
            yield
        finally:
            os.close(fd)

    def make_room(self, wanted: int, entry: CacheEntry) -> None:
        """See that `entry` can have `wanted` bytes in all: those that were not used for the longest time go.

        Raises DataError (more than the cache may ever hold, or than the disk has), DataUnavailable (what running jobs
        use leaves too little room).
        """
        if wanted > self.limit:
            raise DataError(f"the data has {wanted:,} bytes and the cache may hold {self.limit:,}; raise cache_bytes")
        with self._alone():
            free = shutil.disk_usage(self.folder).free
            missing = wanted - entry.arrived() - free
            held = self._evict(wanted, missing, entry)
            if held + wanted <= self.limit:
                entry.expect(wanted)
        if held + wanted > self.limit:
            raise DataUnavailable(f"the cache is full of what running jobs use: {held:,} of {self.limit:,} bytes, and "
                                  f"{wanted:,} more are needed")
        if wanted - entry.arrived() > shutil.disk_usage(self.folder).free:
            raise DataError(full_disk(self.folder))

    def sweep(self) -> None:
        """Remove what nobody fetches any more, and what is too much."""
        with self._alone():
            self._evict(0, 0, None)

    def _evict(self, wanted: int, missing: int, keep: CacheEntry | None) -> int:
        """Remove entries: those on their way that nobody waits for, then the least recently used, until `wanted` bytes
        fit and the disk has `missing` more. The bytes that others hold then."""
        others = [one for one in self._entries() if keep is None or one.folder != keep.folder]
        sizes = {one.folder: one.size() for one in others}
        held = sum(sizes.values())
        for one in sorted(others, key=lambda one: (one.manifest() is not None, _time(one.folder))):
            if (one.manifest() is None or held + wanted > self.limit or missing > 0) and self._remove(one):
                held, missing = held - sizes[one.folder], missing - sizes[one.folder]
        return held

    def _remove(self, entry: CacheEntry) -> bool:
        """Whether it could be: nobody uses it nor has it locked."""
        fd = self._try(entry)
        if fd is None:
            return False
        try:
            if entry.used():
                return False
            entry.discard()
            entry.lock_path.unlink(missing_ok=True)
            return True
        finally:
            os.close(fd)

    def _entries(self) -> list[CacheEntry]:
        with os.scandir(self.folder) as found:
            return [CacheEntry(Path(one.path)) for one in found
                    if _ENTRY.fullmatch(one.name) and one.is_dir(follow_symlinks=False)]

    def _try(self, entry: CacheEntry) -> int | None:
        """The descriptor that holds the lock of an entry, None when somebody else has it."""
        while True:
            fd = os.open(entry.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            # Whoever removed the entry removed this file, and another may have made it anew.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(entry.lock_path)):
                    return fd
            os.close(fd)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One at a time decides what goes."""
        fd = os.open(self.folder / _ROOM_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _salt(self) -> bytes:
        path = self.folder / "salt"
        while True:
            with contextlib.suppress(FileNotFoundError):
                if found := path.read_bytes():
                    return found
            new = path.with_name(f".salt.{secrets.token_hex(4)}")
            files.write_atomic(new, secrets.token_bytes(32))
            with contextlib.suppress(FileExistsError):
                os.link(new, path)
            new.unlink()


def full_disk(folder: Path) -> str:
    """The sentence for who has no room to write there."""
    return f"the disk of the cache {folder} is full ({shutil.disk_usage(folder).free:,} bytes free)"


def is_full(problem: OSError) -> bool:
    """Whether it says that there is no room."""
    return problem.errno in (errno.ENOSPC, errno.EDQUOT)


def _is_as_put_down(path: Path, one: Whole) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return (found.st_size, found.st_mtime_ns, found.st_ctime_ns) == (one.size, one.mtime_ns, one.ctime_ns)


def _time(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _bytes_below(folder: Path) -> int:
    """What the files below take on the disk, which may be less than their lengths while they have holes."""
    found: Any = (os.path.join(top, name) for top, _, names in os.walk(folder) for name in names)
    total = 0
    for path in found:
        with contextlib.suppress(OSError):
            total += os.lstat(path).st_blocks * 512
    return total
