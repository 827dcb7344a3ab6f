"""Stores submissions durably: files and row are on disk before the answer, and a failure leaves neither."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from dlicmd.contract import wire
from dlicmd.contract.states import ERROR
from local_backend.errors import BackendError, Invalid, StorageFailed
from local_backend.files import sync_directory, write_json
from local_backend.forward import orders
from local_backend.forward.orders import Order
from local_backend.forward.target import Targets
from local_backend.runtime import bundles, launcher_log
from local_backend.runtime.bundles import BundleLost
from local_backend.runtime.paths import DRIVER, ExecPaths, HomePaths, worker_task
from local_backend.settings import Limits
from local_backend.store import exec_secrets, execs, submission_keys
from local_backend.store.database import Database
from local_backend.store.errors import is_full
from local_backend.store.execs import ExecRow
from local_backend.store.submission_keys import Keyed
from local_backend.submit.folders import complete, discard, reserve
from local_backend.submit.place import as_command, place
from local_backend.submit.receive import ReceivedUpload
from local_backend.vault import VaultError
from local_backend.workload import Workload


def accept(
    spec: Workload,
    upload: ReceivedUpload | None,
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
    lack: str | None = None,
    bind: Callable[[Connection, str], None] = lambda _connection, _exec_id: None,
) -> ExecRow:
    """Store a checked submission, and return its row in state SUBMITTED. This stores number, folders, code, the
    targets of its metrics, its idempotency key if any, and the `sealed` secrets. Without an upload, the code is the
    bundle that the workload names. `allow` raises when the user may have no further exec. It runs in the transaction
    that makes the row, so that two submissions cannot both pass the check. So does `bind`, which gets the id of the new
    exec.

    With `lack`, the exec never runs: its row is in state ERROR, and `lack` is its message and the content of its logs.

    Raises:
        Invalid: the upload does not match the command line.
        OverQuota: raised by `allow`; and the errors of `bind`.
        StorageFailed: the disk or the database is full or refuses writes.
        BundleLost: the named bundle is missing, or its content has changed.
    """
    try:
        number, paths = reserve(home, database, spec.creator)
    except OSError as problem:
        raise StorageFailed.from_os(problem) from None
    except SQLAlchemyError as problem:
        raise _not_stored(problem) from None
    spec = replace(spec, id=paths.exec_id)
    try:
        spec = _with_code(spec, upload, home, paths, limits, runs=lack is None)
        _prepare(paths, spec)
        if lack is not None:
            _write_logs(paths, spec, lack)
        if targets is not None:
            orders.place(home, Order(paths.exec_id, spec.creator, targets))

        entry = _Entry(number, spec, shown_args + " ", data_source, str(paths.code(spec)), sealed, keyed, lack, bind)
        return _stored(database, home, paths, entry, allow)
    except BaseException as problem:
        if not _unknown(problem):
            _undo(spec, home, paths, database)
        failure = _failure(problem)
        if failure is None:
            raise
        raise failure from None


@dataclass(frozen=True)
class _Entry:
    """What the database stores of a submission; see `accept`."""

    number: int
    spec: Workload
    shown_args: str
    data_source: list[Any] | None
    code: str
    sealed: str | None
    keyed: Keyed | None
    lack: str | None
    bind: Callable[[Connection, str], None]


def _stored(
    database: Database, home: HomePaths, paths: ExecPaths, entry: _Entry, allow: Callable[[Connection], None]
) -> ExecRow:
    """Store the row, the idempotency key and the secrets in one transaction. Make the bundle of the code again if it
    has been removed together with the last other exec that named it."""
    def create(connection: Connection) -> ExecRow:
        allow(connection)
        if not home.bundle(str(entry.spec.program.bundle)).is_dir():
            raise BundleLost
        if entry.keyed is not None:
            submission_keys.keep(connection, entry.keyed, entry.spec.id)
        if entry.sealed is not None:
            exec_secrets.keep(connection, entry.spec.id, entry.sealed)
        row = execs.create(connection, entry.number, entry.spec, entry.shown_args, entry.data_source, entry.code)
        entry.bind(connection, row.id)
        return row if entry.lack is None else _ended(connection, row, entry.lack)

    while True:
        try:
            return database.write(create)
        except BundleLost:
            bundles.keep(home, paths.submitted)


def _ended(connection: Connection, row: ExecRow, lack: str) -> ExecRow:
    """End a new exec that the supervisor must never see."""
    execs.transition(connection, row.id, ERROR, message=lack, reason=wire.UNSUPPORTED)
    ended = execs.get(connection, row.id)
    assert ended is not None
    return ended


def _write_logs(paths: ExecPaths, spec: Workload, lack: str) -> None:
    """Write the reason into every log of an exec that never runs, because scripts read different logs."""
    launcher_log.note(paths.launcher_log, "server", f"{ERROR}: {lack}", "ERROR")
    elastic = spec.resources.elastic
    for stream in ("stdout", "stderr"):
        file = paths.capture(DRIVER if elastic else worker_task(1), stream, elastic)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(f"{lack}\n")


def _with_code(
    spec: Workload, upload: ReceivedUpload | None, home: HomePaths, paths: ExecPaths, limits: Limits, *, runs: bool
) -> Workload:
    """Make the working copy of the code. Return the workload with the actual program and its bundle."""
    if upload is None:
        bundles.copy(home, str(spec.program.bundle), paths.submitted)
        if spec.program.parameters is not None:
            write_json(paths.config(spec), spec.program.parameters)
        if spec.program.main is not None and not spec.resources.elastic:
            return replace(spec, program=as_command(spec.program, paths.submitted))
        return spec
    program = place(upload, spec.program, paths.submitted, limits, elastic=spec.resources.elastic, runs=runs)
    return replace(spec, program=replace(program, bundle=bundles.keep(home, paths.submitted)))


def _undo(spec: Workload, home: HomePaths, paths: ExecPaths, database: Database) -> None:
    """Remove everything of a submission that has no row, as far as possible; the next start of the server removes the
    rest."""
    discard(paths)
    orders.remove(home, paths.exec_id)
    if spec.program.bundle is not None:
        with suppress(OSError, SQLAlchemyError):
            bundles.drop(home, database, {spec.program.bundle})


def _failure(problem: BaseException) -> BackendError | None:
    """Return the error for the client; None if the client gets `problem` itself."""
    if _unknown(problem):
        return StorageFailed(
            "storage.unknown",
            "the server lost its database connection while it stored the submission; the job may or may not "
            "exist. Check the list of jobs (dlicmd --exec-get-all) before you submit again",
        )
    if isinstance(problem, OSError) and problem.errno == errno.ENAMETOOLONG:
        return Invalid("submission.files", "a path in the submission is longer than the server's file system permits")
    if isinstance(problem, OSError):
        return StorageFailed.from_os(problem)
    if isinstance(problem, VaultError):
        return StorageFailed("storage.keys", f"{problem}; nothing was stored")
    return _not_stored(problem) if isinstance(problem, SQLAlchemyError) else None


def _unknown(problem: BaseException) -> bool:
    """Return whether the row may have been stored: the connection was lost, perhaps after the commit. The files then
    stay, and the next start of the server removes them if there is no row."""
    return isinstance(problem, DBAPIError) and problem.connection_invalidated


def _prepare(paths: ExecPaths, spec: Workload) -> None:
    """Make the folders that programs expect, and note that both folders are complete."""
    for folder in (paths.logs, paths.checkpoint, paths.model):
        folder.mkdir(mode=0o700)
    complete(paths, spec.creator)
    for folder in (paths.root, paths.root.parent, paths.state.parent):
        sync_directory(folder)


def _not_stored(problem: SQLAlchemyError) -> StorageFailed:
    original = getattr(problem, "orig", None) or problem
    if is_full(problem):
        return StorageFailed(
            "storage.full", f"the disk of the server's database is full ({original}); nothing was stored. Free some "
            "space on it and submit again"
        )
    return StorageFailed(
        "storage.failed", f"the server could not store the submission ({original}); nothing was stored"
    )
