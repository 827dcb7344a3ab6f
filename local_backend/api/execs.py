"""Execs: submit, list, show, stop, delete."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from dlicmd.contract import states, wire
from local_backend.api.backend import Backend, TheBackend, TheUser
from local_backend.api.errors import ApiError
from local_backend.api.objects import exec_object, pending, saying, why
from local_backend.api.submission_keys import digest, key_of
from local_backend.data.fs import DataRoots
from local_backend.files import full_disk, read_json
from local_backend.runtime.paths import ExecPaths
from local_backend.store import execs
from local_backend.store.execs import ExecRow
from local_backend.store.submission_keys import Keyed
from local_backend.submit import words
from local_backend.submit.accept import accept
from local_backend.submit.check import check
from local_backend.submit.errors import StorageFailed, SubmitError, TooLarge
from local_backend.submit.receive import Upload, receive

router = APIRouter(tags=["execs"])

#: Seconds for which the rest of a refused body is still read, so that the client hears why before the line is cut.
_DRAIN = 60.0
_SORTABLE = {
    wire.ID: "number", wire.STATE: "state", wire.FRAMEWORK: "framework", wire.APP_NAME: "app_name",
    wire.CREATE_TIME: "number", wire.START_TIME: "start_time", wire.END_TIME: "end_time", wire.CREATOR: "creator",
    wire.NUM_WORKER: "num_worker",
}


def show(backend: Backend, row: ExecRow, base_url: str) -> dict[str, Any]:
    """The exec object of a row, with what its program last said about its progress."""
    paths = backend.paths(row)
    shown = exec_object(
        row, progress_of(paths), base_url.rstrip("/"), _holds_anything(paths.model) if row.terminal else None
    )
    return shown | told(backend, row)


def told(backend: Backend, row: ExecRow) -> dict[str, Any]:
    """What the server knows better than the row of an exec that is not over: why it waits, that its disk is full."""
    reason = backend.reason(row)
    shown = {} if reason is None else pending(reason)
    trouble = None if row.terminal else full_disk(backend.paths(row).state)
    return shown | {wire.MESSAGE: trouble} if trouble else shown


def progress_of(paths: ExecPaths) -> Any:
    """What the driver of an exec has written down; None when that cannot be read."""
    try:
        return read_json(paths.progress)
    except OSError:
        return None  # whatever a program did to this file: one exec must not spoil the list of all


def _holds_anything(folder: Path) -> bool:
    try:
        with os.scandir(folder) as found:
            return any(found)
    except OSError:
        return False


@router.get(wire.EXECS)
def list_execs(
    *,
    request: Request,
    backend: TheBackend,
    user: TheUser,
    limit: str | None = None,
    state: str | None = None,
    sort_by: str | None = None,
) -> list[dict[str, Any]]:
    """The caller's execs, oldest first. `state`: one or several, by commas; `sort_by`: `field[:asc|desc]`; `limit`."""
    wanted = wanted_states(state)
    most = whole(limit, "limit", 0) if limit is not None else None
    rows = backend.database.read(lambda c: execs.of_user(c, user))
    if sort_by is not None:
        rows = _sorted(rows, sort_by)
    rows = [row for row in rows if wanted is None or row.state in wanted]
    return [show(backend, row, str(request.base_url)) for row in rows[:most]]


@router.post(wire.EXECS)
async def submit(
    *,
    request: Request,
    backend: TheBackend,
    user: TheUser,
    args: str | None = None,
    sig_name: str | None = Query(None, alias="sigName", max_length=200, description="shown again, else ignored"),
) -> Response:
    """Submit. `args` is the command line, also taken from the `data` part; the body holds the files and `data`."""
    paths, limits = backend.settings.paths, backend.settings.limits
    declared = request.headers.get("content-length", "0")
    folder = paths.incoming / secrets.token_hex(8)
    body = request.stream()
    try:
        if declared.isdecimal() and int(declared) > limits.upload_bytes:
            raise TooLarge(f"the upload is larger than {limits.upload_bytes} bytes, the limit of this server")
        key = key_of(request.headers)
        _make(folder)
        upload = await receive(body, request.headers.get("content-type", ""), folder, limits.upload_bytes)
        row = await run_in_threadpool(_accept_once, backend, user, args, upload, sig_name, key)
    except (SubmitError, ApiError):
        await _drain(body)
        raise
    except ClientDisconnect:
        return Response(status_code=400)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    backend.supervisor.wake()
    return JSONResponse(show(backend, row, str(request.base_url)))


@router.delete(wire.EXECS, status_code=204)
def delete_all(backend: TheBackend, user: TheUser) -> Response:
    """Delete all execs of the caller; running ones are stopped first."""

    def work(connection: Any) -> None:
        for row in execs.of_user(connection, user):
            execs.note(connection, row.id, stop_requested=True, deleted=True)

    backend.database.write(work)
    backend.supervisor.wake()
    return Response(status_code=204)


@router.get(wire.EXECS + "/{exec_id}/why")
def why_it_waits(backend: TheBackend, user: TheUser, exec_id: str) -> dict[str, Any]:
    """What a waiting exec lacks, who has it, and what can be done."""
    row = backend.exec_row(exec_id, user)
    rivals = [other for other in backend.database.read(execs.unfinished) if backend.kind(other) == backend.kind(row)]
    shown = why(row, backend.reason(row), rivals)
    said = saying(row, progress_of(backend.paths(row)))
    return shown | ({wire.MESSAGE: said} if said and wire.MESSAGE not in shown else {})


@router.get(wire.EXECS + "/{exec_id}")
def get(request: Request, backend: TheBackend, user: TheUser, exec_id: str) -> dict[str, Any]:
    """One exec."""
    return show(backend, backend.exec_row(exec_id, user), str(request.base_url))


@router.delete(wire.EXECS + "/{exec_id}", status_code=204)
def delete(backend: TheBackend, user: TheUser, exec_id: str) -> Response:
    """Delete an exec and its files; a running one is stopped first. It is gone from every list at once."""
    row = backend.exec_row(exec_id, user)
    backend.database.write(lambda c: execs.note(c, row.id, stop_requested=True, deleted=True))
    backend.supervisor.wake()
    return Response(status_code=204)


@router.post(wire.EXECS + "/{exec_id}/stop", status_code=204)
def stop(backend: TheBackend, user: TheUser, exec_id: str) -> Response:
    """Stop an exec."""
    request_stop(backend, backend.exec_row(exec_id, user))
    return Response(status_code=204)


@router.post(wire.EXECS + "/{exec_id}/deploy")
def deploy(backend: TheBackend, user: TheUser, exec_id: str) -> Response:
    """Deploying a trained model: refused, the local backend serves no models."""
    row = backend.exec_row(exec_id, user)
    raise ApiError(501, f"The local backend does not deploy models; fetch the result of {row.id} instead")


def request_stop(backend: Backend, row: ExecRow) -> None:
    """Ask the supervisor to stop an exec. Raises ApiError when it is over already."""
    if row.terminal:
        raise ApiError(400, f"Exec {row.id} is already {row.state}")
    backend.database.write(lambda c: execs.note(c, row.id, stop_requested=True))
    backend.supervisor.wake()


def wanted_states(text: str | None) -> frozenset[str] | None:
    """The states of a comma-separated filter, None for all. Raises ApiError on an unknown one."""
    if text is None or not text.strip():
        return None
    wanted = frozenset(word.strip().upper() for word in text.split(","))
    unknown = sorted(wanted - states.ACTIVE - states.TERMINAL - {"PENDING", ""})
    if unknown:
        raise ApiError(400, f"state: there is no state {unknown[0][:40]!r}")
    return wanted


def whole(text: str, name: str, least: int) -> int:
    """A whole number of a query. Raises ApiError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) >= least):
        raise ApiError(400, f"{name}: {text[:40]!r} is not a whole number of at least {least}")
    return int(text)


def _sorted(rows: list[ExecRow], sort_by: str) -> list[ExecRow]:
    name, _, direction = sort_by.partition(":")
    column = _SORTABLE.get(name)
    if column is None or direction not in {"", "asc", "desc"}:
        raise ApiError(400, f"sort_by: write FIELD:asc or FIELD:desc; fields are {', '.join(_SORTABLE)}")

    def key(row: ExecRow) -> tuple[bool, Any]:
        value = getattr(row, column)
        return value is not None, value if value is not None else 0

    return sorted(rows, key=key, reverse=direction == "desc")


def _make(folder: Any) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as problem:
        raise StorageFailed.from_os(problem) from None


def _accept_once(  # noqa: PLR0917
    backend: Backend, user: str, args: str | None, upload: Upload, sig_name: str | None, key: str | None
) -> ExecRow:
    """The exec of a submission, made now or when it came with its key before."""
    keyed = None if key is None else Keyed(user, key, digest(args, sig_name, upload))
    with backend.submission_keys.claimed(keyed) as row:
        return row or _accept(backend, user, args, upload, sig_name, keyed)


def _accept(  # noqa: PLR0917
    backend: Backend, user: str, args: str | None, upload: Upload, sig_name: str | None, keyed: Keyed | None
) -> ExecRow:
    settings, paths = backend.settings, backend.settings.paths
    asked = words.read(args, upload.data)
    spec = check(asked, user, DataRoots(settings.data_fs, paths.volumes, settings.embedded))
    return accept(
        replace(spec, sig_name=sig_name or None),
        upload,
        shown_args=asked.shown,
        data_source=asked.data_source,
        home=paths,
        database=backend.database,
        limits=settings.limits,
        keyed=keyed,
    )


async def _drain(body: AsyncIterator[bytes]) -> None:
    """Read what the client still sends."""

    async def rest() -> None:
        async for _ in body:
            pass

    try:
        await asyncio.wait_for(rest(), _DRAIN)
    except (asyncio.TimeoutError, ClientDisconnect, RuntimeError):
        return
