"""`--dry-run`: show the request of a submission without sending it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from dlicmd.console import inert
from dlicmd.contract import wire
from dlicmd.contract.argv import join_args
from dlicmd.contract.secret import masked_sources, masked_words
from dlicmd.errors import Unreachable
from dlicmd.render import emit, emit_value
from dlicmd.rest.body import FilePart
from dlicmd.rest.transport import Request
from dlicmd.session import Session
from dlicmd.submit import Upload, prepared

_CHUNK = 2**20
TOKEN_HEADER = "Authorization"


def show_request(session: Session) -> None:
    """Print the request that a submission would send, without its token and other secrets.

    The command asks the server for its extensions, as a submission does, but never starts the local backend.
    """
    with prepared(session, _extensions) as upload:
        found = _described(session, upload)
    if session.output.is_data:
        emit_value(found, session.output)
    else:
        emit(inert(_text(found)))


def _extensions(session: Session) -> frozenset[str]:
    try:
        return session.client.extensions()
    except Unreachable:
        if session.line.text("--rest-host") is not None:
            raise
        return wire.EMBEDDED_EXTENSIONS


def _described(session: Session, upload: Upload) -> dict[str, Any]:
    """Return the request as JSON. Its secrets are masked. The lengths are those of the real request."""
    real = session.client.submission(join_args(upload.sent), upload.body())
    masked = masked_words(upload.sent)
    data = masked_sources({key: masked if key == wire.ARGV else value for key, value in upload.data.items()})
    return {
        "method": real.method,
        "path": session.client.submission(join_args(masked)).target.replace("%2A%2A%2A", "***"),
        "headers": _headers(real),
        "parts": [_part(part) for part in upload.parts],
        "data": data or None,
    }


def _headers(request: Request) -> dict[str, str]:
    length = {"Content-Length": str(len(request.body or b""))}
    return {name: value for name, value in {**request.headers, **length}.items() if name != TOKEN_HEADER}


def _part(part: FilePart) -> dict[str, Any]:
    """Return the description of a file of the upload, with its SHA-256 in hexadecimal digits."""
    digest = hashlib.sha256()
    while chunk := part.file.read(_CHUNK):
        digest.update(chunk)
    return {"name": part.name, "filename": part.filename, "size": part.size, "sha256": digest.hexdigest()}


def _text(found: dict[str, Any]) -> str:
    lines = [f"{found['method']} {found['path']}", *(f"{name}: {value}" for name, value in found["headers"].items())]
    for part in found["parts"]:
        lines += ["", f"part {part['name']}: {part['filename']}, {part['size']} bytes, sha256 {part['sha256']}"]
    if found["data"] is not None:
        lines += ["", f"part {wire.PART_DATA}: {json.dumps(found['data'], indent=2)}"]
    return "\n".join(lines)
