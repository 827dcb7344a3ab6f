"""Unpacks archives (unpacker.py) in processes of their own, each with limits and a deadline."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from local_backend.errors import Invalid, StorageFailed
from local_backend.settings import Limits
from local_backend.submit import unpacker

#: Seconds of wall time beyond the CPU limit, for a slow disk.
_SLACK = 30
#: Isolated and without site: Python starts in a few milliseconds, and imports nothing from the environment. The folder
#: comes last, so that no module beside unpacker.py replaces one of the standard library.
_PROGRAM = "import sys; sys.path.append(sys.argv[1]); import unpack_host; unpack_host.main()"


class _Host:
    """The process that forks for every archive (unpack_host.py). Started when needed, and again after it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def ask(self, request: bytes) -> int:
        """Have an archive unpacked. Return a descriptor from which the caller reads the result. Raises OSError."""
        result, told = os.pipe()
        try:
            with self._lock:
                if not self._asked(request, told):
                    self._restart()
                    if not self._asked(request, told):
                        raise OSError("the process that unpacks archives does not respond")
        except BaseException:
            os.close(result)
            raise
        finally:
            os.close(told)
        return result

    def _asked(self, request: bytes, told: int) -> bool:
        """Send the request. Return whether a process has started to work on it."""
        if self._socket is None:
            return False
        try:
            socket.send_fds(self._socket, [request], [told])
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
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(Path(unpacker.__file__).parent)]
        with theirs:
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        self._socket = ours


_host = _Host()


def unpack(archive: Path, target: Path, limits: Limits) -> None:
    """Unpack `archive` into the existing, empty folder `target`. The content is durable when this returns.

    Files that were written before an error stay: the caller removes the folder.

    Raises:
        Invalid: the archive is refused.
        StorageFailed: the disk is full or refuses writes.
    """
    bounds = {
        "bytes": limits.unpacked_bytes,
        "files": limits.unpacked_files,
        "ratio": limits.unpack_ratio,
        "seconds": limits.unpack_seconds,
        "memory": limits.unpack_memory,
    }
    request = json.dumps([str(archive), str(target), bounds, limits.unpack_seconds + _SLACK])
    try:
        with open(_host.ask(f"{request}\n".encode()), "rb") as told:
            code, _, text = told.read().decode("utf-8", "replace").partition("\n")
    except OSError as problem:
        raise StorageFailed.from_os(problem) from None
    if not code:
        raise _refused(f"unpacking takes more than {limits.unpack_seconds} seconds or too much memory")
    if int(code) == unpacker.REFUSED:
        raise _refused(text)
    if int(code) != unpacker.DONE:
        raise StorageFailed.from_os(_os_error(int(text)))


def _refused(why: str) -> Invalid:
    return Invalid("submission.archive", f"the archive is refused: {why}")


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
