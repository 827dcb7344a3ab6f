"""An elastic job whose driver and workers are controlled by the test, through their connections.

The engine is not involved: the folder of the job contains its own worker module.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runtime_support import Bench
from support import PATIENCE

DRIVER = """
import json, os, socket, sys, threading
link = socket.socket(fileno=int(os.environ["DLI_RUNNER_FD"]))
test = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
test.sendall(json.dumps({"pid": os.getpid(), "restarts": os.environ["DLI_RESTARTS"]}).encode() + b"\\n")
print("driver", os.environ["DLI_RESTARTS"], flush=True)

def pass_on(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    finally:
        os._exit(0)  # the test has let go, with or without having read everything

threading.Thread(target=pass_on, args=(link, test), daemon=True).start()
pass_on(test, link)
"""
#: Reports its number and pid, then obeys single letters: `d` starts a daemon in its own session, without any variables.
#: With a key `JOB@FILE`, it locks that file until all its child processes end, and reports the job that already holds
#: the lock.
WORKER = """
import fcntl, json, os, socket
host, port = os.environ["DLI_HUB_ADDRESS"].split(":")
link = socket.create_connection((host, int(port)))
def say(**what):
    link.sendall(json.dumps(what).encode() + b"\\n")
job, _, name = os.environ["DLI_HUB_KEY"].partition("@")
trespass = ""
if name:
    lock = os.open(name, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(lock, 99, 0).decode()
        trespass = owner if owner != job else ""
    else:
        os.pwrite(lock, job.encode(), 0)
say(worker=int(os.environ["DLI_WORKER_NUMBER"]), pid=os.getpid(), trespass=trespass)
while order := link.recv(1):
    if order == b"d" and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            if name:
                os.set_inheritable(lock, True)
            say(daemon=os.getpid())
            os.execve("/bin/sleep", ["sleep", "600"], {})
        os._exit(0)
"""
FILES = {
    "main.py": DRIVER,
    "local_backend/__init__.py": "",
    "local_backend/elastic/__init__.py": "",
    "local_backend/elastic/worker/__init__.py": "",
    "local_backend/elastic/worker/worker.py": WORKER,
}


class Line:
    """One end of a connection that carries JSON lines."""

    def __init__(self, server: socket.socket) -> None:
        self._socket, _ = server.accept()
        self._socket.settimeout(PATIENCE)
        self._lines = self._socket.makefile("r")

    def hear(self) -> dict[str, Any]:
        """Return the next message."""
        text = self._lines.readline()
        assert text, "the other end has closed the connection"
        return dict(json.loads(text))

    def hear_or_end(self) -> dict[str, Any] | None:
        """Return the next message, or None after the other end has closed the connection."""
        try:
            text = self._lines.readline()
        except OSError:
            return None
        return dict(json.loads(text)) if text else None

    def has_message(self) -> bool:
        """Whether a message can be read now. The runner sends one at a time, so none is in the buffer."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


class Driver(Line):
    """A driver of the job."""

    def __init__(self, server: socket.socket, hub: str) -> None:
        super().__init__(server)
        self._hub = hub
        #: The number for the next worker, from the newest allocation.
        self.next_worker: int | None = None
        said = self.hear()
        self.pid, self.restarts = int(said["pid"]), str(said["restarts"])

    def say(self, **message: object) -> None:
        """Send a message to the runner."""
        self.send(json.dumps(message).encode() + b"\n")

    def hello(self) -> list[str]:
        """Say hello and return the ids of the slots in the runner's answer."""
        self.say(op="hello")
        return self.allocation()

    def allocation(self) -> list[str]:
        """Read the next message, which must be an allocation, and return the ids of its slots."""
        message = self.hear()
        assert message["event"] == "allocation", message
        self.next_worker = message["next_worker"]
        return [slot["id"] for slot in message["slots"]]

    def spawn(self, worker: int, slot: str, key: str = "ab") -> None:
        self.say(op="spawn", worker=worker, slot=slot, address=self._hub, key=key)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


class Worker(Line):
    """A worker of the job."""

    def __init__(self, server: socket.socket) -> None:
        super().__init__(server)
        said = self.hear()
        self.number, self.pid = int(said["worker"]), int(said["pid"])
        #: The job that already holds the slot of this worker, or "".
        self.trespass = str(said["trespass"])

    def daemon(self) -> int:
        """Make the worker start a daemon, and return the pid of the daemon."""
        self.send(b"d")
        return int(self.hear()["daemon"])


class Strings:
    """The servers to which the drivers and workers of one test connect."""

    def __init__(self) -> None:
        self._servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        for server in self._servers:
            server.settimeout(PATIENCE)
        self.port, hub = (int(server.getsockname()[1]) for server in self._servers)
        self._hub = f"127.0.0.1:{hub}"

    def submit(self, one: Bench, **spec: Any) -> str:
        """Submit a job for at most four workers."""
        values = {"framework": "edtPyTorch", "elastic": True, "num_worker": 4, "arguments": (str(self.port),)}
        return one.submit(FILES, **values | spec)

    def driver(self) -> Driver:
        """Wait for the next driver that starts, and return it."""
        return Driver(self._servers[0], self._hub)

    def worker(self) -> Worker:
        """Wait for the next worker that starts, and return it."""
        return Worker(self._servers[1])

    def close(self) -> None:
        for server in self._servers:
            server.close()


@contextmanager
def strings() -> Iterator[Strings]:
    held = Strings()
    try:
        yield held
    finally:
        held.close()
