"""Scripts that run as drivers do under the backend: in a process that is forked with torch imported."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

HOST = Path(__file__).parent / "warm_host.py"


class WarmScript:
    """One process, as `subprocess.Popen` shows them; its output goes to files."""

    def __init__(
        self, main: Path, arguments: tuple[str, ...], environment: dict[str, str], folder: Path,
        channel: int | None = None,
    ) -> None:
        """Start it in its own folder; it writes below `folder`, and has the descriptor `channel` as DLI_RUNNER_FD."""
        self._files = tuple(folder / f"driver.{stream}" for stream in ("stdout", "stderr"))
        for file in self._files:
            file.write_bytes(b"")
        reader, writer = os.pipe()
        request = {
            "main": str(main), "arguments": arguments, "environment": environment, "folder": str(main.parent),
            "stdout": str(self._files[0]), "stderr": str(self._files[1]),
        }
        _host().send(request, [writer] if channel is None else [writer, channel])
        os.close(writer)
        self._status = os.fdopen(reader, "rb", buffering=0)
        self.pid = self._read()
        self.returncode: int | None = None

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Standard output and standard error when it has ended. Raises TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self._files[0]), timeout)
            self.returncode = self._read()
            self._status.close()
        out, err = (file.read_text() for file in self._files)
        return out, err

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        _host().send({"pid": self.pid, "signal": number}, [])

    def kill(self) -> None:
        """End it, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def _read(self) -> int:
        line = self._status.readline()
        assert line, "the host of warm scripts has ended"
        return int(line)


class Host:
    """The process that they are forked from."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(HOST), str(theirs.fileno())], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, env={
                    **os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0",
                },
            )
        self._link, self._lock = ours, threading.Lock()

    def send(self, request: dict, descriptors: list[int]) -> None:
        """One request, whole."""
        with self._lock:
            socket.send_fds(self._link, [json.dumps(request).encode()], descriptors)


@cache
def _host() -> Host:
    """Started with the first script; it ends with this process."""
    return Host()
