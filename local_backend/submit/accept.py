"""Acknowledged means durable: files and row are on disk before the answer, and a failure leaves neither."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from local_backend.files import sync_directory, write_atomic
from local_backend.jobspec import JobSpec
from local_backend.runtime.paths import ExecPaths, HomePaths
from local_backend.settings import Limits
from local_backend.store import execs, submission_keys
from local_backend.store.database import Database
from local_backend.store.execs import ExecRow
from local_backend.store.submission_keys import Keyed
from local_backend.submit.errors import StorageFailed
from local_backend.submit.place import place
from local_backend.submit.receive import Upload


def accept(
    spec: JobSpec,
    upload: Upload,
    *,
    shown_args: str,
    data_source: list[Any] | None,
    home: HomePaths,
    database: Database,
    limits: Limits,
    keyed: Keyed | None = None,
) -> ExecRow:
    """Take a checked submission: a number, its folders and files, its row in state SUBMITTED, with its key if any.

    Raises:
        BadSubmission: the upload is not what the command line says.
        StorageFailed: disk or database did not take it.
    """
    try:
        number, paths = _reserve(home, database, spec.user)
    except OSError as problem:
        raise StorageFailed.from_os(problem) from None
    except SQLAlchemyError as problem:
        raise _not_stored(problem) from None
    try:
        spec = place(upload, replace(spec, exec_id=paths.exec_id), paths.submitted, limits)
        _prepare(paths, spec)

        def work(connection: Connection) -> ExecRow:
            if keyed is not None:
                submission_keys.keep(connection, keyed, spec.exec_id)
            return execs.create(connection, number, spec, shown_args + " ", data_source, str(paths.code(spec)))

        return database.write(work)
    except BaseException as problem:
        discard(paths)
        if isinstance(problem, OSError):
            raise StorageFailed.from_os(problem) from None
        if isinstance(problem, SQLAlchemyError):
            raise _not_stored(problem) from None
        raise


def discard(paths: ExecPaths) -> None:
    """Remove the folders of an exec that has no row, as far as that is possible; a start of the server does the rest.

    The user's tree goes first: while the backend's folder is there, the next start knows that both are to go.
    """
    shutil.rmtree(paths.root, ignore_errors=True)
    if not paths.root.exists():
        shutil.rmtree(paths.state, ignore_errors=True)


def _reserve(home: HomePaths, database: Database, user: str) -> tuple[int, ExecPaths]:
    """A new number with its two folders. A result folder that is already there belongs to another backend that shares
    DLI_RESULT_FS: its number is left alone."""
    while True:
        number = database.write(execs.next_number)
        paths = home.job(execs.exec_id(number), user)
        paths.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            paths.root.mkdir(mode=0o700)
        except FileExistsError:
            continue
        try:
            paths.state.mkdir(mode=0o700, parents=True)
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


def sweep(home: HomePaths, known: set[str], user: str) -> list[str]:
    """Remove what an interrupted server left: uploads, and the folders of submissions that never got a row.

    `known` are the ids of all rows. Returns the ids that were removed.
    """
    shutil.rmtree(home.incoming, ignore_errors=True)
    home.incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
    orphans = sorted(name for name in os.listdir(home.jobs) if execs.is_exec_id(name) and name not in known)
    for orphan in orphans:
        discard(home.job(orphan, user))
    return orphans
