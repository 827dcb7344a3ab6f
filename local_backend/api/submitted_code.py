"""GET /execs/{id}/code: the submitted files of an exec, small ones with their text."""

from __future__ import annotations

import hashlib
import os
from typing import BinaryIO

from fastapi import APIRouter

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import OWN_EXECS, about
from local_backend.api.models.execs import Code, CodeFile, Content
from local_backend.api.route import Route
from local_backend.services.load import READING
from local_backend.submit import manifest

router = APIRouter(tags=["execs"], route_class=Route)

#: Maximum bytes of one text, of all texts of an answer, and of all files that are read for an answer.
LONGEST_TEXT, MOST_TEXT, MOST_READ = 64 << 10, 2 << 20, 256 << 20
_CHUNK = 1 << 20


@router.get(wire.EXECS + "/{exec_id}/code")
@about(OWN_EXECS, extension=wire.EXT_CODE, errors={400: "exec.not_found"})
@bulk(READING)
def code(services: TheServices, caller: TheCaller, exec_id: str) -> JsonAnswer[Code]:
    """Return the submitted files with their present content. Each of `files` has a `path` (relative to the folder
    that the program runs in), `bytes`, `sha256` (absent if the file is too large to read), and `text` if it is small
    and UTF-8. If `complete` is false, there are more files. Files that were removed since the submission are left
    out."""
    row = services.execs.find(caller, exec_id)
    paths = services.execs.paths(row)
    names, complete = manifest.read(services.base.settings.paths, row)
    model_dir = row.workload.program.model_dir
    reader, folder = CodeReader(), f"{model_dir}/" if model_dir else ""
    files: list[CodeFile] = []
    for name in names:
        file = paths.opened(paths.submitted / name)
        if file is not None:
            with file:
                files.append({"path": _seen_from(folder, name), **reader.read(file)})
    return JsonAnswer({"files": files, "complete": complete})


def _seen_from(folder: str, name: str) -> str:
    """Return the path of a file as its program would write it, with bytes that are not UTF-8 replaced."""
    path = name.removeprefix(folder) if name.startswith(folder) else f"../{name}"
    return os.fsencode(path).decode("utf-8", "replace")


class CodeReader:
    """Reads files until the limits of one answer are reached."""

    def __init__(self) -> None:
        self._texts, self._bytes = MOST_TEXT, MOST_READ

    def read(self, file: BinaryIO) -> Content:
        """Return the size of a file, and its checksum and text as far as the limits allow."""
        size = os.fstat(file.fileno()).st_size
        if size > self._bytes:
            return {"bytes": size}
        self._bytes -= size
        start = file.read(min(size, LONGEST_TEXT))
        seen = hashlib.sha256(start)
        left = size - len(start)
        while left > 0 and (chunk := file.read(min(_CHUNK, left))):
            seen.update(chunk)
            left -= len(chunk)
        found: Content = {"bytes": size, "sha256": seen.hexdigest()}
        text = self._text(start) if len(start) == size else None
        return found if text is None else {**found, "text": text}

    def _text(self, content: bytes) -> str | None:
        if b"\0" in content or len(content) > self._texts:
            return None
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return None
        self._texts -= len(content)
        return text
