"""Stores submissions durably: files and row are on disk before the answer, and a failure leaves neither."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from local_backend.errors import StorageFailed
from local_backend.files import sync_directory, write_atomic
from local_backend.forward import orders
from local_backend.forward.orders import Order
from local_backend.forward.target import Targets
from local_backend.jobspec import JobSpec
from local_backend.runtime.paths import ExecPaths, HomePaths
from local_backend.settings import Limits
from local_backend.store import exec_secrets, execs, submission_keys
from local_backend.store.database import Database
from local_backend.store.execs import ExecRow
from local_backend.store.submission_keys import Keyed
from local_backend.submit import manifest
from local_backend.submit.folders import discard, reserve
from local_backend.submit.place import place
from local_backend.submit.receive import Upload
from local_backend.vault import VaultError


def accept(
    spec: JobSpec,
    upload: Upload,
    *,
    shown_args: str,
    data_source: list[Any] | None,
    sealed: str | None,
    targets: Targets | None,
    home: HomePaths,
    database: Database,
    limits: Limits,
    allow: Callable[[Connection], None] = lambda _connection: None,
    keyed: Keyed | None = None,
) -> ExecRow:
    """Store a checked submission, and return its row in state SUBMITTED. This stores number, folders, files, the
    targets of its metrics, its idempotency key if any, and the `sealed` secrets. `allow` raises when the user may have
    no further exec. It runs in the transaction that makes the row, so that two submissions cannot both pass the check.

    Raises:
        Invalid: the upload does not match the command line.
        OverQuota: raised by `allow`.
        StorageFailed: the disk or the database is full or refuses writes.
    """
    try:
        number, paths = reserve(home, database, spec.user)
    except OSError as problem:
        raise StorageFailed.from_os(problem) from None
    except SQLAlchemyError as problem:
        raise _not_stored(problem) from None
    try:
        spec = place(upload, replace(spec, exec_id=paths.exec_id), paths.submitted, limits)
        _prepare(paths, spec)
        if targets is not None:
            orders.place(home, Order(paths.exec_id, spec.user, targets))

        def create(connection: Connection) -> ExecRow:
            allow(connection)
            if keyed is not None:
                submission_keys.keep(connection, keyed, spec.exec_id)
            if sealed is not None:
                exec_secrets.keep(connection, spec.exec_id, sealed)
            return execs.create(connection, number, spec, shown_args + " ", data_source, str(paths.code(spec)))

        return database.write(create)
    except BaseException as problem:
        if _unknown(problem):
            raise StorageFailed(
                "storage.unknown",
                "the server lost its database connection while it stored the submission; the job may or may not "
                "exist. Check the list of jobs (dlicmd --exec-get-all) before you submit again",
            ) from None
        discard(paths)
        orders.remove(home, paths.exec_id)
        if isinstance(problem, OSError):
            raise StorageFailed.from_os(problem) from None
        if isinstance(problem, VaultError):
            raise StorageFailed("storage.keys", f"{problem}; nothing was stored") from None
        if isinstance(problem, SQLAlchemyError):
            raise _not_stored(problem) from None
        raise


def _unknown(problem: BaseException) -> bool:
    """Return whether the row may have been stored: the connection was lost, perhaps after the commit. The files then
    stay, and the next start of the server removes them if there is no row."""
    return isinstance(problem, DBAPIError) and problem.connection_invalidated


def _prepare(paths: ExecPaths, spec: JobSpec) -> None:
    """Make the folders that programs expect, the list of submitted files, and the launch description."""
    for folder in (paths.logs, paths.checkpoint, paths.model):
        folder.mkdir(mode=0o700)
    manifest.write(paths)
    write_atomic(paths.spec, spec.to_json().encode(), mode=0o600)
    for folder in (paths.root, paths.root.parent, paths.state.parent):
        sync_directory(folder)


def _not_stored(problem: SQLAlchemyError) -> StorageFailed:
    original = getattr(problem, "orig", None) or problem
    return StorageFailed(
        "storage.failed", f"the server could not store the submission ({original}); nothing was stored"
    )
