"""The submitted files of an exec, small ones with their text."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from local_backend.services.access import Caller
from local_backend.services.execs import ExecService
from local_backend.submit import manifest

#: Maximum bytes of one text, of all texts of an answer, and of all files that are read for an answer.
LONGEST_TEXT, MOST_TEXT, MOST_READ = 64 << 10, 2 << 20, 256 << 20
_CHUNK = 1 << 20


@dataclass(frozen=True)
class ListedFile:
    """A submitted file with its present content. `sha256` is None if the file is too large to read, and `text` if it is
    large or not UTF-8."""

    path: str
    size: int
    sha256: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class CodeListing:
    """Lists the submitted files of execs."""

    execs: ExecService

    def of(self, caller: Caller, exec_id: str) -> tuple[Sequence[ListedFile], bool]:
        """Return the submitted files that still exist, and whether these are all. Paths are relative to the folder that
        the program runs in. Raises NotFound (`exec.not_found`)."""
        row = self.execs.find(caller, exec_id)
        paths = self.execs.paths(row)
        names, complete = manifest.read(self.execs.base.settings.paths, row)
        model_dir = row.workload.program.model_dir
        reader, folder = CodeReader(), f"{model_dir}/" if model_dir else ""
        files = []
        for name in names:
            file = paths.opened(paths.submitted / name)
            if file is not None:
                with file:
                    files.append(reader.read(_seen_from(folder, name), file))
        return files, complete


def _seen_from(folder: str, name: str) -> str:
    """Return the path of a file as its program would write it, with bytes that are not UTF-8 replaced."""
    path = name.removeprefix(folder) if name.startswith(folder) else f"../{name}"
    return os.fsencode(path).decode("utf-8", "replace")


class CodeReader:
    """Reads files until the limits of one answer are reached."""

    def __init__(self) -> None:
        self._texts, self._bytes = MOST_TEXT, MOST_READ

    def read(self, path: str, file: BinaryIO) -> ListedFile:
        """Return a file with its checksum and text as far as the limits allow."""
        size = os.fstat(file.fileno()).st_size
        if size > self._bytes:
            return ListedFile(path, size)
        self._bytes -= size
        start = file.read(min(size, LONGEST_TEXT))
        seen = hashlib.sha256(start)
        left = size - len(start)
        while left > 0 and (chunk := file.read(min(_CHUNK, left))):
            seen.update(chunk)
            left -= len(chunk)
        return ListedFile(path, size, seen.hexdigest(), self._text(start) if len(start) == size else None)

    def _text(self, content: bytes) -> str | None:
        if b"\0" in content or len(content) > self._texts:
            return None
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return None
        self._texts -= len(content)
        return text
