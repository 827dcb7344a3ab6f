"""A host process that imports the libraries of the client and forks commands; `commands` starts it."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import time
from typing import Any

import fork_host

#: The product's own modules are not listed: some of them read the environment when they are imported.
LIBRARIES = (
    "click", "concurrent.futures", "http.client", "json", "jsonschema", "logging", "pathspec", "platformdirs",
    "requests", "rich.console", "rich.live", "rich.progress", "rich.table", "rich.text", "rich.tree", "ssl",
    "subprocess", "tarfile", "tempfile", "urllib.request", "uuid", "yaml", "zipfile",
)


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
    """Import the libraries, then fork a child for every request."""
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.collect()
    gc.freeze()
    try:
        fork_host.serve(begin)
    except Run as found:
        program = found.program
    else:
        return
    sys.path[0] = ""
    sys.exit(importlib.import_module(program).main())


if __name__ == "__main__":
    main()
