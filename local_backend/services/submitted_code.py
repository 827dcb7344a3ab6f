"""The submitted files of a run, one by one."""

from __future__ import annotations

import os
from dataclasses import dataclass

from local_backend.errors import NotFound
from local_backend.services.access import Caller
from local_backend.services.execs import ExecService
from local_backend.submit import manifest

#: Maximum bytes of a file that is shown.
LONGEST = 512 << 10


@dataclass(frozen=True)
class ShownFile:
    """A submitted file: its present size, and its text; None if it is long or no text."""

    path: str
    size: int
    text: str | None


@dataclass(frozen=True)
class CodeService:
    """Reads submitted files."""

    execs: ExecService

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
        return ShownFile(path, size, _text(content))


def _text(content: bytes) -> str | None:
    if len(content) > LONGEST or b"\0" in content:
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
