"""The submitted files of an exec: all of them, small ones with their text; or one by one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from local_backend.errors import NotFound
from local_backend.services.access import Caller
from local_backend.services.execs import ExecService
from local_backend.submit import manifest

#: Maximum bytes of one text, of all texts of an answer, and of all files that are read for an answer.
LONGEST_TEXT, MOST_TEXT, MOST_READ = 64 << 10, 2 << 20, 256 << 20
#: Maximum bytes of a file that is shown alone.
LONGEST = 512 << 10
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
class ShownFile:
    """A submitted file: its present size, and its text; None if it is long or no text."""

    path: str
    size: int
    text: str | None


@dataclass(frozen=True)
class CodeService:
    """Reads the submitted files of execs."""

    execs: ExecService

    def listed(
        self, caller: Caller, exec_id: str, reader: CodeReader | None = None, only: str | None = None
    ) -> tuple[Sequence[ListedFile], bool]:
        """Return the submitted files that still exist, and whether these are all. Paths are relative to the folder that
        the program runs in. With `only`, return no other file than this one. Raises NotFound (`exec.not_found`)."""
        row = self.execs.find(caller, exec_id)
        paths = self.execs.paths(row)
        names, complete = manifest.read(self.execs.base.settings.paths, row)
        model_dir = row.workload.program.model_dir
        reader, folder = reader or CodeReader(), f"{model_dir}/" if model_dir else ""
        files = []
        for name in names:
            path = _seen_from(folder, name)
            file = paths.opened(paths.submitted / name) if only in (None, path) else None
            if file is not None:
                with file:
                    files.append(reader.read(path, file))
        return files, complete

    def names(self, caller: Caller, exec_id: str) -> tuple[list[str], bool]:
        """Return the paths of the submitted files that UTF-8 can represent, and whether these are all. Raises NotFound
        (`exec.not_found`)."""
        row = self.execs.find(caller, exec_id)
        names, complete = manifest.read(self.execs.base.settings.paths, row)
        shown = [name for name in names if _is_text(name)]
        return shown, complete and len(shown) == len(names)

    def file(self, caller: Caller, exec_id: str, path: str) -> ShownFile:
        """Return the present content of a submitted file. Raises NotFound (`exec.not_found`, `exec.no_file`)."""
        names, _ = self.names(caller, exec_id)
        paths = self.execs.paths(self.execs.find(caller, exec_id))
        file = paths.opened(paths.submitted / path) if path in names else None
        if file is None:
            raise NotFound("exec.no_file", f"{exec_id} was submitted without a file {path[:200]!r}, or the program has "
                                           "removed it")
        with file:
            size = os.fstat(file.fileno()).st_size
            content = file.read(LONGEST + 1)
        return ShownFile(path, size, _text(content) if len(content) <= LONGEST else None)


class CodeReader:
    """Reads files until the limits of one answer are reached: bytes of texts, and bytes of files."""

    def __init__(self, texts: int | None = None, most: int | None = None) -> None:
        """The limits are MOST_TEXT and MOST_READ if not given."""
        self._texts = MOST_TEXT if texts is None else texts
        self._bytes = MOST_READ if most is None else most

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
        text = _text(content) if len(content) <= self._texts else None
        self._texts -= 0 if text is None else len(content)
        return text


def _seen_from(folder: str, name: str) -> str:
    """Return the path of a file as its program would write it, with bytes that are not UTF-8 replaced."""
    path = name.removeprefix(folder) if name.startswith(folder) else f"../{name}"
    return os.fsencode(path).decode("utf-8", "replace")


def _text(content: bytes) -> str | None:
    """Return the content of a file as text, None if it is none."""
    if b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _is_text(name: str) -> bool:
    try:
        return name.isprintable() and bool(name.encode())
    except UnicodeEncodeError:
        return False
