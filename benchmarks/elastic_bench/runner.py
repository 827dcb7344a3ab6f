"""Stands in for the backend's runner, and changes the slots while the driver's script trains."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from elastic_bench.machine import environment, slots
from local_backend.elastic import PRELOAD

#: Forks workers with torch imported, as the backend's nursery does.
WARM = multiprocessing.get_context("forkserver")
#: Seconds to wait for a process that has been told to end.
GRACE = 10.0

Process = subprocess.Popen | multiprocessing.process.BaseProcess


def warm_up() -> None:
    """Start the fork server and wait until it has imported what it preloads."""
    WARM.set_forkserver_preload([*PRELOAD])
    first = WARM.Process(target=int)
    first.start()
    first.join()


def be_worker(variables: dict[str, str], output: Path) -> None:
    """Run a forked worker with its own environment, folder and output file."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(output.parent)
    from local_backend.elastic.worker.worker import main

    raise SystemExit(main())


class Runner:
    """Runs a driver's script, and answers its requests. The script reads orders from standard input and answers on
    standard output."""

    def __init__(self, folder: Path, script: Path, *arguments: str, slots: int, most: int,
                 attributes: dict[str, str] | None = None, **extra: str) -> None:
        """Begin with `slots` slots of at most `most`. Driver and workers get the variables `extra`."""
        self.folder = folder
        self.slots, self._most = slots, most
        #: Attributes of the job, as `--msd-attr` sets them.
        self._attributes = attributes or {}
        #: Start the next workers in fresh interpreters.
        self.cold = False
        self.workers: dict[int, Process] = {}
        #: If set, maps the hub's address for each worker: (worker, address) → address.
        self.detour: Any = None
        self._extra = extra
        self._lock = threading.Lock()
        self._watchers: list[threading.Thread] = []
        self._output = (folder / "driver.log").open("a+")
        self._channel, theirs = socket.socketpair()
        self.driver = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=self._environment(DLI_RUNNER_FD=str(theirs.fileno())),
            cwd=script.parent,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            text=True,
        )
        theirs.close()
        threading.Thread(target=self._serve, daemon=True).start()

    def order(self, line: str) -> None:
        """Send a line to the script."""
        assert self.driver.stdin is not None
        with suppress(BrokenPipeError):
            self.driver.stdin.write(line + "\n")
            self.driver.stdin.flush()

    def wait_for(self, answer: str) -> None:
        """Read the script's output until the line `answer`. If the script ends before, raise RuntimeError with its
        last line."""
        assert self.driver.stdout is not None
        for line in self.driver.stdout:
            if line.strip() == answer:
                return
        self.driver.wait()
        raise RuntimeError(self.failure())

    def last_words(self) -> str:
        """Return the last line of the driver's standard error, empty if there is none."""
        lines = (self.folder / "driver.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def resize(self, count: int) -> None:
        """Allocate the first `count` slots from now on."""
        self.slots = count
        self._allocate()

    def failure(self) -> str | None:
        """Return why the training cannot continue, None while it can."""
        return None if self.driver.poll() is None else f"the training with FabricModel has ended: {self.last_words()}"

    def kill(self, worker: int) -> None:
        """Send SIGKILL to a worker."""
        pid = self.workers[worker].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill all processes."""
        self.driver.kill()
        self.driver.wait()
        for worker in list(self.workers.values()):
            worker.kill()
        for watcher in self._watchers:
            watcher.join(GRACE)
        self._channel.close()
        self._output.close()

    def _environment(self, **extra: str) -> dict[str, str]:
        folders = {"RESULT_DIR": str(self.folder / "result"), "LOG_DIR": str(self.folder / "log")}
        return environment(**folders, FABRIC_BACKEND="pytorch", **self._extra, **extra)

    def _serve(self) -> None:
        with self._channel.makefile("r") as lines, suppress(OSError):
            for line in lines:
                self._obey(json.loads(line))

    def _obey(self, message: dict[str, Any]) -> None:
        if message["op"] == "hello":
            self._allocate()
        elif message["op"] == "spawn":
            self._spawn(message)
        elif message["op"] == "kill":
            self.workers[message["worker"]].kill()

    def _allocate(self) -> None:
        allotted = [{"id": slot.id, "kind": slot.kind} for slot in slots()[:self.slots]]
        self._tell({
            "event": "allocation", "slots": allotted, "max_workers": self._most, "attributes": self._attributes,
        })

    def _spawn(self, message: dict[str, Any]) -> None:
        number, address = message["worker"], message["address"]
        gpu = next(slot.gpu for slot in slots() if slot.id == message["slot"])
        variables = self._environment(
            DLI_HUB_ADDRESS=self.detour(number, address) if self.detour else address,
            DLI_HUB_KEY=message["key"],
            DLI_WORKER_NUMBER=str(number),
            CUDA_VISIBLE_DEVICES=gpu,
        )
        output = self.folder / f"worker-{number}.log"
        worker: Process
        if self.cold:
            with output.open("a") as file:
                command = [sys.executable, "-m", "local_backend.elastic.worker.worker"]
                worker = subprocess.Popen(command, env=variables, cwd=self.folder, stdout=file, stderr=file)
        else:
            worker = WARM.Process(target=be_worker, args=(variables, output))
            worker.start()
        self.workers[number] = worker
        self._watchers.append(threading.Thread(target=self._watch, args=(number, worker), daemon=True))
        self._watchers[-1].start()

    def _watch(self, number: int, worker: Process) -> None:
        code = _exit_code(worker)
        killed = -code if code < 0 else None
        self._tell({
            "event": "exited", "worker": number, "pid": worker.pid,
            "exit_code": None if killed else code, "signal": killed,
            "reason": signal.Signals(killed).name if killed else None,
        })

    def _tell(self, message: dict[str, Any]) -> None:
        with self._lock, suppress(OSError):
            self._channel.sendall(json.dumps(message).encode() + b"\n")


def _exit_code(worker: Process) -> int:
    """Wait until the worker ends. Return its exit code, negative for a signal."""
    if isinstance(worker, subprocess.Popen):
        return worker.wait()
    worker.join()
    assert worker.exitcode is not None
    return worker.exitcode
