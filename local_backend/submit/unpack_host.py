"""The process that has loaded what unpacking needs, and forks for every archive. unpack.py starts it.

Starting an interpreter for each archive would take ten times as long as unpacking a small folder. The process imports
the standard library only. It holds nothing of the server but the socket for requests. It ends when the socket closes,
or when no request arrives for a while.

A request is one line of JSON, [archive, target folder, limits, seconds], with a descriptor for the result. One byte
answers the request when a process has started on it. A result is a line with an exit code of unpacker.py, then its
text. A missing result means that the process was killed, by its limits or by its alarm.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import NoReturn

import unpacker  # type: ignore[import-not-found]  # beside this file, see unpack.py

#: Seconds without a request after which the process ends, to free its memory.
IDLE = 60
#: Maximum bytes of a result, and of one read from the socket.
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
            if os.fork() == 0:
                _serve(line, descriptors[0])
            for descriptor in descriptors:
                os.close(descriptor)
            asked.sendall(b"+")


def _request(asked: socket.socket) -> tuple[bytes, list[int]]:
    """Return a request, and the descriptors that came with it. Raises EOFError when the socket is closed."""
    line = b""
    descriptors: list[int] = []
    while not line.endswith(b"\n"):
        piece, more, _, _ = socket.recv_fds(asked, LONGEST, 4)
        if not piece:
            raise EOFError
        line, descriptors = line + piece, [*descriptors, *more]
    return line, descriptors


def _serve(line: bytes, result: int) -> NoReturn:
    """Unpack one archive in this child process, and end the process."""
    code, text = unpacker.STORAGE, "0"
    try:
        archive, target, limits, patience = json.loads(line)
        signal.alarm(patience)  # kills this process, whatever it does
        unpacker.limit(limits)
        code, text = unpacker.run(archive, target, limits)
    finally:
        os.write(result, f"{code}\n{text}".encode("utf-8", "backslashreplace")[:LONGEST])
        os._exit(0)
