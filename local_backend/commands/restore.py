"""Replaces the state of a home by a backup (see backup.py).

The authentication tag of the file is verified before anything is written. Then the file is unpacked and checked beside
the state of the home, the old state is moved away, and the new state is moved in. If a restore is interrupted during
the move, it leaves a note. No server starts while the note exists; the restore must be run again.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
import stat
import tarfile
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, BinaryIO, cast

from local_backend.commands.backup import (
    BUNDLES,
    DATABASE,
    FORMAT,
    JOBS,
    MANIFEST,
    TREES,
    UNTAGGED,
    BackupManifest,
    sha256,
)
from local_backend.commands.backup_tag import Advance, BackupError, Hashed, Tag, keys, read_tag
from local_backend.files import remove_tree, sync_directory, write_atomic
from local_backend.runtime import launcher_log
from local_backend.runtime.launch import try_lock
from local_backend.runtime.paths import HomePaths
from local_backend.serving.server import ServingError, locked, make_home
from local_backend.settings import Settings
from local_backend.store import execs
from local_backend.store.migrations.upgrade import VERSIONS
from local_backend.store.schema import events, tokens

_STAGE = ".restore-"
#: The first bytes of an SQLite file.
_SQLITE = b"SQLite format 3\0"
_MANIFEST_LARGEST = 1 << 16
_PIECE = 1 << 20


@dataclass(frozen=True)
class Restored:
    """The result of a restore."""

    #: None after the restore of a database alone.
    manifest: BackupManifest | None
    #: Folder with the earlier state of the home, None if there was none.
    kept: Path | None


@dataclass(frozen=True)
class BackupSource:
    """The file of a backup, and how to verify it. `key` is its key file, None for the key of the home. `untagged`
    accepts a backup of an earlier version, which has no tag. `advance` is called with the number of bytes read."""

    file: Path
    key: Path | None = None
    untagged: bool = False
    advance: Advance | None = None


def restore(settings: Settings, given: BackupSource, force: bool) -> Restored:
    """Put a backup into the home. Raises BackupError. The home is then unchanged, or absent if it was absent before,
    except when the message says that it is incomplete."""
    if settings.database is not None:
        raise BackupError("backup.refused", "the database is a PostgreSQL database: restore it with pg_restore, and "
                          "restore the home from its copy")
    try:
        with open(given.file, "rb") as opened:
            if opened.read(len(_SQLITE)) == _SQLITE:
                return _restore_database(settings, given, force)
            verified = _Verified(settings, given, opened)
            return _into_home(settings, verified, force)
    except OSError as problem:
        raise BackupError("backup.failed", f"cannot read {given.file}: {problem.strerror}") from None


class _Verified:
    """An open backup whose tag is right. Raises BackupError and OSError."""

    def __init__(self, settings: Settings, given: BackupSource, opened: BinaryIO) -> None:
        self.file, self._opened, self._advance = given.file, opened, given.advance
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise BackupError("backup.damaged", f"{self.file} is not a backup, because it is not a plain file")
        self._tag = read_tag(opened)
        if self._tag is not None:
            self._key = self._key_of(self._tag, settings, given)
            for _ in self.content():
                pass
        elif not given.untagged:
            raise BackupError(
                "backup.untagged", f"{self.file} has no authentication tag: it is damaged, cut off or not a backup, or "
                "an earlier version made it. If you trust its origin, add --allow-untagged"
            )

    @property
    def tagged(self) -> bool:
        """Whether the backup has a tag."""
        return self._tag is not None

    def content(self) -> Iterator[Hashed]:
        """Yield the content once, to be read from its beginning. Then compare what was read with the tag."""
        self._opened.seek(0)
        content = Hashed(self._opened, self._advance, None if self._tag is None else self._tag.content)
        yield content
        content.drain()
        if self._tag is not None and not self._tag.fits(self._key, content.hash.digest()):
            raise BackupError("backup.changed", f"{self.file} was changed after the backup was made; use another "
                              "backup")

    def _key_of(self, tag: Tag, settings: Settings, given: BackupSource) -> bytes:
        key = tag.key(keys(settings.paths.vault, given.key, make=False))
        if key is None:
            raise BackupError(
                "backup.foreign",
                f"{self.file} was made with a key that is not in {given.key or settings.paths.vault}; add "
                "--key-file with a copy of vault/secrets.key of the home that it was made from, or with the key file "
                "of the backup"
            )
        return key


def _into_home(settings: Settings, backup: _Verified, force: bool) -> Restored:
    new = _missing(settings)
    with _alone(settings):
        try:
            return _restore(settings, backup, force)
        except BaseException:
            if not settings.paths.restoring.exists():
                _remove(new)
            raise


@contextmanager
def _alone(settings: Settings) -> Iterator[None]:
    """Keep servers from the home within the block. Raises BackupError."""
    try:
        make_home(settings)
        with locked(settings):
            yield
    except ServingError as problem:
        raise BackupError("backup.refused", str(problem)) from None


def _restore_database(settings: Settings, given: BackupSource, force: bool) -> Restored:
    """Put the copy of a database that was saved before a migration into the home. Raises BackupError and OSError."""
    paths = settings.paths
    if given.file.parent != paths.before_upgrade and not given.untagged:
        raise BackupError("backup.untagged", f"{given.file} is a database without an authentication tag, and not in "
                          f"{paths.before_upgrade}. If you trust its origin, add --allow-untagged")
    with _alone(settings):
        _refuse(paths, force)
        stage = Path(mkdtemp(prefix=_STAGE, dir=settings.home))
        try:
            shutil.copyfile(given.file, stage / DATABASE)
            (stage / DATABASE).chmod(0o600)
            _check_database(given.file, stage / DATABASE)
            _skip_event_ids(stage / DATABASE)
            _forget_tokens(stage / DATABASE)
            os.sync()
            write_atomic(paths.restoring, b"")
            kept = _move_away(paths, [])
            os.rename(stage / DATABASE, paths.database)
            sync_directory(paths.home)
            paths.restoring.unlink()
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    return Restored(None, kept)


def _forget_tokens(database: Path) -> None:
    """Delete the tokens of logons, which may be revoked by now."""
    with closing(sqlite3.connect(database)) as connection, connection:
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (tokens.name,)).fetchone():
            connection.execute(f"DELETE FROM {tokens.name}")


def _missing(settings: Settings) -> list[Path]:
    """Return the paths that `make_home` and the lock will create, the deepest last."""
    paths = settings.paths
    folders = (settings.home, settings.result_fs, settings.data_fs, paths.jobs, paths.bundles, paths.incoming,
               paths.staging, paths.volumes, paths.forwarding, paths.users)
    made = {place for folder in folders for place in (folder, *folder.parents) if not place.exists()}
    return [*sorted(made), *([] if paths.lock.exists() else [paths.lock])]


def _remove(made: list[Path]) -> None:
    """Remove the paths that a failed restore has created, except folders that contain something else by now."""
    for path in reversed(made):
        with suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink()


def _restore(settings: Settings, backup: _Verified, force: bool) -> Restored:
    paths, file = settings.paths, backup.file
    _refuse(paths, force)
    for folder in (settings.home, settings.result_fs):
        for left in folder.glob(f"{_STAGE}*"):
            remove_tree(left)
    stage = trees = None
    try:
        stage = Path(mkdtemp(prefix=_STAGE, dir=settings.home))
        trees = Path(mkdtemp(prefix=_STAGE, dir=settings.result_fs))
        manifest = _unpack(backup, stage, trees)
        _check(file, manifest, stage / DATABASE)
        _skip_event_ids(stage / DATABASE)
        if not manifest.results:
            _tell_what_is_missing(paths, manifest, stage, trees)
        os.sync()
        kept = _swap(paths, stage, trees)
    except OSError as problem:
        again = (f"; {paths.home} is incomplete, and no server starts on it: run the restore again with --force"
                 if paths.restoring.exists() else "")
        raise BackupError(
            "backup.failed", f"cannot restore: {problem.filename or file}: {problem.strerror or problem}{again}"
        ) from None
    finally:
        for folder in filter(None, (stage, trees)):
            shutil.rmtree(folder, ignore_errors=True)
    return Restored(manifest, kept)


def _refuse(paths: HomePaths, force: bool) -> None:
    """Raise BackupError if the home contains something that must not be replaced."""
    found = sorted(name for name in os.listdir(paths.jobs) if execs.is_exec_id(name))
    for exec_id in found:
        lock = try_lock(paths.job(exec_id, ""))
        if lock is None:
            raise BackupError("backup.refused", f"{exec_id} is still running on {paths.home}; stop it first (dlicmd "
                              f"--exec-stop {exec_id})")
        os.close(lock)
    if (paths.database.exists() or found or paths.restoring.exists()) and not force:
        raise BackupError("backup.refused", f"{paths.home} already has execs; add --force to move them into a folder "
                          f"of {paths.home}")


def _unpack(backup: _Verified, stage: Path, trees: Path) -> BackupManifest:
    """Unpack everything: RESULT_DIRs into `trees`, the rest into `stage`. Raises BackupError and OSError."""
    file, manifest = backup.file, None
    try:
        for content in backup.content():
            with gzip.GzipFile(fileobj=cast("IO[bytes]", content), mode="rb") as plain:
                with tarfile.open(fileobj=plain, mode="r|") as archive:
                    while (entry := archive.next()) is not None:
                        if manifest is None:
                            manifest = _manifest(backup, archive, entry)
                        else:
                            _unpack_one(archive, entry, stage, trees, file)
                        # The archive keeps all entries, although a stream needs none.
                        archive.members.clear()  # type: ignore[attr-defined]
                while plain.read(_PIECE):
                    pass  # gzip verifies its checksum at the end of the file
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as problem:
        raise BackupError("backup.damaged", f"{file} is damaged or not a backup: {problem}") from None
    except OSError as problem:
        if problem.errno is None:  # gzip raises this for damaged content
            raise BackupError("backup.damaged", f"{file} is damaged or not a backup: {problem}") from None
        raise
    if manifest is None:
        raise BackupError("backup.damaged", f"{file} is empty")
    return manifest


def _manifest(backup: _Verified, archive: tarfile.TarFile, entry: tarfile.TarInfo) -> BackupManifest:
    file = backup.file
    content = archive.extractfile(entry) if entry.isreg() and entry.size <= _MANIFEST_LARGEST else None
    if entry.name != MANIFEST or content is None:
        raise BackupError("backup.damaged", f"{file} is not a backup of local-backend")
    try:
        found = json.loads(content.read())
        if found["format"] == FORMAT and not backup.tagged:
            raise BackupError("backup.changed", f"the authentication tag of {file} was removed; use another backup")
        if found["format"] not in (UNTAGGED, FORMAT):
            raise BackupError("backup.version", f"{file} was made by another version of this program; use version "
                              f"{found['version']}")
        return BackupManifest(**found)
    except (ValueError, TypeError, KeyError):
        raise BackupError("backup.damaged", f"{file} is damaged: its manifest is unreadable") from None


def _unpack_one(archive: tarfile.TarFile, entry: tarfile.TarInfo, stage: Path, trees: Path, file: Path) -> None:
    parts = entry.name.split("/")
    sound = parts[0] in (JOBS, BUNDLES, TREES) or parts == [DATABASE]
    if not sound or {"", ".", ".."} & set(parts) or "\0" in entry.name or not (entry.isreg() or entry.isdir()):
        raise BackupError("backup.damaged", f"{file} contains a file that does not belong in a backup: "
                          f"{entry.name[:100]!r}")
    target = trees.joinpath(*parts[1:]) if parts[0] == TREES else stage.joinpath(*parts)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if entry.isdir():
        target.mkdir(mode=0o700, exist_ok=True)
        return
    content = archive.extractfile(entry)
    assert content is not None
    mode = entry.mode & 0o755 | 0o600 if parts[0] in (BUNDLES, TREES) else 0o600
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as opened:
        shutil.copyfileobj(content, opened, _PIECE)
    os.utime(target, (entry.mtime, entry.mtime))


def _check(file: Path, manifest: BackupManifest, database: Path) -> None:
    """Raise BackupError if the database is not the one that was backed up, or if this program cannot use it."""
    if not database.exists() or sha256(database) != manifest.database_sha256:
        raise BackupError("backup.damaged", f"{file} is damaged: its database differs from the one that was backed up")
    if manifest.schema not in VERSIONS:
        raise BackupError("backup.version", f"{file} was made by a newer version of this program; use version "
                          f"{manifest.version} or later")
    _check_database(file, database)


def _check_database(file: Path, database: Path) -> None:
    """Raise BackupError if a database is damaged."""
    try:
        with closing(sqlite3.connect(database)) as connection:
            found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    except sqlite3.Error as problem:
        found = str(problem)
    if found != "ok":
        raise BackupError("backup.damaged", f"{file} is damaged: {' '.join(str(found).split())}")


def _skip_event_ids(database: Path) -> None:
    """Let the ids of events continue at the present time in milliseconds. A server gives fewer than 1,000 ids per
    second, so no id since the backup is given twice, and a client with a later position misses no event."""
    with closing(sqlite3.connect(database)) as connection, connection:
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'").fetchone() is None:
            return  # an earlier version without events
        query = f"SELECT max(seq) FROM sqlite_sequence WHERE name = '{events.name}'"
        last = connection.execute(query).fetchone()[0] or 0
        connection.execute(f"DELETE FROM sqlite_sequence WHERE name = '{events.name}'")
        connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)",
                           (events.name, max(last, int(time.time() * 1000))))


def _tell_what_is_missing(paths: HomePaths, manifest: BackupManifest, stage: Path, trees: Path) -> None:
    """Add a note to the launcher log of every exec that is restored without its results, because its other logs are
    empty."""
    made = f"{datetime.fromtimestamp(manifest.created, timezone.utc):%Y-%m-%d %H:%M}"
    for tree in trees.glob("*/*"):
        job = stage / JOBS / tree.name
        if job.is_dir() and not paths.job(tree.name, tree.parent.name).root.exists():
            launcher_log.note(job / paths.job(tree.name, "").launcher_log.name, "restore",
                              f"restored from a backup of {made} UTC that was made without --results: it does not "
                              "contain what the program had written until then (logs, models and checkpoints)")


def _swap(paths: HomePaths, stage: Path, trees: Path) -> Path | None:
    """Move the old state away and the new state in. Return the folder of the old state, None if there was none. A
    result that exists already is newer than the backup, and stays."""
    folders = {JOBS: paths.jobs, BUNDLES: paths.bundles}
    for name in folders:
        (stage / name).mkdir(mode=0o700, exist_ok=True)
    write_atomic(paths.restoring, b"")
    kept = _move_away(paths, list(folders.values()))
    for tree in trees.glob("*/*"):
        target = paths.job(tree.name, tree.parent.name).root
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not target.exists():
            os.rename(tree, target)
    for name, folder in folders.items():
        if folder.exists():
            folder.rmdir()
        os.rename(stage / name, folder)
    os.rename(stage / DATABASE, paths.database)
    sync_directory(paths.home)
    paths.restoring.unlink()
    return kept


def _move_away(paths: HomePaths, folders: list[Path]) -> Path | None:
    """Move the database and these folders into a new folder of the home. Return it, None if there was nothing."""
    kept = paths.home / f"replaced-{datetime.fromtimestamp(time.time(), timezone.utc):%Y%m%dT%H%M%S.%fZ}"
    old = [path for path in paths.home.glob(f"{paths.database.name}*") if path.is_file()]
    old += [folder for folder in folders if folder.exists() and any(folder.iterdir())]
    if old:
        kept.mkdir(mode=0o700)
    for path in old:
        os.rename(path, kept / path.name)
    return kept if old else None
