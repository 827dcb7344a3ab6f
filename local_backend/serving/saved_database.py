"""Saves the database of a home before a new version of the program migrates it.

An SQLite file is copied with SQLite's backup API. A PostgreSQL database is saved with pg_dump; without pg_dump, an
administrator must put the dump into the folder. `local-backend restore` puts the copy of an SQLite file back.
"""

from __future__ import annotations

import filecmp
import logging
import os
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing, suppress
from datetime import datetime, timezone
from pathlib import Path

from sqlalchemy.engine import URL

from dlicmd.contract.sizes import show_size
from local_backend.files import sync_directory
from local_backend.settings import Settings
from local_backend.store.errors import DatabaseError
from local_backend.store.postgres import PASSWORD

_log = logging.getLogger(__name__)
#: The newest copies that are kept.
KEPT = 3
#: Seconds to wait for a writer of the database.
_BUSY = 60.0
#: Seconds for which a dump that an administrator made counts.
_FRESH = 86400.0
_DUMP_PATIENCE = 3600.0


def save(settings: Settings, schema: str) -> Path | None:
    """Save the database, which has this schema, and return the file; None for a damaged SQLite file, whose opening
    reports the damage. Remove the oldest copies. Raises DatabaseError and OSError, and nothing is left then."""
    folder = settings.paths.before_upgrade
    folder.mkdir(mode=0o700, exist_ok=True)
    for left in folder.glob(".*.tmp"):
        left.unlink()
    now = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    where = settings.where
    saved: Path | None
    if isinstance(where, URL):
        saved = _dumped(where, folder, schema, now)
    else:
        saved = _copied(settings, where, folder / f"{now}-{schema}.db")
    if saved is not None:
        _log.info("saved the database with schema %s before its migration: %s", schema, saved)
        copies = sorted(path for path in folder.iterdir() if path != saved)
        for old in copies[:len(copies) - KEPT + 1]:
            old.unlink()
    return saved


def way_back(saved: Path) -> str:
    """Return the command that puts a copy back."""
    if saved.suffix == ".db":
        return f"local-backend restore --force {saved}"
    return f"pg_restore --clean --if-exists --dbname DATABASE {saved}"


def _copied(settings: Settings, database: Path, target: Path) -> Path | None:
    size = sum(path.stat().st_size for path in (database, Path(f"{database}-wal")) if path.exists())
    free = shutil.disk_usage(target.parent).free
    # The copy, and the changes that the migration makes.
    needed = 2 * size + settings.quotas.free_bytes
    if free < needed:
        raise DatabaseError(f"{database} must be saved before it is migrated: this needs {show_size(needed)}, but the "
                            f"disk of {settings.home} has only {show_size(free)} free; free some space, then start the "
                            "server again")
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.touch(mode=0o600)
    try:
        with (
            closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=_BUSY)) as original,
            closing(sqlite3.connect(temporary, isolation_level=None)) as copy,
        ):
            original.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")  # WAL would need two more files
            if copy.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
                return None
        # A failed migration is often repeated, and must not displace older copies.
        for earlier in target.parent.glob("*.db"):
            if filecmp.cmp(temporary, earlier, shallow=False):
                return earlier
        _keep(temporary, target)
    except sqlite3.OperationalError as problem:
        raise DatabaseError(f"cannot save {database} before its migration: {problem}") from None
    except sqlite3.DatabaseError:
        return None
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _dumped(url: URL, folder: Path, schema: str, now: str) -> Path:
    """Run pg_dump. If that is impossible, return the dump that an administrator made. Raises DatabaseError."""
    target, manual = folder / f"{now}-{schema}.dump", folder / f"{schema}.dump"
    temporary = target.with_name(f".{target.name}.tmp")
    password = url.password or os.environ.get(PASSWORD)
    address = url.set(drivername="postgresql", password=None).render_as_string()
    command = ["pg_dump", "--format=custom", "--file", str(temporary), "--dbname", address]
    temporary.touch(mode=0o600)
    try:
        subprocess.run(command, env=os.environ | ({PASSWORD: password} if password else {}), check=True,
                       capture_output=True, text=True, timeout=_DUMP_PATIENCE)
        _keep(temporary, target)
        return target
    except (OSError, subprocess.SubprocessError) as problem:
        with suppress(OSError):
            found = manual.stat()
            if found.st_size and found.st_mtime > time.time() - _FRESH:
                manual.replace(target)
                return target
        said = problem.stderr if isinstance(problem, subprocess.CalledProcessError) else str(problem)
        raise DatabaseError(
            f"{address} must be saved before it is migrated, but pg_dump failed ({' '.join(said.split())}); save it "
            f"yourself, then start the server again: pg_dump --format=custom --file {manual} --dbname {address}"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def _keep(temporary: Path, target: Path) -> None:
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, target)
    sync_directory(target.parent)
