"""Files of a server as a folder of a job: fetched into the cache unless they are there, and linked into the folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from local_backend.boot import boot_id
from local_backend.data.cache import Cache, CacheEntry, CacheManifest, full_disk, is_full
from local_backend.data.errors import DataChanged, DataError
from local_backend.data.kind import FileFamily, SourceFile
from local_backend.data.listing import distinct_files
from local_backend.data.progress import Cancelled, Delivered, FetchMeter
from local_backend.data.transfer import ArrivingFile, Journal, Transfer, WholeFile

#: Attempts to read files that change meanwhile. After these, a program must still be writing to them.
_TIMES = 3
_READ = 1 << 20


def download(
    family: FileFamily, location: Mapping[str, Any], folder: Path, cache: Cache, meter: FetchMeter
) -> Delivered:
    """Bring the files that a location names into `folder`, as links to read-only files of the cache. The job may put
    other files beside them.

    A call after a failure, or after the end of this process, continues where the download stopped. A file that changes
    while it is read is fetched anew, never mixed. Raises DataError, DataUnavailable (call again later), Cancelled
    (`folder` is removed then).
    """
    folder = Path(os.path.abspath(folder))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for left in range(_TIMES - 1, -1, -1):
            try:
                return _once(family, location, folder, cache, meter)
            except DataChanged:
                if not left:
                    raise
                meter.say("a file changed while it was read; starting again")
    except OSError as problem:
        raise DataError(full_disk(cache.folder) if is_full(problem) else
                        f"cannot write {problem.filename or cache.folder}: {problem.strerror}") from None
    except Cancelled:
        release(folder, cache)
        raise
    raise AssertionError("unreachable")


def release(folder: Path, cache: Cache) -> None:
    """Remove `folder` when its job is over, and remove cache entries that no job needs."""
    shutil.rmtree(folder, ignore_errors=True)
    cache.sweep()


def _once(family: FileFamily, location: Mapping[str, Any], folder: Path, cache: Cache, meter: FetchMeter) -> Delivered:
    meter.say("listing")
    found = distinct_files(_watched(family.files(location), meter))
    sizes = [entry.size for entry in found if entry.size is not None]
    meter.expect(sum(sizes) if len(sizes) == len(found) else None, len(found))
    entry = cache.entry(family.kind.name, family.values, found, alone=str(folder))
    entry.use(folder)
    with cache.locked(entry, meter):
        entry.use(folder)
        try:
            manifest = _present(entry, meter) or _fetched(family, found, cache, entry, meter)
        except DataChanged:
            entry.discard()
            raise
        except OSError as problem:
            # Parts that fill a disk block the downloads of all other jobs.
            if is_full(problem):
                entry.discard()
            raise
        entry.touch()
        _link(entry, manifest, folder)
    return Delivered(folder, len(found), manifest.size, _version(found))


def _watched(entries: Any, meter: FetchMeter) -> Any:
    for entry in entries:
        meter.check()
        yield entry


def _present(entry: CacheEntry, meter: FetchMeter) -> CacheManifest | None:
    """Return the manifest if the entry is complete and unaltered, else None.

    Data that was written before the machine crashed may not be on the disk. So the checksums are compared once after a
    boot.
    """
    manifest = entry.manifest()
    if manifest is None or entry.altered(manifest):
        return None
    if manifest.boot != boot_id():
        meter.say("comparing checksums")
        for file in manifest.files:
            if _sha256(entry.files / file.path, meter) != file.sha256:
                return None
        manifest = CacheManifest(boot_id(), manifest.files)
        entry.complete(manifest)
    meter.resume(manifest.size, len(manifest.files))
    return manifest


def _fetched(
    family: FileFamily, found: Sequence[SourceFile], cache: Cache, entry: CacheEntry, meter: FetchMeter
) -> CacheManifest:
    cache.make_room(sum(one.size or 0 for one in found), entry)
    meter.say("fetching")
    old = entry.manifest()
    entry.arriving.mkdir(parents=True, exist_ok=True)
    files = [ArrivingFile(number, one, entry.arriving / str(number), entry.files / one.path)
             for number, one in enumerate(found)]
    journal = Journal(entry.journal, {"boot": boot_id(), "entry": entry.folder.name})
    whole = _already(entry, files, journal, old)
    journal.start()
    meter.resume(sum(one.size for one in whole.values()) + sum(file.arrived for file in files), len(whole))
    with contextlib.closing(journal):
        fetch = Transfer(family, [file for file in files if file.number not in whole], journal, meter)
        fetch.run()
    whole |= fetch.whole
    manifest = CacheManifest(boot_id(), tuple(whole[number] for number in range(len(found))))
    if any(one.size is None for one in found):
        cache.make_room(manifest.size, entry)
    entry.complete(manifest)
    return manifest


def _already(
    entry: CacheEntry, files: Sequence[ArrivingFile], journal: Journal, old: CacheManifest | None
) -> dict[int, WholeFile]:
    """Return the files that need no fetch: those of an earlier attempt, and unaltered ones of the entry."""
    whole = journal.read(files)
    if old is not None and old.boot == boot_id():
        whole = dict(enumerate(old.files)) | whole
    altered = set(entry.altered(CacheManifest("", tuple(whole.values()))))
    return {number: one for number, one in whole.items() if one not in altered}


def _link(entry: CacheEntry, manifest: CacheManifest, folder: Path) -> None:
    """Create the links. Remove links to files that the source had at an earlier start of the job."""
    links = {str(folder / file.path): str(entry.files / file.path) for file in manifest.files}
    for top, _, names in os.walk(folder):
        for path in (os.path.join(top, name) for name in names):
            into_cache = os.path.islink(path) and Path(os.readlink(path)).is_relative_to(entry.folder.parent)
            if into_cache and path not in links:
                os.unlink(path)
    for path, target in links.items():
        # A job that runs again may have replaced the link by a file of its own.
        if not os.path.islink(path) or os.readlink(path) != target:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            Path(path).unlink(missing_ok=True)
            os.symlink(target, path)


def _version(found: Sequence[SourceFile]) -> str:
    """Return the version of a single file, or one version for several files; empty if the server reports none."""
    if not all(entry.version for entry in found):
        return ""
    if len(found) == 1:
        return found[0].version
    text = "\n".join(f"{entry.path}\t{entry.size}\t{entry.version}" for entry in found)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _sha256(path: Path, meter: FetchMeter) -> str:
    found = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_READ):
            found.update(piece)
            meter.check()
    return found.hexdigest()
