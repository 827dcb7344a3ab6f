"""The nursery: a process that has imported torch and forks one runner per request, so that a job starts in
milliseconds.

The nursery is single-threaded. It never runs a tensor operation and never initializes a GPU, because neither survives
a fork. It ends when the server closes its end of the socket.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
import weakref
from pathlib import Path

from local_backend.elastic import PRELOAD
from local_backend.own_process import RUNNER_SCORE, hide, may_be_killed
from local_backend.runtime import runner
from local_backend.runtime.overlay import show_title
from local_backend.runtime.processes import return_memory
from local_backend.runtime.program import Become, follow
from local_backend.runtime.tasks import KERNEL, close_all_but, reset_signals
from local_backend.vault import LIBRARY as OPENS_SECRETS

#: Messages from the nursery to the server, one byte each: ready for requests; the oldest request is done.
READY, FORKED = b"r", b"f"


def serve() -> None:
    """Preload, send `READY`, then fork one runner per request and send `FORKED` after each. A request is a JSON line
    with the runner's connection to the server attached (see `run`)."""
    control = int(sys.argv[1])
    close_all_but(control)
    base_path = _base_path()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps forked processes: no zombies
    show_title("dlicmd nursery")
    _preload()
    may_be_killed(RUNNER_SCORE)
    hide()
    link = socket.socket(fileno=control)
    try:
        link.sendall(READY)
        _answer(link, base_path)
    except ConnectionError:
        return  # the server is gone
    finally:
        link.detach()


def _answer(link: socket.socket, base_path: tuple[str, ...]) -> None:
    """Fork once per request until the other end closes."""
    buffer, servers = b"", []
    while True:
        data, attached, _, _ = socket.recv_fds(link, 65536, 16)
        if not data:
            return
        buffer += data
        servers += attached
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            _fork(line, servers.pop(0), base_path)
            link.sendall(FORKED)


def _fork(line: bytes, server: int, base_path: tuple[str, ...]) -> None:
    request = json.loads(line)
    if os.fork():
        os.close(server)
        return
    close_all_but(server)
    reset_signals()
    raise Become(lambda: runner.run(Path(request["job"]), request["attempt"], server, base_path, warm=True))


def _preload() -> None:
    """Import the modules that workers and kernels need, and keep what they contain. Then make the heap as small and as
    shareable as possible."""
    from local_backend.elastic.script import patches  # imports torch, which the server, a user of this module, must not

    gc.disable()
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    for module in (*PRELOAD, KERNEL, OPENS_SECRETS):
        importlib.import_module(module)
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False  # torch unregisters its operators at exit; the end of a process does that, too
    patches.remember()
    gc.collect()
    gc.freeze()
    return_memory()


def _base_path() -> tuple[str, ...]:
    """Return sys.path as a program would find it, without the folder of the program and without PYTHONPATH."""
    given = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    return tuple(entry for entry in sys.path if entry not in given)


def main() -> None:
    """Entry point of the nursery, with the number of its socket as argument."""
    follow(serve)
