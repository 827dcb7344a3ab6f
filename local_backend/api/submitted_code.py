"""GET /execs/{id}/code: the files of a submission, small ones with their text."""

from __future__ import annotations

import hashlib
import os
from typing import Any, BinaryIO

from fastapi import APIRouter

from dlicmd.contract import wire
from local_backend.api.depends import TheCaller, TheServices
from local_backend.submit import manifest

router = APIRouter(tags=["execs"])

#: Bytes of a text that is shown, of all texts of an answer, and of all files that are read for one.
LONGEST_TEXT, MOST_TEXT, MOST_READ = 64 << 10, 2 << 20, 256 << 20
_CHUNK = 1 << 20


@router.get(wire.EXECS + "/{exec_id}/code")
def code(services: TheServices, caller: TheCaller, exec_id: str) -> dict[str, Any]:
    """The files that were submitted, as they are now: `files` with `path` (from where the program runs), `bytes`,
    `sha256` (unless it is too large to be read for that), and `text` of small ones in UTF-8. Without `complete` there
    are more. What has been removed since is left out."""
    row = services.execs.find(caller, exec_id)
    paths = services.execs.paths(row)
    names, complete = manifest.read(paths)
    reader, folder = _Reader(), f"{row.job.model_dir}/" if row.job.model_dir else ""
    files = []
    for name in names:
        file = paths.opened(paths.submitted / name)
        if file is not None:
            with file:
                files.append({wire.PATH: _seen_from(folder, name), **reader.read(file)})
    return {wire.FILES: files, wire.COMPLETE: complete}


def _seen_from(folder: str, name: str) -> str:
    """The name of a file as its program would write it, fit for an answer."""
    path = name.removeprefix(folder) if name.startswith(folder) else f"../{name}"
    return os.fsencode(path).decode("utf-8", "replace")


class _Reader:
    """Reads files until it has read enough for one answer."""

    def __init__(self) -> None:
        self._texts, self._bytes = MOST_TEXT, MOST_READ

    def read(self, file: BinaryIO) -> dict[str, Any]:
        """What is told of a file beside its name."""
        size = os.fstat(file.fileno()).st_size
        if size > self._bytes:
            return {wire.BYTES: size}
        self._bytes -= size
        start = file.read(min(size, LONGEST_TEXT))
        seen = hashlib.sha256(start)
        left = size - len(start)
        while left > 0 and (chunk := file.read(min(_CHUNK, left))):
            seen.update(chunk)
            left -= len(chunk)
        return {wire.BYTES: size, wire.SHA256: seen.hexdigest()} | (self._text(start) if len(start) == size else {})

    def _text(self, content: bytes) -> dict[str, str]:
        if b"\0" in content or len(content) > self._texts:
            return {}
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return {}
        self._texts -= len(content)
        return {wire.TEXT: text}
