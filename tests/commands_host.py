"""A host process that imports the libraries of the client and forks commands; `commands` starts it."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import pkgutil
import sys
import time
from typing import Any

import fork_host

import dlicmd.cli
import dlicmd.dlim

_codes: list[int] = []

#: Libraries that the client imports when it needs them. Its own modules read no environment when they are imported.
LIBRARIES = (
    "concurrent.futures", "http.client", "jsonschema", "pathspec", "platformdirs", "requests", "rich.console",
    "rich.live", "rich.progress", "rich.table", "rich.text", "rich.tree", "ssl", "subprocess", "tarfile", "tempfile",
    "urllib.request", "uuid", "yaml", "zipfile", "local_backend.cli",
)


@atexit.register
def _leave() -> None:
    """End a command after all other exit handlers ran, but do not destroy the many modules one by one."""
    if _codes:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_codes[0])


class Run(BaseException):
    """Raised in a forked child: leave the host and run this command."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self.program = program


def begin(request: dict[str, Any], descriptors: list[int]) -> None:
    """In a forked child: take over the arguments, environment and folder of the request."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.setsid()
    import signal

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["folder"])
    sys.argv[:] = ["-c", *map(os.fsdecode, (word.encode("latin-1") for word in request["words"]))]
    raise Run(request["program"])


def main() -> None:
    """Import the modules, then fork a child for every request."""
    own = (module.name for package in (dlicmd.cli, dlicmd.dlim)
           for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))
    for name in (*LIBRARIES, *(name for name in own if not name.endswith("__main__"))):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    try:
        fork_host.serve(begin)
    except Run as found:
        program = found.program
    else:
        return
    sys.path[0] = ""
    try:
        code = importlib.import_module(program).main()
    except SystemExit as ended:
        code = ended.code
    if isinstance(code, int | None):
        _codes.append(code or 0)
    sys.exit(code)


if __name__ == "__main__":
    main()
