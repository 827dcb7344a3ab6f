"""A real gateway process, its server (the control peer), and its kernels."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fake_kernel import FakeKernel
from support import eventually

from local_backend.inference.control import (
    GatewayLoad,
    GatewayState,
    Model,
    RequestLimits,
    Revision,
    RevisionLoad,
    Token,
    load_of,
    to_line,
)

ROOT = Path(__file__).parent.parent.parent
FAR = time.time() + 1e6


def digest(token: str) -> str:
    """Return the digest by which the server names a token."""
    return hashlib.sha256(token.encode()).hexdigest()


#: Tokens: of the owner, another user, an administrator, a program that may send requests, and one that may not.
TOKENS = {
    digest("alice"): Token("alice", False, FAR), digest("bob"): Token("bob", False, FAR),
    digest("root"): Token("root", True, FAR), digest("service"): Token("alice", False, FAR, "inference"),
    digest("reader"): Token("alice", False, FAR, "read"), digest("old"): Token("alice", False, 1.0),
}


def model(name: str = "m", *revisions: Revision, limits: RequestLimits | None = None, **changes: Any) -> Model:
    """Return a model of alice; by default with 1 revision."""
    return Model(name, "alice", limits=limits or RequestLimits(),
                 revisions=revisions or (revision(1),), **changes)


def revision(number: int, state: Any = "serving", weight: int = 100, why: str = "") -> Revision:
    """Return a revision with the key `key-NUMBER`."""
    return Revision(number, f"exec-{number}", f"key-{number}", state, weight, why)


class ControlPeer:
    """The server's side of the control socket."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        self.load: GatewayLoad | None = None
        self.on_token: Callable[[str], None] = lambda found: None
        self._connect()

    def _connect(self) -> None:
        def connect() -> socket.socket | None:
            link = socket.socket(socket.AF_UNIX)
            try:
                link.connect(self.path)
            except OSError:
                link.close()
                return None
            return link

        self.link = eventually(connect, "the control socket accepts")
        threading.Thread(target=self._read, args=(self.link,), daemon=True).start()

    def _read(self, link: socket.socket) -> None:
        with link, link.makefile("rb") as stream:
            try:
                for line in stream:
                    message = json.loads(line)
                    if message["op"] == "load":
                        self.load = load_of(message)
                    elif message["op"] == "token":
                        self.on_token(message["digest"])
                    self.lines.append(message)
            except (OSError, ValueError):
                pass

    @property
    def about(self) -> dict[str, Any]:
        """The line `ready`."""
        return eventually(lambda: self.lines and self.lines[0], "the line ready")

    def send(self, message: GatewayState | dict[str, Any]) -> None:
        """Send a state or another message."""
        line = to_line(message) if isinstance(message, GatewayState) else json.dumps(message).encode() + b"\n"
        self.link.sendall(line)

    def close(self) -> None:
        """End as a server does that is killed."""
        self.link.shutdown(socket.SHUT_RDWR)


class GatewayHost:
    """A folder with a gateway process. Use it as a context."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.folder = folder
        self.config = {
            "control": str(folder / "control.sock"), "kernels": str(folder / "kernels.sock"),
            "local": str(folder / "http.sock"), "host": "127.0.0.1", "port": 0, "grpc_port": None, "certificate": None,
            "key": None, "log": str(folder / "gateway.log"), "access_log": None, **config}
        self.version = 0
        self.state = GatewayState(0, {}, TOKENS)
        self.kernels: list[FakeKernel] = []
        self.programs: list[subprocess.Popen[bytes]] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> GatewayHost:
        self.start()
        return self

    def __exit__(self, *ignored: object) -> None:
        for kernel in self.kernels:
            kernel.close()
        for process in [*self.programs, *self.processes]:
            process.kill()
            process.wait()

    def start(self) -> None:
        """Start a gateway process and connect to it."""
        self.start_process()
        self.connect()

    def start_process(self, stdin: int | None = None) -> subprocess.Popen[bytes]:
        """Start a gateway process."""
        path = self.folder / "config.json"
        path.write_text(json.dumps(self.config))
        self.process = subprocess.Popen([sys.executable, "-m", "local_backend.inference.gateway", str(path)], cwd=ROOT,
                                        stdin=stdin)
        self.processes.append(self.process)
        return self.process

    def connect(self) -> None:
        """Connect as the server does."""
        self.control = ControlPeer(self.config["control"])
        self.port = self.control.about["port"]
        self.grpc_port = self.control.about["grpc_port"]
        self.pid = self.control.about["pid"]

    def serve(self, *models: Model, **tokens: Token) -> None:
        """Send a state with these models, and wait until the gateway has it."""
        self.version += 1
        self.state = GatewayState(self.version, {one.name: one for one in models},
                                  TOKENS | {digest(token): about for token, about in tokens.items()})
        self.control.send(self.state)
        names = {one.name: {each.number for each in one.revisions} for one in models}
        eventually(lambda: (load := self.control.load) is not None
                   and {name: set(found) for name, found in load.loads.items()} == names, "the state arrived")

    def change(self, name: str, **changes: Any) -> None:
        """Send the state with a changed model."""
        self.serve(*(replace(one, **changes) if one.name == name else one for one in self.state.models.values()))

    def kernel(self, number: int = 1, revision: int = 1, *, ready: bool = True, name: str = "m") -> FakeKernel:
        """Start a kernel in this process; wait until it is ready."""
        made = FakeKernel(self.config["kernels"], f"key-{revision}", number, ready=ready).start()
        self.kernels.append(made)
        self.wait(lambda load: any(one.number == number and one.ready == ready for one in load.kernels), revision, name)
        return made

    def kernel_process(self, number: int = 1, revision: int = 1) -> subprocess.Popen[bytes]:
        """Start a kernel as a process of its own."""
        made = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "fake_kernel.py"), self.config["kernels"], f"key-{revision}",
             str(number)], env=os.environ | {"PYTHONPATH": str(ROOT)})
        self.programs.append(made)
        return made

    def load(self, revision: int = 1, name: str = "m") -> RevisionLoad:
        """Return the last load of a revision; after a new connection, its first one."""
        found = eventually(lambda: self.control.load, "the gateway reports its load")
        return found.loads.get(name, {}).get(revision, RevisionLoad())

    def wait(self, probe: Callable[[RevisionLoad], object], revision: int = 1, name: str = "m") -> RevisionLoad:
        """Wait until the load of a revision is as it should be."""
        eventually(lambda: probe(self.load(revision, name)), "the load")
        return self.load(revision, name)
