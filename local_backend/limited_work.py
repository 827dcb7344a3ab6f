"""Calls functions on untrusted input in processes of their own, each with limits and a deadline (limited_host.py).

A regular expression, a parser or a decompressor can need hours or all memory for an input of a few bytes. In the server
it would also hold the lock of the interpreter, so that no other call is computed.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import close, path, pipe
from pathlib import Path
from typing import Any

from dlicmd import contract

#: Isolated and without site: Python starts in a few milliseconds, and imports nothing from the environment. The folders
#: of the server's modules come last, so that none of them replaces a module of the standard library.
_PROGRAM = "import sys; sys.path += sys.argv[1:]; from local_backend import limited_host; limited_host.main()"
#: Seconds of wall time beyond the CPU limit.
_SLACK = 30


class LimitExceeded(Exception):
    """The function gave no result: it needed too much time or memory, or it failed."""


@dataclass(frozen=True)
class WorkLimits:
    """Limits of a process: seconds of CPU time, bytes of memory, and bytes of a file that it writes."""

    seconds: int
    memory: int
    bytes: int = 0


class _Host:
    """The process that forks for every call (limited_host.py). Started when needed, and again after it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def ask(self, request: bytes, files: Sequence[int]) -> int:
        """Have a function called, which gets these open files. Return a descriptor from which the caller reads the
        result. Raises OSError."""
        result, told = pipe()
        try:
            with self._lock:
                if not self._asked(request, [told, *files]):
                    self._restart()
                    if not self._asked(request, [told, *files]):
                        raise OSError("the process for work with limits does not respond")
        except BaseException:
            close(result)
            raise
        finally:
            close(told)
        return result

    def _asked(self, request: bytes, descriptors: Sequence[int]) -> bool:
        """Send the request. Return whether a process has started to work on it."""
        if self._socket is None:
            return False
        try:
            sent = socket.send_fds(self._socket, [request], descriptors)
            self._socket.sendall(request[sent:])
            return self._socket.recv(1) == b"+"
        except OSError:
            return False

    def _restart(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM, *_folders()]
        with theirs:
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        self._socket = ours


_host = _Host()


def call(
    function: str, arguments: Sequence[Any], limits: WorkLimits, slack: int = _SLACK, file: int | None = None
) -> Any:
    """Return the result of a function (`MODULE:NAME`), called in another process. Arguments and result are JSON. With
    an open `file`, a descriptor of it is the first argument. `slack` are the seconds of wall time that the function may
    need beyond its CPU time.

    Raises LimitExceeded, and OSError if no process can be started.
    """
    request = json.dumps([arguments, asdict(limits), limits.seconds + slack])
    with open(_host.ask(f"{function} {request}\n".encode(), [] if file is None else [file]), "rb") as told:
        text = told.read()
    try:
        return json.loads(text)
    except ValueError:
        raise LimitExceeded(f"{function} gave no result") from None


def _folders() -> list[str]:
    """Return the folders that the modules of the server come from."""
    found = [str(Path(__file__).absolute().parents[1]), str(Path(str(contract.__file__)).absolute().parents[2])]
    return list(dict.fromkeys([*found, *(one for one in sys.path if path.isabs(one))]))
