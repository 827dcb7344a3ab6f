"""A substitute for the backend's runner: it runs a script as the driver and starts real workers on request."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from forking import Forked
from support import PATIENCE
from warm_script import WarmScript, warm_worker


@dataclass
class Outcome:
    """The exit code, the output and the messages of a driver."""

    returncode: int
    stdout: str
    stderr: str
    #: Messages of the driver, in order.
    messages: list[dict] = field(default_factory=list)
    #: Worker → its output.
    worker_stdout: dict[int, str] = field(default_factory=dict)
    worker_stderr: dict[int, str] = field(default_factory=dict)

    def of(self, op: str) -> list[dict]:
        """Return the messages with this op."""
        return [message for message in self.messages if message["op"] == op]


class FakeRunner:
    """Serves one driver with `slots` slots. Calls `on_message` after it has carried out a message."""

    #: Start driver and workers as fresh interpreters: `python train.py`, and `python -m` of the worker module.
    cold = False
    #: Maximum seconds of the whole training.
    patience = PATIENCE
    #: The attributes of the submission (--msd-attr). The long hang time keeps slow workers of a busy machine
    #: unsuspected.
    attributes: ClassVar[dict[str, str]] = {"hang_seconds": str(PATIENCE)}

    def __init__(self, tmp: Path, slots: int, max_workers: int | None = None) -> None:
        self.tmp = tmp
        #: Working directory of the workers: of the script, if one runs.
        self._directory = tmp
        self.slots = slots
        self.max_workers = slots if max_workers is None else max_workers
        self.workers: dict[int, subprocess.Popen | Forked] = {}
        self.messages: list[dict] = []

    def environment(self, **extra: str) -> dict[str, str]:
        """Return the environment that driver and workers share."""
        return {
            **{key: value for key, value in os.environ.items() if not key.startswith(("DLI_", "FABRIC_"))},
            "RESULT_DIR": str(self.tmp / "result"),
            "LOG_DIR": str(self.tmp / "log"),
            "FABRIC_BACKEND": "pytorch",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONHASHSEED": "0",
            **extra,
        }

    def run(self, script: Path, *arguments: str, **extra: str) -> Outcome:
        """Run the script to its end and check that its workers end too."""
        ours, theirs = socket.socketpair()
        with theirs:
            driver = self.driver = self._drive(script, arguments, theirs.fileno(), extra)
        self._channel = ours
        self._extra = extra
        self._directory = script.parent
        serving = threading.Thread(target=self._serve)
        serving.start()
        try:
            stdout, stderr = driver.communicate(timeout=self.patience)
        finally:
            driver.kill()
            for worker in list(self.workers.values()):
                worker.kill()
            serving.join(PATIENCE)
            ours.close()
        return Outcome(
            driver.returncode,
            stdout,
            stderr,
            self.messages,
            {number: self._written(number, "stdout") for number in self.workers},
            {number: self._written(number, "stderr") for number in self.workers},
        )

    def _drive(
        self, script: Path, arguments: tuple[str, ...], channel: int, extra: dict[str, str]
    ) -> subprocess.Popen[str] | WarmScript:
        environment = self.environment(DLI_RUNNER_FD=str(channel), **extra)
        if not self.cold:
            return WarmScript(script, arguments, environment, self.tmp, channel)
        return subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=environment,
            cwd=script.parent,
            pass_fds=[channel],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def on_message(self, message: dict) -> None:
        """Do nothing; tests override this method."""

    def allocate(self, slots: int) -> None:
        """Tell the driver that the job has `slots` slots now."""
        self.slots = slots
        self._tell({
            "event": "allocation",
            "slots": [{"id": f"cpu-{i}", "kind": "cpu"} for i in range(slots)],
            "max_workers": self.max_workers,
            "attributes": self.attributes,
        })

    def _written(self, worker: int, stream: str) -> str:
        return (self.tmp / f"worker-{worker}.{stream}").read_text()

    def _serve(self) -> None:
        # A killed driver may leave messages of the runner unread.
        with suppress(ConnectionResetError), self._channel.makefile("r") as lines:
            for line in lines:
                message = json.loads(line)
                self.messages.append(message)
                self._obey(message)
                self.on_message(message)

    def _obey(self, message: dict) -> None:
        if message["op"] == "hello":
            self.allocate(self.slots)
        elif message["op"] == "spawn":
            self._spawn(message)
        elif message["op"] == "kill":
            self.workers[message["worker"]].kill()

    def _spawn(self, message: dict) -> None:
        number = message["worker"]
        environment = self.environment(
            DLI_HUB_ADDRESS=message["address"],
            DLI_HUB_KEY=message["key"],
            DLI_WORKER_NUMBER=str(number),
            **self._extra,
        )
        stdout, stderr = (self.tmp / f"worker-{number}.{stream}" for stream in ("stdout", "stderr"))
        if self.cold:
            with open(stdout, "a") as out, open(stderr, "a") as err:
                self.workers[number] = subprocess.Popen(
                    [sys.executable, "-m", "local_backend.elastic.worker.worker"],
                    env=environment,
                    cwd=self._directory,
                    stdout=out,
                    stderr=err,
                )
        else:
            for path in (stdout, stderr):
                path.touch()  # a worker may die before it opens them
            self.workers[number] = warm_worker(environment, self._directory, stdout, stderr)
        threading.Thread(target=self._watch, args=(number,)).start()

    def _watch(self, number: int) -> None:
        worker = self.workers[number]
        code = worker.wait(self.patience)
        killed = -code if code < 0 else None
        self._tell({
            "event": "exited",
            "worker": number,
            "pid": worker.pid,
            "exit_code": None if killed else code,
            "signal": killed,
            "reason": signal.Signals(killed).name if killed else None,
        })

    def _tell(self, message: dict) -> None:
        try:
            self._channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return
