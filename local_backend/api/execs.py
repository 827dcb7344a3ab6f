"""Execs: submit, list, show, stop, delete."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from dlicmd.contract import states, wire
from dlicmd.contract.secret import MASK
from local_backend import logs
from local_backend.api.as_json import JsonAnswer
from local_backend.api.audited import about
from local_backend.api.backend import Backend, TheBackend, TheUser, administrator
from local_backend.api.caller import Caller
from local_backend.api.description import header
from local_backend.api.errors import ApiError, answers
from local_backend.api.objects import saying, why
from local_backend.api.showing import progress_of, show, show_json
from local_backend.api.submission_keys import digest, key_of
from local_backend.measures import SUBMISSIONS
from local_backend.runtime.data_list import joined
from local_backend.store import execs
from local_backend.store.execs import ExecRow
from local_backend.store.submission_keys import Keyed
from local_backend.submit import forwarding, words
from local_backend.submit.accept import accept
from local_backend.submit.check import check
from local_backend.submit.data import data_of
from local_backend.submit.errors import StorageFailed, SubmitError, TooLarge
from local_backend.submit.quota import check_room, check_user
from local_backend.submit.receive import Upload, receive

router = APIRouter(tags=["execs"])

#: Seconds for which the rest of a refused body is still read, so that the client hears why before the line is cut.
_DRAIN = 60.0
_SORTABLE = {
    wire.ID: "number", wire.STATE: "state", wire.FRAMEWORK: "framework", wire.APP_NAME: "app_name",
    wire.CREATE_TIME: "number", wire.START_TIME: "start_time", wire.END_TIME: "end_time", wire.CREATOR: "creator",
    wire.NUM_WORKER: "num_worker",
}
#: To whoever submits credentials.
_WRITTEN_OUT = ("credentials were written into a data source: here they are sealed until the exec is over, but not in "
                "shell histories and scripts; have the server keep a connection (local-backend connection add), and "
                "name that")
#: To whoever names so many paths that no process could be started with them in a variable.
_NOT_JOINED = ("these are too many paths for DLI_DATA_DIRS, which is left out: programs find all of them in "
               "DLI_DATA_SOURCES_FILE")
#: How the description of the API shows the body of a submission, which is read as it arrives.
_FORM = {"type": "object", "properties": {wire.PART_DATA: {"type": "string"}}}
_FILES = {"type": "array", "items": {"type": "string", "format": "binary"}}
_BODY = {"requestBody": {"content": {
    "multipart/form-data": {"schema": {
        "type": "object", "properties": {wire.PART_DATA: {"type": "string"}, wire.PART_FILE: _FILES},
    }},
    "application/x-www-form-urlencoded": {"schema": _FORM},
    "application/json": {"schema": {"type": "object"}},
}}}
_KEY = {"parameters": [header(wire.KEY_HEADER, "what the same submission, sent again, is known by")]}


@router.get(wire.EXECS, response_model=list[dict[str, Any]])
def list_execs(
    *,
    request: Request,
    backend: TheBackend,
    user: TheUser,
    limit: str | None = None,
    state: str | None = None,
    sort_by: str | None = None,
    mine: bool = False,
) -> Response:
    """The caller's execs, of an administrator everybody's unless `mine`; oldest first. `state`: one or several, by
    commas; `sort_by`: `field[:asc|desc]`; `limit`."""
    wanted = wanted_states(state)
    most = whole(limit, "limit", 0) if limit else None
    column, down = _order(sort_by)
    creator = user.name if mine else user.sees_of
    rows = backend.database.read(lambda c: execs.of_user(c, creator, wanted, sort=column, down=down, most=most))
    found = b",".join(show_json(backend, rows, str(request.base_url)))
    return Response(b"[" + found + b"]", media_type="application/json")


@router.post(wire.EXECS, responses=answers(409, 422), openapi_extra=_BODY | _KEY)
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
        # What came with a key may be there already, and then takes nothing.
        asking = user if key is None else None
        await run_in_threadpool(_check_quota, backend, asking, int(declared) if declared.isdecimal() else 0)
        _make(folder)
        upload = await receive(body, request.headers.get("content-type", ""), folder, limits.upload_bytes)
        row, notes = await run_in_threadpool(_accept_once, backend, user, args, upload, sig_name, key)
    except (SubmitError, ApiError) as problem:
        SUBMISSIONS.labels("failed" if isinstance(problem, StorageFailed) else "refused").inc()
        if isinstance(problem, StorageFailed):
            backend.supervisor.wake()  # where the database was lost, the exec may be there all the same
        await _drain(body)
        raise
    except ClientDisconnect:
        return Response(status_code=400)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    SUBMISSIONS.labels("accepted").inc()
    logs.about(exec=row.id)
    about(request.scope, row.id)
    backend.supervisor.wake()
    warnings = [*notes, *([_WRITTEN_OUT] if MASK in (row.data_source or "") else [])]
    shown = show(backend, row, str(request.base_url))
    return JsonAnswer(shown | ({wire.WARNING: "; ".join(warnings)} if warnings else {}))


@router.delete(wire.EXECS, status_code=204)
def delete_all(request: Request, backend: TheBackend, user: TheUser) -> Response:
    """Delete all execs of the caller, also when others are seen; running ones are stopped first."""

    def work(connection: Connection) -> list[str]:
        names = [row.id for row in execs.of_user(connection, user.name)]
        for name in names:
            execs.note(connection, name, stop_requested=True, deleted=True)
        return names

    about(request.scope, *backend.database.write(work))
    backend.supervisor.wake()
    return Response(status_code=204)


@router.get(wire.EXECS + "/{exec_id}/why")
def why_it_waits(backend: TheBackend, user: TheUser, exec_id: str) -> dict[str, Any]:
    """What a waiting exec lacks, who has it, and what can be done."""
    row = backend.exec_row(exec_id, user)
    # Not those that wait, of which there may be thousands: they have nothing.
    others = [other for other in backend.database.read(execs.running) if user.sees(other)]
    rivals = [other for other in others if backend.kind(other) == backend.kind(row)]
    shown = why(row, backend.reason(row), rivals)
    said = saying(row, progress_of(backend.paths(row)))
    return shown | ({wire.MESSAGE: said} if said and wire.MESSAGE not in shown else {})


@router.get(wire.EXECS + "/{exec_id}", response_model=dict[str, Any])
def get(request: Request, backend: TheBackend, user: TheUser, exec_id: str) -> Response:
    """One exec."""
    (found,) = show_json(backend, [backend.exec_row(exec_id, user)], str(request.base_url))
    return Response(found, media_type="application/json")


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


@router.post(wire.EXECS + "/{exec_id}/deploy", responses=answers(501))
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
    unknown = sorted(wanted - states.ACTIVE - states.TERMINAL - {"PENDING", "FAILED", ""})
    if unknown:
        raise ApiError(400, f"state: there is no state {unknown[0][:40]!r}")
    return wanted


def whole(text: str, name: str, least: int) -> int:
    """A whole number of a query. Raises ApiError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) >= least):
        raise ApiError(400, f"{name}: {text[:40]!r} is not a whole number of at least {least}")
    return int(text)


def _order(sort_by: str | None) -> tuple[str, bool]:
    """The column that a list is sorted by, and whether downwards. Raises ApiError."""
    name, _, direction = (sort_by or wire.ID).partition(":")
    column = _SORTABLE.get(name)
    if column is None or direction not in {"", "asc", "desc"}:
        raise ApiError(400, f"sort_by: write FIELD:asc or FIELD:desc; fields are {', '.join(_SORTABLE)}")
    return column, direction == "desc"


def _make(folder: Any) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as problem:
        raise StorageFailed.from_os(problem) from None


def _check_quota(backend: Backend, user: Caller | None, adding: int) -> None:
    """Refuse what cannot be taken before it is received. Raises SubmitError."""
    quotas = backend.settings.quotas
    check_room(backend.settings.paths, quotas, adding)
    if quotas.limit_users and user is not None:
        backend.database.read(lambda c: check_user(c, user.name, quotas, backend.sizes.of, adding))


def _accept_once(  # noqa: PLR0917
    backend: Backend, user: Caller, args: str | None, upload: Upload, sig_name: str | None, key: str | None
) -> tuple[ExecRow, list[str]]:
    """The exec of a submission, made now or when it came with its key before; what its submitter may not have meant."""
    keyed = None if key is None else Keyed(user.name, key, digest(args, sig_name, upload))
    with backend.submission_keys.claimed(keyed) as row:
        return (row, []) if row else _accept(backend, user, args, upload, sig_name, keyed)


def _accept(  # noqa: PLR0917
    backend: Backend, user: Caller, args: str | None, upload: Upload, sig_name: str | None, keyed: Keyed | None
) -> tuple[ExecRow, list[str]]:
    settings, paths = backend.settings, backend.settings.paths
    asked = words.read(args, upload.data)
    find = partial(backend.connections.find, user=user.name, admin=user.admin)
    data = data_of(asked, backend.data_roots(user), find)
    spec = check(asked, user.name, data, backend.vault.seal_text)
    if spec.submit_user not in ("", user.name):
        administrator(user, "submits for others (--submit-user)")
    targets = forwarding.targets(asked.line)
    quotas, size = settings.quotas, sum(path.stat().st_size for _, path in upload.files)

    def allow(connection: Connection) -> None:
        if quotas.limit_users:
            check_user(connection, user.name, quotas, backend.sizes.of, size)

    row = accept(
        replace(spec, sig_name=sig_name or None),
        upload,
        shown_args=asked.shown,
        data_source=data.shown or None,
        sealed=backend.connections.sealed(data.secrets),
        targets=targets,
        home=paths,
        database=backend.database,
        limits=settings.limits,
        allow=allow,
        keyed=keyed,
    )
    if targets is not None:
        backend.forwarding.add(row.id)
    backend.sizes.took(row.id, size)
    return row, [*data.notes, *([] if joined(backend.paths(row).data_folders(row.job)) is not None else [_NOT_JOINED])]


async def _drain(body: AsyncIterator[bytes]) -> None:
    """Read what the client still sends."""

    async def rest() -> None:
        async for _ in body:
            pass

    try:
        await asyncio.wait_for(rest(), _DRAIN)
    except (asyncio.TimeoutError, ClientDisconnect, RuntimeError):
        return
