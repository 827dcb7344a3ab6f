"""A process that has loaded what unpacking needs, and forks for every archive. Started by unpack.py; standard library.

Starting an interpreter for each archive would take ten times as long as unpacking a small folder. It holds nothing of
the server but the socket on which it is asked; when that closes, or nothing is asked for a while, it ends.

A request is one line of JSON, [archive, target folder, limits, seconds], with a descriptor that the result goes to; a
byte answers once a process is there for it. A result is a line with an exit code of unpacker.py, then its text; one
that is missing means that the process was killed, by its limits or by its alarm.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import NoReturn

import unpacker  # type: ignore[import-not-found]  # beside this file, see unpack.py

#: Seconds without a request after which the memory is given back.
IDLE = 60
#: Bytes of the longest request.
LONGEST = 1 << 16


def main() -> None:
    """Serve on the socket that is the standard input."""
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who unpack
    with socket.socket(fileno=0) as asked:
        asked.settimeout(IDLE)
        while True:
            try:
                line, descriptors = _request(asked)
            except (OSError, EOFError):
                return
            if os.fork() == 0:
                _serve(line, descriptors[0])
            for descriptor in descriptors:
                os.close(descriptor)
            asked.sendall(b"+")


def _request(asked: socket.socket) -> tuple[bytes, list[int]]:
    """A request and what came with it. Raises EOFError when there will be none."""
    line = b""
    descriptors: list[int] = []
    while not line.endswith(b"\n"):
        piece, more, _, _ = socket.recv_fds(asked, LONGEST, 4)
        if not piece:
            raise EOFError
        line, descriptors = line + piece, [*descriptors, *more]
    return line, descriptors


def _serve(line: bytes, result: int) -> NoReturn:
    """Unpack one archive, in a process of its own, and end it."""
    code, text = unpacker.STORAGE, "0"
    try:
        archive, target, limits, patience = json.loads(line)
        signal.alarm(patience)  # kills it whatever it is doing
        unpacker.limit(limits)
        code, text = unpacker.run(archive, target, limits)
    finally:
        os.write(result, f"{code}\n{text}".encode("utf-8", "backslashreplace")[:LONGEST])
        os._exit(0)
