"""GET /execs/{id}/files and /files/content: the files that the program wrote, as a list and one by one."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from typing import BinaryIO

from fastapi import APIRouter, Request
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import Streamed, bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import OWN_EXECS, about
from local_backend.api.models.execs import File, Files
from local_backend.api.objects import utc
from local_backend.api.ranges import DESCRIBED, Part
from local_backend.api.route import Route
from local_backend.errors import StorageFailed
from local_backend.runtime.written import Written
from local_backend.services.load import PACKING

router = APIRouter(tags=["execs"], route_class=Route)

_TYPE = "application/octet-stream"
_CHUNK = 1 << 20
#: Nanoseconds after a change of a file in which the file system may give a further change the same time.
_SETTLED = 10**9
_MOST_DIGESTS = 1000
#: Files of a running exec above this size in bytes have no digest for this time in nanoseconds after a change: each
#: call would read all of a file that grows.
_SMALL, _RECENT = 1 << 24, 60 * 10**9
#: SHA-256 of files, by device, inode, size and times.
_digests: dict[tuple[int, ...], bytes] = {}


@router.get(wire.EXECS + "/{exec_id}/files")
@about(OWN_EXECS, extension=wire.EXT_FILES, errors={400: "exec.not_found", 507: "exec.result_failed"})
@bulk(PACKING)
def files(services: TheServices, caller: TheCaller, exec_id: str) -> JsonAnswer[Files]:
    """Return the files that the program wrote below its working directory and RESULT_DIR, so far for a running exec.
    Submitted files without a change, the output that /log returns, the records of `dlicmd.log`, links, and names that
    are not printable UTF-8 are left out. If `complete` is false, there are more files, or the server may not read a
    folder of the program."""
    try:
        found, complete = services.execs.written(services.execs.find(caller, exec_id)).listed()
    except OSError as problem:
        raise StorageFailed(
            "exec.result_failed", f"The server cannot list the files of {exec_id} ({problem.strerror})") from None
    return JsonAnswer({"files": [_shown(file) for file in found], "complete": complete})


@router.get(wire.EXECS + "/{exec_id}/files/content")
@about(
    OWN_EXECS, extension=wire.EXT_FILES, errors={400: "exec.not_found exec.no_file", 416: "exec.result_range"},
    media=_TYPE, answers={206: "The remaining part"}, headers=DESCRIBED,
)
@bulk(PACKING)
def content(request: Request, services: TheServices, caller: TheCaller, exec_id: str, path: str = "") -> Response:
    """Return one of the files in the list, whole or from a byte on. Of a file that grows, return the bytes that it has
    now. While the exec runs, a large file that changed in the last minute comes without ETag and checksum."""
    row = services.execs.find(caller, exec_id)
    file = services.execs.file(row, path)
    found = os.fstat(file.fileno())
    is_growing = not row.terminal and found.st_size > _SMALL and time.time_ns() - found.st_ctime_ns < _RECENT
    part = Part.of(request.headers, None if is_growing else _digest(file, found), found.st_size)
    if refused := part.refused(request.scope, "The file"):
        file.close()
        return refused
    return Streamed(services.load, _streamed(file, part), part.status, part.headers, _TYPE)


def _shown(file: Written) -> File:
    # Whole numbers: a float loses microseconds.
    seconds, rest = divmod(file.modified, 10**9)
    at = utc(seconds).replace(microsecond=rest // 1000)
    return {
        "path": file.path, "bytes": file.size, "modified": f"{at.isoformat(timespec='microseconds')}Z",
        "where": "code" if file.is_code else "result",
    }


def _digest(file: BinaryIO, found: os.stat_result) -> bytes:
    """Return the SHA-256 of the present content of a file. It is kept for a file that has not changed lately: a call
    for the rest of a file does not read all of the file."""
    key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    known = _digests.get(key)
    if known is not None:
        return known
    seen, left = hashlib.sha256(), found.st_size
    while left > 0 and (chunk := file.read(min(_CHUNK, left))):
        seen.update(chunk)
        left -= len(chunk)
    if time.time_ns() - found.st_ctime_ns > _SETTLED:
        while len(_digests) >= _MOST_DIGESTS:
            _digests.pop(next(iter(_digests)), None)
        _digests[key] = seen.digest()
    return seen.digest()


def _streamed(file: BinaryIO, part: Part) -> Iterator[bytes]:
    with file:
        file.seek(part.first)
        left = part.length - part.first
        while left > 0 and (chunk := file.read(min(_CHUNK, left))):
            left -= len(chunk)
            yield chunk
