"""Fetched files, shared between jobs: one folder for each content, complete or incomplete.

    salt                    keeps names of entries from revealing their content
    KEY.lock                held by the process that fetches, checks or removes the entry; removed with the entry
    KEY/manifest.json       the files; an entry without a manifest is incomplete
    KEY/files/...           the files, readable and not writable
    KEY/arriving/N  KEY/journal   parts that have arrived; KEY/wanted has the expected size in bytes
    KEY/uses/N              a link to the folder of a job that has links to these files: as long as that folder exists,
                            the entry stays
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
from local_backend.data.kind import SourceFile
from local_backend.data.progress import FetchMeter, pause
from local_backend.data.transfer import WholeFile

_MANIFEST = "manifest.json"
_FILES, _ARRIVING, _JOURNAL, _USES, _WANTED = "files", "arriving", "journal", "uses", "wanted"
_ROOM_LOCK = ".room.lock"
_LOCK = ".lock"
#: SourceNames of entries. Any other item in the folder belongs to another program.
_ENTRY = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class CacheManifest:
    """The files of an entry. During `boot` of the machine they were put in place or their checksums last compared."""

    boot: str
    files: tuple[WholeFile, ...]

    @property
    def size(self) -> int:
        """Total bytes."""
        return sum(file.size for file in self.files)


class CacheEntry:
    """One content. Only the process that holds its lock may change it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files, self.arriving = folder / _FILES, folder / _ARRIVING
        self.journal, self._uses = folder / _JOURNAL, folder / _USES

    @property
    def lock_path(self) -> Path:
        """The lock file, beside the folder."""
        return self.folder.with_name(self.folder.name + _LOCK)

    def manifest(self) -> CacheManifest | None:
        """Return the manifest; None if the entry is incomplete. Raises OSError."""
        found = files.read_json(self.folder / _MANIFEST)
        try:
            if found is None:
                return None
            return CacheManifest(found["boot"], tuple(WholeFile(**one) for one in found["files"]))
        except (KeyError, TypeError):
            return None

    def complete(self, manifest: CacheManifest) -> None:
        """Mark the entry as complete: all its files are in their place."""
        # A durable write would wait until all data is on the disk. If the machine crashes before that, the checksums
        # show it.
        files.write_json(self.folder / _MANIFEST, asdict(manifest), durable=False)
        self.journal.unlink(missing_ok=True)
        shutil.rmtree(self.arriving, ignore_errors=True)

    def altered(self, manifest: CacheManifest) -> list[WholeFile]:
        """Return the files whose size or times differ from those in the manifest."""
        return [one for one in manifest.files if not _is_as_put_down(self.files / one.path, one)]

    def use(self, folder: Path) -> None:
        """Record that `folder` will have links to the files. `folder` must exist."""
        self._uses.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
        with contextlib.suppress(FileExistsError):
            os.symlink(folder, self._uses / name)

    def used(self) -> bool:
        """Return whether a job has links to the entry or waits for it."""
        with contextlib.suppress(FileNotFoundError):
            return any(os.path.isdir(link.path) for link in os.scandir(self._uses))
        return False

    def touch(self) -> None:
        """Record that the entry is used now."""
        with contextlib.suppress(OSError):
            os.utime(self.folder)

    def expect(self, size: int) -> None:
        """Reserve `size` bytes in all for the entry; other entries cannot use them from now on."""
        self.folder.mkdir(exist_ok=True)
        files.write_json(self.folder / _WANTED, size, durable=False)

    def size(self) -> int:
        """Return the bytes that the entry takes, or will take when it is complete."""
        manifest = self.manifest()
        if manifest is not None:
            return manifest.size
        wanted = files.read_json(self.folder / _WANTED)
        return max(wanted if isinstance(wanted, int) else 0, self.arrived())

    def arrived(self) -> int:
        """Return the bytes that the entry's files take on the disk now."""
        return _bytes_below(self.files) + _bytes_below(self.arriving)

    def discard(self) -> None:
        """Remove the entry, the manifest first: a partly removed entry must not count as complete."""
        (self.folder / _MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


class Cache:
    """The folder of all entries, with at most `limit` bytes."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def entry(self, kind: str, values: Mapping[str, str], found: Sequence[SourceFile], alone: str) -> CacheEntry:
        """Return the entry for these files of a connection. Other credentials have another entry: a file that one user
        may read is not always for all users. `alone` separates jobs that may not share files without a version."""
        shared = all(entry.version for entry in found)
        parts = [[entry.path, entry.key, entry.size, entry.version] for entry in found]
        text = json.dumps([kind, sorted(values.items()), parts, None if shared else alone])
        key = hmac.new(self._salt(), text.encode(), hashlib.sha256).hexdigest()[:40]
        return CacheEntry(self.folder / key)

    @contextlib.contextmanager
    def locked(self, entry: CacheEntry, meter: FetchMeter) -> Iterator[None]:
        """Hold the lock of an entry; wait while another process has it. Raises Cancelled."""
        fd = self._try(entry)
        while fd is None:
            meter.say("waiting for another job that fetches the same data")
            pause(meter)
            fd = self._try(entry)
        try:
            yield
        finally:
            os.close(fd)

    def make_room(self, wanted: int, entry: CacheEntry) -> None:
        """Make room for `entry` to have `wanted` bytes in all; remove the least recently used entries.

        Raises DataError if the cache limit or the disk allows fewer bytes. Raises DataUnavailable if the entries that
        running jobs use leave too little room.
        """
        if wanted > self.limit:
            raise DataError(f"the data has {wanted:,} bytes, but the cache limit is {self.limit:,}; raise cache_bytes")
        with self._alone():
            free = shutil.disk_usage(self.folder).free
            missing = wanted - entry.arrived() - free
            held = self._evict(wanted, missing, entry)
            if held + wanted <= self.limit:
                entry.expect(wanted)
        if held + wanted > self.limit:
            raise DataUnavailable(f"the cache is full: running jobs use {held:,} of {self.limit:,} bytes, and "
                                  f"{wanted:,} more are needed")
        if wanted - entry.arrived() > shutil.disk_usage(self.folder).free:
            raise DataError(full_disk(self.folder))

    def sweep(self) -> None:
        """Remove incomplete entries that no job waits for, and unused entries above the limit."""
        with self._alone():
            self._evict(0, 0, None)

    def _evict(self, wanted: int, missing: int, keep: CacheEntry | None) -> int:
        """Remove incomplete entries that no job waits for. Then remove the least recently used entries until `wanted`
        bytes fit and the disk has `missing` more. Return the bytes that the remaining other entries hold."""
        others = [one for one in self._entries() if keep is None or one.folder != keep.folder]
        sizes = {one.folder: one.size() for one in others}
        held = sum(sizes.values())
        for one in sorted(others, key=lambda one: (one.manifest() is not None, _time(one.folder))):
            if (one.manifest() is None or held + wanted > self.limit or missing > 0) and self._remove(one):
                held, missing = held - sizes[one.folder], missing - sizes[one.folder]
        return held

    def _remove(self, entry: CacheEntry) -> bool:
        """Remove an entry unless a job uses it or a process has it locked. Return whether it was removed."""
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
        """Return the descriptor that holds the lock of an entry; None if another process has the lock."""
        while True:
            fd = os.open(entry.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            # A process that removes the entry also removes this file, and another process may have made a new one.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(entry.lock_path)):
                    return fd
            os.close(fd)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Let only one process at a time decide which entries to remove."""
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
    """Return the message for a full disk."""
    return f"the disk of the cache {folder} is full ({shutil.disk_usage(folder).free:,} bytes free)"


def is_full(problem: OSError) -> bool:
    """Return whether the error means that the disk or the quota is full."""
    return problem.errno in (errno.ENOSPC, errno.EDQUOT)


def _is_as_put_down(path: Path, one: WholeFile) -> bool:
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
    """Return the disk space of all files below; it may be less than their lengths while they have holes."""
    found: Any = (os.path.join(top, name) for top, _, names in os.walk(folder) for name in names)
    total = 0
    for path in found:
        with contextlib.suppress(OSError):
            total += os.lstat(path).st_blocks * 512
    return total
