"""A gateway that tests play themselves, and kernel processes that connect to it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support import PATIENCE

from local_backend.inference.kernel import frames
from local_backend.inference.kernel.frames import KernelTask, Reply

#: Text that the kernels show in HELLO.
KEY = "a key"


class GatewaySide:
    """The gateway's end of one connection. Methods block until the kernel has sent what they return."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._reader = frames.FrameReader()
        self._waiting: list[tuple[int, bytes]] = []

    def receive(self) -> tuple[int, bytes] | None:
        """Return the next frame, or None at the end of the connection."""
        while not self._waiting:
            data = self.socket.recv(1 << 20)
            if not data:
                return None
            self._waiting += self._reader.feed(data)
        return self._waiting.pop(0)

    def expect(self, kind: int) -> bytes:
        """Return the payload of the next frame, which has this type."""
        found = self.receive()
        assert found is not None and found[0] == kind, (kind, found)
        return found[1]

    def greet(self, **welcome: Any) -> dict[str, Any]:
        """Take HELLO, send WELCOME, wait for READY; return what HELLO has."""
        hello = json.loads(self.expect(frames.HELLO))
        self.socket.sendall(frames.json_frame(frames.WELCOME, welcome))
        self.expect(frames.READY)
        return hello

    def send(self, *bodies: bytes | str, first: int = 1, **meta: Any) -> None:
        """Send a batch; its tasks have the ids `first`, `first` + 1 and so on."""
        self.socket.sendall(frames.batch(
            KernelTask(first + at, body.encode() if isinstance(body, str) else body, meta)
            for at, body in enumerate(bodies)))

    def replies(self, count: int) -> list[Reply]:
        """Return the next replies."""
        return [frames.reply_of(self.expect(frames.REPLY)) for _ in range(count)]

    def answers(self, count: int) -> dict[int, str]:
        """Return the next replies, none of which has failed, as id → body."""
        found = self.replies(count)
        assert not any(one.failed or one.more for one in found), found
        return {one.id: one.body.decode() for one in found}

    def ask(self, *bodies: bytes | str, **meta: Any) -> list[str]:
        """Send a batch, and return its answers in order."""
        self.send(*bodies, **meta)
        found = self.answers(len(bodies))
        return [found[number] for number in sorted(found)]


class FakeGateway:
    """A Unix socket that kernels connect to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "k.sock"
        self.folder = folder
        self._processes: list[subprocess.Popen[str]] = []
        self._sides: list[GatewaySide] = []
        self.listen()

    def listen(self) -> None:
        """Listen, again after `stop_listening`."""
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._listener.settimeout(PATIENCE)

    def stop_listening(self) -> None:
        """Refuse connections."""
        self._listener.close()

    def accept(self) -> GatewaySide:
        """Wait for a connection."""
        connection, _ = self._listener.accept()
        connection.settimeout(PATIENCE)
        self._sides.append(GatewaySide(connection))
        return self._sides[-1]

    def start(self, kernel: str | None = None, description: dict[str, Any] | None = None,
              command: Iterable[str] = (), **options: Any) -> subprocess.Popen[str]:
        """Start a kernel process in a model folder with this kernel.py. `options` are those of Popen."""
        model = self.folder / "model"
        model.mkdir(exist_ok=True)
        if kernel is not None:
            (model / "kernel.py").write_text(kernel)
        found = {"name": "pong", "model_path": str(model), "weight_path": str(model), "kernel_path": "kernel.py",
                 "attributes": [{"key": "a", "value": "b"}]} | (description or {})
        (self.folder / "description.json").write_text(json.dumps(found))
        environment = {
            **os.environ, "DLI_KERNEL_SOCKET": str(self.path), "DLI_KERNEL_KEY": KEY, "DLI_KERNEL_NUMBER": "3",
            "DLI_MODEL_DESCRIPTION": str(self.folder / "description.json"), "REDHARE_MODEL_NAME": "pong",
            "REDHARE_MODEL_PATH": str(model), "TASK_JOB_ID": "edi-pong-7", "REDHARE_MODEL_REVISION": "4",
            "PYTHONDONTWRITEBYTECODE": "1",
        } | options.pop("env", {})
        line = list(command) or [sys.executable, "-m", "local_backend.inference.kernel.main"]
        process = subprocess.Popen(line, cwd=model, env=environment, text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, **options)
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End all kernels."""
        for process in self._processes:
            process.kill()
            process.communicate()
        for side in self._sides:
            side.socket.close()
        self._listener.close()
