"""A look at data before it is submitted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body

from dlicmd.contract import wire
from dlicmd.contract.data_sources import STREAM
from local_backend.api.as_json import JsonAnswer
from local_backend.api.backend import Backend, TheBackend, TheUser
from local_backend.api.bodies import JsonRoute
from local_backend.api.caller import Caller
from local_backend.api.errors import ApiError
from local_backend.data.asked import understand
from local_backend.data.errors import DataError
from local_backend.data.gauge import shown
from local_backend.data.previewer import Wish
from local_backend.data.shards import TableLimits
from local_backend.data.tester import hidden
from local_backend.jobspec import Source
from local_backend.sources.volumes import cache_for

router = APIRouter(tags=["data"], route_class=JsonRoute)

Written = Annotated[Any, Body()]
#: Seconds that a look at one source may take.
PATIENCE = 60.0
_MOST = 10
#: Each is a process.
_looks = threading.BoundedSemaphore(4)


@router.post(wire.DATA_PREVIEW, response_model=list[dict[str, Any]])
def preview(backend: TheBackend, user: TheUser, body: Written = None) -> JsonAnswer:
    """What the data sources of {"dataSource": [...]} have, each: `ok`, or why not in `message`; `files` and `bytes`,
    `schema`, `rowCount` and the first `rows` of a table or file. Nothing is kept."""
    sources = _wanted(body)
    if not _looks.acquire(blocking=False):
        raise ApiError(429, "Others look at data at this moment; try again in a while")
    try:
        find = partial(backend.connections.find, user=user.name, admin=user.admin)
        asked = understand(sources, backend.data_roots(user), find, typed=True)
        _check_count(len(asked.sources))
        return JsonAnswer([_look(backend, user, source, asked.secrets.get(number, {}))
                           for number, source in enumerate(asked.sources, 1)])
    except DataError as problem:
        raise ApiError(400, str(problem)) from None
    finally:
        _looks.release()


def _wanted(body: Any) -> list[Any]:
    sources = body.get(wire.DATA_SOURCE) if isinstance(body, dict) else None
    if not isinstance(sources, list):
        raise ApiError(400, f'The body is no JSON object with a list "{wire.DATA_SOURCE}" of data sources')
    if not sources:
        raise ApiError(400, f"The list of data sources is empty; name 1 to {_MOST} to look at")
    _check_count(len(sources))
    return sources


def _check_count(count: int) -> None:
    """Raises ApiError for more than are looked at in one go; each path on this machine counts."""
    if count > _MOST:
        raise ApiError(400, f"These are {count} data sources, and {_MOST} are looked at in one go; look at them in "
                            "several (a submission may have more)")


def _look(backend: Backend, user: Caller, source: Source, secrets: Mapping[str, str]) -> dict[str, Any]:
    told = {wire.NAME: source.name, wire.TYPE: source.type, "access": source.access}
    if not source.fetched and not source.path:
        absent = f"there is no DLI_DATA_FS, {backend.settings.data_fs}: DATA_DIR would be empty"
        return told | {wire.OK: False, wire.MESSAGE: absent}
    if not source.fetched:
        roots = backend.data_roots(user)
        wish = Wish(source.path, closed=list(roots.closed.values()), kept=roots.kept)
        return told | {"path": source.path} | _asked_for(wish)
    connection = backend.connections.of_source(source, secrets, user.name, user.admin)
    found = _asked_for(Wish("", source.kind, source.location, dict(connection.values), source.access,
                            loopback=backend.settings.embedded))
    if wire.MESSAGE in found:
        found[wire.MESSAGE] = hidden(found[wire.MESSAGE], connection)
    return told | {"kind": source.kind} | found | _room(backend, source, found)


def _room(backend: Backend, source: Source, found: Mapping[str, Any]) -> dict[str, Any]:
    """Whether it could be put down here: a job with data that cannot would end ERROR."""
    size, settings = found.get("bytes") or 0, backend.settings
    if not found[wire.OK] or source.access == STREAM:
        return {}
    if "files" not in found:
        rows = None if found.get("rowCountEstimated") else found.get("rowCount")
        problem = TableLimits(settings.data_rows).exceeded(rows or 0)
        return {} if problem is None else {wire.OK: False, wire.MESSAGE: problem}
    cache = cache_for(settings, source.target)
    free = _free(cache)
    most = min(settings.cache_bytes, free)
    if size <= most:
        return {}
    what = f"the disk of the cache {cache} has room for" if most == free else "the cache may hold"
    return {wire.OK: False, wire.MESSAGE: f"it has {shown(size)}, and {what} {shown(most)}"}


def _free(folder: Path) -> int:
    """Bytes that are free on the disk of a folder, which may not be there yet."""
    return shutil.disk_usage(next(one for one in (folder, *folder.parents) if os.path.exists(one))).free


def _asked_for(wish: Wish) -> dict[str, Any]:
    """What the previewer finds, in a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "local_backend.data.previewer"], input=wish.to_json().encode(), capture_output=True,
            timeout=PATIENCE, check=False, start_new_session=True, cwd="/",
        )
        found: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {wire.OK: False, wire.MESSAGE: f"its server does not answer within {PATIENCE:.0f} seconds"}
    except ValueError:
        return {wire.OK: False, wire.MESSAGE: f"the look at it ended without a word (exit code {done.returncode})"}
    return found
