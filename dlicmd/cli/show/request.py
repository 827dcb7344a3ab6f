"""The request of a submission as a dry run shows it: without its token and other secrets."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from dlicmd.contract import wire
from dlicmd.contract.sizes import show_size
from dlicmd.sdk.messages import file_count
from dlicmd.sdk.selection import Selection
from dlicmd.sdk.transport import FilePart, Request

_CHUNK = 2**20
#: The most files that a dry run lists as text.
_MOST_LISTED = 20
TOKEN_HEADER = "Authorization"


def request_headers(request: Request) -> dict[str, str]:
    """Return the headers of a request, without its token."""
    length = {"Content-Length": str(len(request.body or b""))}
    return {name: value for name, value in {**request.headers, **length}.items() if name != TOKEN_HEADER}


def file_part(part: FilePart) -> dict[str, Any]:
    """Return the description of a file of the upload, with its SHA-256 in hexadecimal digits."""
    digest = hashlib.sha256()
    while chunk := part.file.read(_CHUNK):
        digest.update(chunk)
    return {"name": part.name, "filename": part.filename, "size": part.size, "sha256": digest.hexdigest()}


def model_folder(selection: Selection, is_staged: bool) -> dict[str, Any]:
    """Return the files of the model folder that are sent, and those that are left out."""
    return {
        "path": os.path.abspath(selection.folder),
        "transfer": "copy" if is_staged else "upload",
        "count": len(selection.files),
        "size": selection.size,
        "files": [{"path": entry.name, "size": entry.size} for entry in selection.files],
        "leftOut": [{"path": one.name, "why": one.why} for one in (*selection.left_out, *selection.skipped)],
    }


def _folder_text(folder: dict[str, Any]) -> list[str]:
    """Return lines about the model folder: the largest files, and what is left out."""
    files, left_out = sorted(folder["files"], key=lambda file: -file["size"]), folder["leftOut"]
    how = "the local backend gets a copy" if folder["transfer"] == "copy" else "uploaded as an archive"
    lines = ["", f"folder {folder['path']}: {file_count(folder['count'])}, {show_size(folder['size'])}; {how}"]
    lines += [f"{show_size(file['size']):>8}  {file['path']}" for file in files[:_MOST_LISTED]]
    lines += _rest(files, "smaller files")
    lines += ["", "left out:"] if left_out else []
    lines += [f"  {one['path']}: {one['why']}" for one in left_out[:_MOST_LISTED]]
    return lines + _rest(left_out, "more")


def _rest(listed: list[Any], what: str) -> list[str]:
    more = len(listed) - _MOST_LISTED
    return [f"  and {more:,} {what}; -o json lists all"] if more > 0 else []


def request_text(found: dict[str, Any]) -> str:
    """Return a described request for people."""
    lines = [f"{found['method']} {found['path']}", *(f"{name}: {value}" for name, value in found["headers"].items())]
    for part in found["parts"]:
        lines += ["", f"part {part['name']}: {part['filename']}, {part['size']} bytes, sha256 {part['sha256']}"]
    if found["data"] is not None:
        lines += ["", f"part {wire.PART_DATA}: {json.dumps(found['data'], indent=2)}"]
    if found["folder"] is not None:
        lines += _folder_text(found["folder"])
    return "\n".join(lines)
