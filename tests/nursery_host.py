"""A process that has imported PyTorch and forks the nurseries of servers; `commands` starts it.

Everything that a nursery does after its imports is the product's own code.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import fork_host

from local_backend.runtime import nursery


class Run(BaseException):
    """Raised in a forked child: leave the host, and be a nursery."""


def begin(request: dict[str, Any], descriptors: list[int]) -> None:
    """In a forked child: take over environment, standard streams and the socket to the server."""
    *streams, control = descriptors
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["folder"])
    sys.argv[:] = ["-c", str(control)]
    raise Run


def main() -> None:
    """Import what a nursery imports, then fork a nursery for every request."""
    del sys.path[0]  # the programs of jobs find no module of the tests
    nursery._preload()
    try:
        fork_host.serve(begin)
    except Run:
        pass
    else:
        return
    nursery.main()


if __name__ == "__main__":
    main()
