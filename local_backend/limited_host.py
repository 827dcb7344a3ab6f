"""The process that forks for each work on untrusted input. limited_work.py starts it.

Starting an interpreter for each archive would take ten times as long as unpacking a small folder. The process holds
nothing of the server but the socket for requests. It ends when the socket closes, or when no request arrives for a
while.

A request is one line: `MODULE:FUNCTION`, a blank, and [arguments, limits, seconds] as JSON; a descriptor for the result
comes with it, and descriptors of the files that the function gets before its arguments. One byte answers the request
when a process has started on it. The result is what the function returns, as JSON. A missing result means that the
function failed, or that the process was killed, by its limits or by its alarm.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

#: Seconds without a request after which the process ends, to free its memory.
IDLE = 60
#: Maximum bytes of one read from the socket.
LONGEST = 1 << 16


def main() -> None:
    """Serve requests on the socket that is the standard input."""
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps ended children
    with socket.socket(fileno=0) as asked:
        asked.settimeout(IDLE)
        while True:
            try:
                line, descriptors = _request(asked)
            except (OSError, EOFError):
                return
            place, _, rest = line.partition(b" ")
            with suppress(ImportError):  # the child meets the error again, and gives no result
                importlib.import_module(place.decode().partition(":")[0])  # once, for all children
            if os.fork() == 0:
                _serve(place.decode(), rest, *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            asked.sendall(b"+")


def _request(asked: socket.socket) -> tuple[bytes, list[int]]:
    """Return a request, and the descriptors that came with it. Raises EOFError when the socket is closed."""
    pieces: list[bytes] = []
    descriptors: list[int] = []
    while not (pieces and pieces[-1].endswith(b"\n")):
        piece, more, _, _ = socket.recv_fds(asked, LONGEST, 4)
        if not piece:
            raise EOFError
        pieces.append(piece)
        descriptors += more
    return b"".join(pieces), descriptors


def _serve(place: str, rest: bytes, result: int, *files: int) -> NoReturn:
    """Call the function in this child process, and end the process."""
    try:
        arguments, limits, patience = json.loads(rest)
        signal.alarm(patience)  # kills this process, whatever it does
        limit(limits)
        module, _, function = place.partition(":")
        found = getattr(importlib.import_module(module), function)(*files, *arguments)
        text = json.dumps(found).encode()
        while text:
            text = text[os.write(result, text) :]
    finally:
        os._exit(0)


def limit(limits: Mapping[str, int]) -> None:
    """Set limits that the kernel enforces. Where a system lacks one, the others and the alarm remain."""
    for name, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, limits["seconds"]),
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_FSIZE, limits["bytes"]),
        (resource.RLIMIT_NOFILE, 64),
    ):
        _, hard = resource.getrlimit(name)
        wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(name, (wanted, wanted))
        except (ValueError, OSError):
            continue
