"""A backend without its HTTP server, until its input closes. `runtime_support.Host` starts and kills it.

With the arguments of a backend, this process is one. Otherwise it imports the modules of backends, and forks them.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import fork_host
from forking import MODULES, Link, fork_modules

from local_backend.runtime.local_launcher import LocalLauncher
from local_backend.runtime.resizing import ResizeError
from local_backend.runtime.supervisor import Supervisor
from local_backend.settings import Settings
from local_backend.store.database import Database


class Run(BaseException):
    """Raised in a forked child: leave the host, and be a backend with these arguments."""


def begin(request: dict[str, Any], descriptors: list[int]) -> None:
    """In a forked child: take over the environment of the request, and standard input and output."""
    (given, said), links = descriptors[:2], descriptors[2:]
    os.dup2(given, 0)
    os.dup2(said, 1)
    links = [os.dup2(link, number) for number, link in enumerate(links, 3)]
    os.closerange(3 + len(links), os.sysconf("SC_OPEN_MAX"))
    found = {module: Link(socket.socket(fileno=link)) for module, link in zip(MODULES, links, strict=False)}
    fork_modules({module: partial(found.__getitem__, module) for module in found})
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    raise Run(*request["flags"])


def backend(flags: list[str]) -> None:
    """Run a backend until its input closes."""
    home, slots, grace, idle, die, embedded, rested_kept = flags
    folder = Path(home)
    settings = Settings(
        home=folder, data_fs=folder / "data", result_fs=folder / "results", user="ada", slots=int(slots),
        stop_grace=float(grace), nursery_idle=float(idle), die_with_server=die == "True",
        embedded=embedded == "True", rested_kept=int(rested_kept),
    )
    database = Database(settings.paths.database)
    database.open()
    supervisor = Supervisor(settings, database, LocalLauncher(settings))
    supervisor.start()
    print("ready", flush=True)
    for line in sys.stdin:
        match line.split():
            case ["resize", exec_id, count]:
                with suppress(ResizeError):
                    supervisor.resize(exec_id, int(count))
            case ["why", exec_id]:
                reason = supervisor.reason(exec_id)
                print(reason.sentence if reason is not None else "", flush=True)
            case _:
                supervisor.wake()
    supervisor.close()
    database.close()


def main() -> None:
    """Be a backend, or fork backends."""
    if len(sys.argv) > 2:
        backend(sys.argv[1:])
        return
    try:
        fork_host.serve(begin)
    except Run as found:
        backend(list(found.args))


if __name__ == "__main__":
    main()
