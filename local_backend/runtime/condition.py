"""Measures the condition of a home for GET /metrics: disks, database, queue, certificate, last backup."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import SQLAlchemyError

from dlicmd.contract.states import PENDING, SUBMITTED
from local_backend import measures
from local_backend.files import read_json
from local_backend.settings import Settings
from local_backend.store.database import Database
from local_backend.store.schema import execs

_log = logging.getLogger(__name__)


def measure(settings: Settings, database: Database) -> None:
    """Set the metrics. One that cannot be measured keeps its value."""
    _set("the disks", lambda: _disks(settings))
    _set("the database", lambda: measures.DATABASE_BYTES.set(_size(settings, database)))
    _set("the queue", lambda: measures.OLDEST_PENDING.set(database.read(_oldest)))
    _set("the certificate", lambda: measures.CERTIFICATE_END.set(_certificate_end(settings)))
    _set("the last backup", lambda: measures.LAST_BACKUP.set(last_backup(settings) or 0.0))


def last_backup(settings: Settings) -> float | None:
    """Return when the last backup was made, in epoch seconds; None if there was none. Raises OSError."""
    found = read_json(settings.paths.backed_up)
    made = found.get("time") if isinstance(found, dict) else None
    return made if isinstance(made, float) else None


def certificate(settings: Settings) -> Path | None:
    """Return the file of the server's certificate; None without TLS."""
    return settings.paths.tls / "server.pem" if settings.tls_self_signed else settings.tls_cert


def _set(what: str, work: Callable[[], None]) -> None:
    try:
        work()
    except (OSError, SQLAlchemyError, ValueError) as problem:
        _log.debug("cannot measure %s: %s", what, problem)


def _disks(settings: Settings) -> None:
    for place, folder in (("home", settings.home), ("results", settings.result_fs), ("cache", settings.cache)):
        # The cache is made when it is needed.
        found = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists()))
        measures.DISK_FREE.labels(place).set(found.free)
        measures.DISK_SIZE.labels(place).set(found.total)


def _size(settings: Settings, database: Database) -> int:
    where = settings.where
    if isinstance(where, Path):
        return sum(path.stat().st_size for path in (where, Path(f"{where}-wal")) if path.exists())
    return int(database.read(lambda c: c.execute(text("SELECT pg_database_size(current_database())")).scalar_one()))


def _oldest(connection: Connection) -> float:
    waiting = execs.c.state.in_((SUBMITTED, PENDING)) & execs.c.deleted.is_(False)
    return float(connection.execute(select(func.min(execs.c.create_time)).where(waiting)).scalar() or 0.0)


def _certificate_end(settings: Settings) -> float:
    path = certificate(settings)
    if path is None:
        return 0.0
    from cryptography import x509  # without TLS, a server may not need it

    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
