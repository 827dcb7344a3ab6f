"""Acknowledged means durable: files and row are on disk before the answer, and a failure leaves neither."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from local_backend.files import read_json, sync_directory, write_atomic, write_json
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
from local_backend.submit.errors import StorageFailed
from local_backend.submit.place import place
from local_backend.submit.receive import Upload
from local_backend.vault import VaultError

#: Field of the launch description that is there from the beginning.
_USER = "user"


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
    """Take a checked submission: a number, its folders and files, where its metrics go, its row in state SUBMITTED,
    with its key if any, and what is `sealed` for it. `allow` raises when the user may have no further one; it is asked
    in the transaction that makes the row, so that no two slip through.

    Raises:
        BadSubmission: the upload is not what the command line says.
        OverQuota: by `allow`.
        StorageFailed: disk or database did not take it.
    """
    try:
        number, paths = _reserve(home, database, spec)
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
                "the server lost its database while it stored the submission, and cannot tell whether it did; look at "
                "the list of execs (dlicmd --exec-get-all) before you submit again"
            ) from None
        discard(paths)
        orders.remove(home, paths.exec_id)
        if isinstance(problem, OSError):
            raise StorageFailed.from_os(problem) from None
        if isinstance(problem, VaultError):
            raise StorageFailed(f"{problem}; nothing was kept") from None
        if isinstance(problem, SQLAlchemyError):
            raise _not_stored(problem) from None
        raise


def _unknown(problem: BaseException) -> bool:
    """Whether the row may have been stored: the connection was lost, perhaps after the commit. The files stay then; a
    start of the server removes those that got no row."""
    return isinstance(problem, DBAPIError) and problem.connection_invalidated


def discard(paths: ExecPaths) -> None:
    """Remove the folders of an exec that has no row, as far as that is possible; a start of the server does the rest.

    The user's tree goes first: while the backend's folder is there, the next start knows that both are to go.
    """
    shutil.rmtree(paths.root, ignore_errors=True)
    if not paths.root.exists():
        shutil.rmtree(paths.state, ignore_errors=True)


def _reserve(home: HomePaths, database: Database, spec: JobSpec) -> tuple[int, ExecPaths]:
    """A new number with its two folders, and the file that says whose they are. A result folder that is already there
    belongs to another backend that shares DLI_RESULT_FS: its number is left alone."""
    while True:
        number = database.write(execs.next_number)
        paths = home.job(execs.exec_id(number), spec.user)
        paths.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            paths.root.mkdir(mode=0o700)
        except FileExistsError:
            continue
        try:
            paths.state.mkdir(mode=0o700, parents=True)
            write_json(paths.spec, {_USER: spec.user}, durable=False)
            paths.submitted.mkdir(mode=0o700)
        except BaseException:
            discard(paths)
            raise
        return number, paths


def _prepare(paths: ExecPaths, spec: JobSpec) -> None:
    """The folders that programs expect, and the launch description."""
    for folder in (paths.logs, paths.checkpoint, paths.model):
        folder.mkdir(mode=0o700)
    write_atomic(paths.spec, spec.to_json().encode(), mode=0o600)
    for folder in (paths.root, paths.root.parent, paths.state.parent):
        sync_directory(folder)


def _not_stored(problem: SQLAlchemyError) -> StorageFailed:
    original = getattr(problem, "orig", None) or problem
    return StorageFailed(f"the server could not store the submission ({original}); nothing was kept")


def _creator(paths: ExecPaths) -> str | None:
    """Whose submission this is, by its own file."""
    found = read_json(paths.spec)
    name = found.get(_USER) if isinstance(found, dict) else None
    return name if isinstance(name, str) and re.fullmatch(r"[\w@-][\w.@-]*", name) else None


def sweep(home: HomePaths, known: set[str], user: str) -> list[str]:
    """Remove what an interrupted server left: uploads, and the folders of submissions that never got a row.

    `known` are the ids of all rows; what does not say whose it is belongs to `user`. Returns the ids that were removed.
    """
    shutil.rmtree(home.incoming, ignore_errors=True)
    home.incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
    orphans = sorted(name for name in os.listdir(home.jobs) if execs.is_exec_id(name) and name not in known)
    for orphan in orphans:
        discard(home.job(orphan, _creator(home.job(orphan, user)) or user))
    return orphans
