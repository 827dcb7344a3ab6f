"""Processes forked from an interpreter that has imported their modules: imports take most of the time of a start."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

#: Modules of the product whose processes can be forked.
MODULES = RUNNER, NURSERY = "local_backend.runtime.runner", "local_backend.runtime.nursery"


class Link:
    """A connection to a process that forks on request. Several processes may use copies of it: each request is one
    packet, and the answers come through a pipe of the request."""

    def __init__(self, link: socket.socket) -> None:
        self._link, self._lock = link, threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor of the connection."""
        return self._link.fileno()

    def start(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> Forked:
        """Fork a process; the script defines how it uses `request` and the copies of `descriptors`."""
        reader, writer = os.pipe()
        try:
            self._send(request, [writer, *descriptors])
        finally:
            os.close(writer)
        return Forked(self, reader)

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a forked process, unless it has ended."""
        self._send({"pid": pid, "signal": number}, [])

    def _send(self, request: Mapping[str, Any], descriptors: list[int]) -> None:
        with self._lock:
            socket.send_fds(self._link, [json.dumps(request).encode()], descriptors)


class Host(Link):
    """An interpreter that runs `script`, which imports modules and calls `fork_host.serve`.

    All workers of a run of the tests share the interpreter for the same script and words: the first one starts it, and
    it ends with the last process that has a connection.
    """

    def __init__(self, script: Path, *words: str, **environment: str) -> None:
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
        address = "\0".join(["", "dlicmd-tests", run, script.name, *words])
        while (link := self._connected(address, [str(script), *words], environment)) is None:
            pass  # the interpreter of another worker, which was about to listen or to end
        super().__init__(link)

    def _connected(self, address: str, command: list[str], environment: Mapping[str, str]) -> socket.socket | None:
        """Return a connection to the interpreter that listens at the address, which starts if there is none."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        starts, greeting = False, b""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, suppress(ConnectionError):
            try:
                listener.bind(address)
                listener.listen()
                starts = True
            except OSError as problem:
                if problem.errno != errno.EADDRINUSE:
                    raise
            link.connect(address)
            if starts:
                self._process = subprocess.Popen(
                    [sys.executable, command[0], str(listener.fileno()), *command[1:]], pass_fds=[listener.fileno()],
                    stdin=subprocess.DEVNULL, env={**os.environ, **environment},
                )
                listener.close()
            greeting = link.recv(1)
        if greeting:
            return link
        link.close()
        assert not starts, f"{command[0]} has ended"
        return None


class Forked:
    """One forked process, with the interface of `subprocess.Popen`. Several threads may wait for it."""

    def __init__(self, host: Link, status: int) -> None:
        self._host = host
        self._status, self._lock = os.fdopen(status, "rb", buffering=0), threading.Lock()
        self.pid = self._read()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float) -> int:
        """Return the exit code, negative for a signal. Raises subprocess.TimeoutExpired."""
        with suppress(ValueError):  # another thread has read the status, and closed it
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        with self._lock:
            if self.returncode is None:
                self.returncode = self._read()
                self._status.close()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        self._host.signal(self.pid, number)

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def _read(self) -> int:
        line = self._status.readline()
        assert line, "the host of forked processes has ended"
        return int(line)


def fork_modules(
    links: Mapping[str, Callable[[], Link]],
    forks: Callable[[str, Mapping[str, Any]], bool] = lambda module, how: True,
) -> None:
    """Let servers of this process get the processes of modules from `module_host`, in place of new interpreters.

    `forks` tells whether it is done for a module and arguments of `subprocess.Popen`. Isolated jobs run another file,
    so they keep interpreters.
    """
    from local_backend.runtime import starter

    def popen(command: list[str], **how: Any) -> Forked | subprocess.Popen[bytes]:
        module = next((one for one in links if f" {one} " in command[2]), None)
        if module is None or how["executable"] != sys.executable or not forks(module, how):
            return subprocess.Popen(command, **how)
        request = {"environment": how["env"], "folder": how["cwd"], "words": command[3:-1]}
        with open(os.devnull) as nothing:
            return links[module]().start(request, [nothing.fileno(), how["stdout"], how["stderr"], *how["pass_fds"]])

    starter.subprocess = SimpleNamespace(  # type: ignore[assignment]
        Popen=popen, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)
