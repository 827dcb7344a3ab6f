"""Backup of a home into one file, made while its server runs.

A gzipped tar: `manifest.json`, `backend.db`, then `jobs/<id>/`, `trees/<user>/<id>/` (RESULT_DIR), and
`bundles/<digest>/`. The database is copied first, so its copy does not contain later changes of execs. A file that
grows is cut at the size that it had when it was opened. The file ends with an authentication tag (backup_tag.py).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import secrets
import sqlite3
import stat
import tarfile
import tempfile
import time
from collections.abc import Collection
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from dlicmd import __version__
from local_backend.commands.backup_tag import Advance, BackupError, Hashed, keys, tag
from local_backend.files import sync_directory, write_json
from local_backend.runtime.paths import ExecPaths, HomePaths
from local_backend.settings import Settings
from local_backend.store import execs
from local_backend.store.database import Database
from local_backend.store.schema import tokens

FORMAT = 2
#: The format of earlier versions: the same without a tag.
UNTAGGED = 1
MANIFEST, DATABASE, JOBS, BUNDLES, TREES = "manifest.json", "backend.db", "jobs", "bundles", "trees"
#: Seconds to wait for a writer of the database.
_BUSY = 60.0
_PIECE = 1 << 20


@dataclass(frozen=True)
class BackupManifest:
    """The description of a backup in its file."""

    format: int
    version: str
    schema: str
    created: float
    results: bool
    execs: int
    database_sha256: str


@dataclass
class Made:
    """A finished backup. `left_out` counts links, special files, and files that cannot be read."""

    manifest: BackupManifest
    size: int = 0
    left_out: int = 0


def backup(
    settings: Settings, file: Path, results: bool, force: bool, *, key: Path | None = None,
    advance: Advance | None = None,
) -> Made:
    """Write `file`, completely or not at all, and readable only for its owner. `key` is a key file for the tag, None
    for the key of the home. `advance` is called with the number of bytes written. Raises BackupError."""
    if settings.database is not None:
        raise BackupError("backup.refused", "the database is a PostgreSQL database: back it up with pg_dump, and back "
                          "up the home with tar or rsync")
    if not settings.paths.database.exists():
        raise BackupError("backup.refused", f"nothing to back up: {settings.paths.database} does not exist")
    if file.is_dir() or (file.exists() and not force):
        raise BackupError("backup.refused", f"{file} already exists; choose another file, or add --force")
    line = keys(settings.paths.vault, key, make=True)[0]
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp")
    try:
        with tempfile.TemporaryDirectory(prefix=f".{file.name}.", dir=file.parent) as folder:
            copy = Path(folder) / DATABASE
            schema = _copy_database(settings.paths.database, copy)
            made = _write(settings.paths, copy, schema, temporary, results, line, advance)
        os.replace(temporary, file)
        sync_directory(file.parent)
    except OSError as problem:
        where = problem.filename or file
        raise BackupError("backup.failed", f"cannot write {file}: {where}: {problem.strerror or problem}") from None
    except sqlite3.Error as problem:
        raise BackupError("backup.failed", f"cannot read {settings.paths.database}: {problem}; for details: "
                          "local-backend doctor") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    made.size = file.stat().st_size
    with suppress(OSError):
        write_json(settings.paths.backed_up, {"time": made.manifest.created, "file": str(file), "bytes": made.size})
    return made


def _copy_database(source: Path, target: Path) -> str:
    """Write a consistent copy without the tokens of logons, which may be revoked by the time of a restore. Return the
    version of its schema. Raises BackupError and the errors of SQLite."""
    target.touch(mode=0o600)
    with (
        closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True, timeout=_BUSY)) as original,
        closing(sqlite3.connect(target, isolation_level=None)) as copy,
    ):
        original.backup(copy)
        # WAL would need two more files.
        copy.execute("PRAGMA journal_mode=DELETE")
        found = copy.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise BackupError("backup.failed", f"{source} is damaged ({' '.join(str(found).split())}); nothing was "
                              "written")
        copy.execute(f"DELETE FROM {tokens.name}")
        copy.execute("VACUUM")
        return str(copy.execute("SELECT version_num FROM alembic_version").fetchone()[0])


def _write(  # noqa: PLR0917
    paths: HomePaths, copy: Path, schema: str, target: Path, results: bool, line: bytes, advance: Advance | None
) -> Made:
    database = Database(copy)
    try:
        rows = [row for row in database.read(execs.briefs) if not row.deleted]
    finally:
        database.close()
    manifest = BackupManifest(FORMAT, __version__, schema, time.time(), results, len(rows), sha256(copy))
    made = Made(manifest)
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        hashed = Hashed(file, advance)
        with (
            gzip.GzipFile("", "wb", 1, cast("IO[bytes]", hashed)) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            text = json.dumps(asdict(manifest)).encode()
            entry = tarfile.TarInfo(MANIFEST)
            entry.size, entry.mode = len(text), 0o600
            archive.addfile(entry, io.BytesIO(text))
            _add(archive, copy, PurePosixPath(DATABASE), made)
            for row in rows:
                _add_exec(archive, paths.job(row.id, row.creator), row.creator, results, made)
            for name in sorted({row.bundle for row in rows if row.bundle is not None}):
                _add_folder(archive, paths.bundle(name), PurePosixPath(BUNDLES, name), made)
        file.write(tag(line, hashed.hash.digest()))
        file.flush()
        os.fsync(file.fileno())
    return made


def _add_exec(archive: tarfile.TarFile, paths: ExecPaths, user: str, results: bool, made: Made) -> None:
    tree = PurePosixPath(TREES, user, paths.exec_id)
    # Fetched data can be fetched again, and its folder may contain credentials for it.
    without = (paths.data, paths.fetching, paths.socket)
    _add_folder(archive, paths.state, PurePosixPath(JOBS, paths.exec_id), made, without)
    if results:
        _add_folder(archive, paths.root, tree, made)
        return
    # A pending exec needs these files to run. Later they show which code ran.
    for folder in (paths.root, paths.model, paths.checkpoint, paths.logs):
        _add(archive, folder, tree / folder.relative_to(paths.root), made)
    _add_folder(archive, paths.submitted, tree / paths.submitted.name, made)


def _add_folder(
    archive: tarfile.TarFile, folder: Path, name: PurePosixPath, made: Made, without: Collection[Path] = ()
) -> None:
    """Add a folder and its content, except the paths in `without`. A folder that has just been removed is left
    out."""
    for base, names, files in os.walk(folder):
        names[:] = [found for found in names if Path(base, found) not in without]
        inside = name / Path(base).relative_to(folder)
        _add(archive, Path(base), inside, made)
        for found in sorted(name for name in files if Path(base, name) not in without):
            _add(archive, Path(base, found), inside / found, made)
        links = [found for found in names if Path(base, found).is_symlink()]
        made.left_out += len(links)


def _add(archive: tarfile.TarFile, path: Path, name: PurePosixPath, made: Made) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # removed meanwhile, a link, a socket, or a file that a program has made unreadable
        made.left_out += os.path.lexists(path)
        return
    try:
        found = os.fstat(fd)
        entry = tarfile.TarInfo(str(name))
        entry.mode, entry.mtime = stat.S_IMODE(found.st_mode), found.st_mtime
        if stat.S_ISDIR(found.st_mode):
            entry.type = tarfile.DIRTYPE
            archive.addfile(entry)
        elif stat.S_ISREG(found.st_mode):
            entry.size = found.st_size
            with open(fd, "rb", closefd=False) as file:
                archive.addfile(entry, _Exactly(file, found.st_size))
        else:
            made.left_out += 1
    finally:
        # The archive keeps all entries, although a stream needs none.
        archive.members.clear()  # type: ignore[attr-defined]
        os.close(fd)


class _Exactly(io.RawIOBase):
    """Exactly `size` bytes of a file. If the file has grown, the rest is cut. If it has shrunk, zeros follow."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        super().__init__()
        self._file, self._left = file, size

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        content = self._file.read(wanted)
        self._left -= wanted
        return content.ljust(wanted, b"\0")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest()
