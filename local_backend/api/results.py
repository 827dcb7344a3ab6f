"""GET /execs/{id}/result: what the program stored below SAVED_MODEL_DIR, as a zip with a checksum."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from dlicmd.contract import wire
from local_backend.api.backend import TheBackend, TheUser
from local_backend.api.errors import ApiError, error_response
from local_backend.api.textlog import open_log

router = APIRouter(tags=["execs"])

_CHUNK = 1 << 20
#: Entries carry no time of their own, so that equal content is an equal zip.
_EPOCH = (1980, 1, 1, 0, 0, 0)


@router.get(wire.EXECS + "/{exec_id}/result")
def result(backend: TheBackend, user: TheUser, exec_id: str) -> Response:
    """The trained model. Of a running exec, what is there now."""
    row = backend.exec_row(exec_id, user)
    paths = backend.paths(row)
    files = sorted(model_files(paths.model))
    if not files:
        state = f"it is {row.state}"
        raise ApiError(400, f"Exec {row.id} has stored nothing below its model folder (SAVED_MODEL_DIR); {state}")
    try:
        # Without a name from the start: nothing of it is left, however this ends.
        archive = tempfile.TemporaryFile(dir=backend.settings.paths.incoming)  # noqa: SIM115
        write_zip(archive, paths.model, files)
        length, digest = _measure(archive)
    except OSError as problem:
        return error_response(507, f"The result could not be packed ({problem.strerror})")
    headers = {
        # Scripts cut this header apart at the semicolons: no spaces, no quotes, size last.
        "Content-Disposition": f"attachment;filename={result_name(row.id, digest)};size={length}",
        "Content-Length": str(length),
        wire.DIGEST_HEADER: f"sha-256=:{base64.b64encode(digest).decode()}:",
    }
    return StreamingResponse(_stream(archive), media_type="application/zip", headers=headers)


def result_name(exec_id: str, digest: bytes) -> str:
    """`dlpd-model-<16 digits>-<9 digits><execId>-result.zip`; the digits follow from the content."""
    number = int.from_bytes(digest, "big")
    return f"dlpd-model-{number % 10**16:016d}-{number // 10**16 % 10**9:09d}{exec_id}-result.zip"


def model_files(folder: Path) -> Iterator[str]:
    """Regular files below a folder, relative to it; links are not followed."""
    for base, folders, names in os.walk(folder):
        folders.sort()
        for name in names:
            path = os.path.join(base, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                yield os.path.relpath(path, folder)


def write_zip(archive: IO[bytes], folder: Path, files: list[str]) -> None:
    """Write the files as entries `model/...`. One that went away in the meantime is left out."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target:
        for name in files:
            file = open_log(folder / name)
            if file is None:
                continue
            with file:
                entry = zipfile.ZipInfo(f"{folder.name}/{name}", _EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                with target.open(entry, "w", force_zip64=True) as sink:
                    while chunk := file.read(_CHUNK):
                        sink.write(chunk)


def _measure(archive: IO[bytes]) -> tuple[int, bytes]:
    """Length and SHA-256."""
    archive.seek(0)
    sha = hashlib.sha256()
    while chunk := archive.read(_CHUNK):
        sha.update(chunk)
    return archive.tell(), sha.digest()


def _stream(archive: IO[bytes]) -> Iterator[bytes]:
    with archive:
        archive.seek(0)
        while chunk := archive.read(_CHUNK):
            yield chunk
