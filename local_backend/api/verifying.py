"""POST /execs/{id}/verify: run an exec again for a few steps, with two numbers of workers."""

from __future__ import annotations

import json
import secrets
import shutil
from typing import Any

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection

from dlicmd.contract import wire
from local_backend.api.audited import about
from local_backend.api.backend import TheBackend, TheUser
from local_backend.api.errors import ApiError, answers
from local_backend.api.showing import show
from local_backend.store import exec_secrets
from local_backend.submit.accept import accept
from local_backend.submit.again import packed, to_verify
from local_backend.submit.errors import StorageFailed
from local_backend.submit.quota import check_room, check_user

router = APIRouter(tags=["execs"])


@router.post(wire.EXECS + "/{exec_id}/verify", responses=answers(403))
def verify(
    request: Request, backend: TheBackend, user: TheUser, exec_id: str, steps: int = Query(20, ge=1, le=10**6),
) -> dict[str, Any]:
    """Submit an elastic exec again as a new exec, to verify the first `steps` steps. The new exec computes these steps
    with two numbers of workers and compares them. It ends FINISHED when the results are equal, else ERROR."""
    row = backend.exec_row(exec_id, user)
    if row.creator != user.name:
        raise ApiError(403, f"Only {row.creator} may verify {row.id}")
    spec, shown = to_verify(row, steps)
    paths, quotas = backend.settings.paths, backend.settings.quotas
    folder = paths.incoming / secrets.token_hex(8)
    try:
        folder.mkdir(mode=0o700, parents=True)
        upload = packed(row, backend.paths(row), folder)
        size = sum(path.stat().st_size for _, path in upload.files)
        check_room(paths, quotas, size)

        def allow(connection: Connection) -> None:
            if quotas.limit_users:
                check_user(connection, user.name, quotas, backend.sizes.of, size)

        made = accept(
            spec, upload, shown_args=shown, home=paths, targets=None, limits=backend.settings.limits,
            data_source=None if row.data_source is None else json.loads(row.data_source), database=backend.database,
            sealed=backend.database.read(lambda c: exec_secrets.of(c, row.id)), allow=allow,
        )
    except OSError as problem:
        raise StorageFailed.from_os(problem) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    backend.sizes.took(made.id, size)
    about(request.scope, made.id)
    backend.supervisor.wake()
    return show(backend, made, str(request.base_url))
