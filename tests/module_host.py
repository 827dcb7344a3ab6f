"""A process that has imported a module of the product and forks processes of it, in place of new interpreters.

`forking.fork_modules` uses it. Everything that such a process does after its imports is the product's own code.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from typing import Any

import fork_host

from local_backend.runtime import nursery


class Run(BaseException):
    """Raised in a forked child: leave the host, and run the module."""


def begin(request: dict[str, Any], descriptors: list[int]) -> None:
    """In a forked child: take over environment, arguments, standard streams and the socket to the server."""
    *streams, server = descriptors
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["folder"])
    sys.argv[:] = ["-c", *request["words"], str(server)]
    raise Run


def main() -> None:
    """Import the module that the last argument names, then fork a process of it for every request."""
    del sys.path[0]  # the programs of jobs find no module of the tests
    module = importlib.import_module(sys.argv[-1])
    if module is nursery:
        nursery._preload()
    try:
        fork_host.serve(begin)
    except Run:
        pass
    else:
        return
    module.main()


if __name__ == "__main__":
    main()
