"""Forks interpreters that have torch imported, as the backend's nursery does, and says how they end.

`warm_script.Host` starts it, with its end of a socket; it ends when the other one closes.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

from local_backend.elastic import PRELOAD
from local_backend.runtime.program import Become, Interpreter, Script, follow
from local_backend.runtime.tasks import close_all_but, reset_signals

#: Process id → where its status goes.
Living = dict[int, int]


def serve() -> None:
    """Get ready, then fork for every request, pass signals on, and report every end."""
    control = int(sys.argv[1])
    base_path = tuple(entry for entry in sys.path if entry != str(Path(__file__).parent))
    gc.disable()
    for module in PRELOAD:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    link = socket.socket(fileno=control)
    try:
        _answer(link, reader, base_path)
    finally:
        link.detach()  # in a forked child its number is another file's


def _answer(link: socket.socket, ended: int, base_path: tuple[str, ...]) -> None:
    """Until the other end closes."""
    living: Living = {}
    while True:
        ready, _, _ = select.select([link, ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _reap(living)
        if link in ready:
            data, descriptors, _, _ = socket.recv_fds(link, 1 << 20, 2)
            if not data:
                return
            _obey(json.loads(data), descriptors, living, base_path)


def _obey(request: dict, descriptors: list[int], living: Living, base_path: tuple[str, ...]) -> None:
    """One request: start a script, or send one that lives a signal."""
    if "signal" in request:
        if request["pid"] in living:
            os.kill(request["pid"], request["signal"])
        return
    keep, status = descriptors
    child = os.fork()
    if not child:
        _become(request, keep, base_path)
    os.close(keep)
    living[child] = status
    os.write(status, b"%d\n" % child)


def _become(request: dict, keep: int, base_path: tuple[str, ...]) -> None:
    """In a forked child: leave for the script."""
    close_all_but(keep)
    reset_signals()
    os.set_inheritable(keep, True)
    for number, path in ((1, request["stdout"]), (2, request["stderr"])):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    environment = request["environment"] | {"DLI_RUNNER_FD": str(keep)}
    raise Become(Script(Interpreter(environment, base_path), request["main"], tuple(request["arguments"])))


def _reap(living: Living) -> None:
    """Report all that have ended."""
    while living:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        pipe = living.pop(pid)
        os.write(pipe, b"%d\n" % os.waitstatus_to_exitcode(status))
        os.close(pipe)


if __name__ == "__main__":
    follow(serve)
