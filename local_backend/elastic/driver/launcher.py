"""Launchers: they know the slots of a job, start workers on slots, and report when a worker has ended.

Under the backend, a runner starts workers (`RunnerLauncher`, the channel of docs/processes.md). Without the backend,
the calling thread is the only worker (`InProcessLauncher`), so that a plain `python train.py` trains.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from local_backend.elastic import RUNNER_FD
from local_backend.elastic.errors import EngineError, HubGone
from local_backend.elastic.threads import EngineThread

#: Variable in the driver's environment with the descriptor of the stream socket to the runner.

#: Name of a progress value in the engine → its name in messages. The engine spells the latter only here.
PROGRESS_KEYS = {
    "epoch": "epoch",
    "epochs": "epochs",
    "step": "step",
    "steps": "steps",
    "loss": "loss",
    "accuracy": "accuracy",
    "samples_per_second": "samplesPerSecond",
    "seconds_left": "secondsLeft",
    "workers": "workers",
    "generation": "generation",
    "resizes": "resizes",
    "deaths": "deaths",
    "usable": "usable",
    "pause": "pause",
    "step_seconds": "stepSeconds",
    "recovering": "recovering",
    "message": "message",
}


@dataclass(frozen=True)
class Slot:
    """One device (or CPU share) that a worker may use."""

    id: str
    kind: str


@dataclass(frozen=True)
class Allocation:
    """The slots of the job, and the maximum number of workers that it was submitted with."""

    slots: tuple[Slot, ...]
    max_workers: int
    #: Settings for the engine that the job was submitted with (--msd-attr).
    attributes: Mapping[str, str] = field(default_factory=dict)
    #: The number of the next worker. Numbers are not used again, not even by later drivers of the job.
    next_worker: int = 1
    #: Number of finished epochs after which the job rests; None: it trains to its end.
    rest: int | None = None


#: Called with the number of a worker and the words for its end, which follow "worker 3 ...".
OnExit = Callable[[int, str], None]
#: Called with the allocation that the job has from now on.
OnAllocation = Callable[[Allocation], None]


class WorkerLauncher(Protocol):
    """The interface to start and end workers."""

    #: Whether the worker runs in the driver's process. Then nothing is pickled, and a log of the worker would mix with
    #: the user's output.
    in_process: bool

    def allocation(self) -> Allocation:
        """Return the present allocation of the job."""

    def listen(self, on_exit: OnExit, on_allocation: OnAllocation) -> None:
        """Call `on_exit` for every worker that ends from now on, and `on_allocation` when the allocation changes."""

    def start(self, worker: int, slot: str, address: str, key: str) -> None:
        """Start a worker that finds its hub at `address`. Raises EngineError when that is not possible."""

    def kill(self, worker: int) -> None:
        """End a worker at once. Its exit is reported as usual."""

    def attend(self, serve: Callable[[], None]) -> None:
        """Run `serve` until it returns. Raises what `serve` raises."""

    def progress(self, **values: Any) -> None:
        """Report progress values, named by the keys of PROGRESS_KEYS. None is left out."""

    def status(self, **values: Any) -> None:
        """Report progress values like `progress`, but None clears the value that was reported before."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Report metrics, name → number, for a number of committed steps."""

    def rested(self, epochs: int, stored: bool) -> None:
        """Report that the job rests after this number of finished epochs, after all metrics and progress up to there.
        `stored`: its state is on the disk. Called again when the state is kept."""

    def history(self, text: str) -> None:
        """Add a line to the job's history."""


class InProcessLauncher:
    """One worker, in the thread that calls `attend`; the hub runs in another thread."""

    in_process = True

    def __init__(self, run_worker: Callable[[int, str, str], None], device: str) -> None:
        """`run_worker(number, address, key)` trains; it returns when the hub says that the job is done."""
        self._run = run_worker
        self._device = device
        self._started: tuple[int, str, str] | None = None
        self._ready = threading.Event()
        self._on_exit: OnExit | None = None

    def allocation(self) -> Allocation:
        return Allocation((Slot(self._device, self._device),), 1)

    def listen(self, on_exit: OnExit, on_allocation: OnAllocation) -> None:
        self._on_exit = on_exit

    def start(self, worker: int, slot: str, address: str, key: str) -> None:
        if self._started is not None:
            raise EngineError("the only worker (this process) already left the training")
        self._started = (worker, address, key)
        self._ready.set()

    def kill(self, worker: int) -> None:
        """Do nothing: the worker runs in the thread that called `attend`, and ends when its connection closes."""

    def attend(self, serve: Callable[[], None]) -> None:
        """Run the worker, with `serve` in another thread. Raises what the worker raises, or the exception that ended
        `serve` and so cut the worker off."""
        assert self._on_exit is not None
        failures: list[BaseException] = []

        def hub() -> None:
            try:
                serve()
            except BaseException as error:
                failures.append(error)
            self._ready.set()

        beside = threading.Thread(target=hub, name="hub")
        beside.start()
        cut_off = None
        self._ready.wait()
        try:
            if self._started is not None:
                self._run(*self._started)
        except HubGone as error:
            cut_off = error
        finally:
            if self._started is not None:
                self._on_exit(self._started[0], "stopped")
            beside.join()
        for failure in (*failures, cut_off):
            if failure is not None:
                raise failure

    def progress(self, **values: Any) -> None:
        """Do nothing: there is no runner."""

    def status(self, **values: Any) -> None:
        """Do nothing: there is no runner."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Do nothing: there is no runner."""

    def rested(self, epochs: int, stored: bool) -> None:
        """Do nothing: there is no runner."""

    def history(self, text: str) -> None:
        """Do nothing: there is no runner."""


class RunnerLauncher:
    """A launcher that uses the backend's runner, over a stream socket with one JSON object per line."""

    in_process = False

    def __init__(self, channel: socket.socket) -> None:
        channel.set_inheritable(False)
        self._channel = channel
        self._lock = threading.Lock()
        self._allocated = threading.Event()
        self._allocation: Allocation | None = None
        self._on_exit: OnExit | None = None
        self._on_allocation: OnAllocation | None = None
        self._alive: set[int] = set()
        self._newest = 0
        self._send({"op": "hello"})
        EngineThread(self._listen, "runner-channel").start()

    def allocation(self) -> Allocation:
        self._allocated.wait()
        if self._allocation is None:
            raise EngineError("the runner closed its channel before it sent the slots of the job")
        return replace(self._allocation, next_worker=max(self._allocation.next_worker, self._newest + 1))

    def listen(self, on_exit: OnExit, on_allocation: OnAllocation) -> None:
        self._on_exit, self._on_allocation = on_exit, on_allocation

    def start(self, worker: int, slot: str, address: str, key: str) -> None:
        self._alive.add(worker)
        self._newest = max(self._newest, worker)
        self._send({"op": "spawn", "worker": worker, "slot": slot, "address": address, "key": key})

    def kill(self, worker: int) -> None:
        self._send({"op": "kill", "worker": worker})

    def attend(self, serve: Callable[[], None]) -> None:
        serve()

    def progress(self, **values: Any) -> None:
        self.status(**{name: value for name, value in values.items() if value is not None})

    def status(self, **values: Any) -> None:
        self._send({"op": "progress", **{PROGRESS_KEYS[name]: value for name, value in values.items()}})

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._send({"op": "metrics", "step": step, "values": dict(values)})

    def rested(self, epochs: int, stored: bool) -> None:
        self._send({"op": "rested", "epochs": epochs, "stored": stored})

    def history(self, text: str) -> None:
        self._send({"op": "history", "text": text})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            with self._lock:
                self._channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise EngineError(f"lost the connection to the runner of this job ({error.strerror})") from None

    def _listen(self) -> None:
        # A killed runner may leave half a line, or unread messages of this process, which reset the connection.
        with suppress(ConnectionResetError), self._channel.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n"):
                    self._take(json.loads(line))
        self._allocated.set()
        for worker in sorted(self._alive):
            self._report(worker, "was lost: the connection to the runner of this job ended")

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("event") == "allocation":
            slots = tuple(Slot(slot["id"], slot["kind"]) for slot in message["slots"])
            self._allocation = Allocation(
                slots, int(message["max_workers"]), message.get("attributes", {}), message.get("next_worker", 1),
                message.get("rest"),
            )
            self._allocated.set()
            if self._on_allocation is not None:
                self._on_allocation(self._allocation)
        elif message.get("event") == "exited":
            self._report(int(message["worker"]), how_it_ended(message))

    def _report(self, worker: int, how: str) -> None:
        self._alive.discard(worker)
        if self._on_exit is not None:
            self._on_exit(worker, how)


def how_it_ended(message: dict[str, Any]) -> str:
    """Return the words for a runner's `exited` message, to follow "worker 3"."""
    reason = f": {message['reason']}" if message.get("reason") else ""
    if message.get("pid") is None:
        return f"could not be started{reason}"
    if message.get("signal"):
        return f"was killed by signal {message['signal']}{reason}"
    return f"ended with exit code {message.get('exit_code')} before the training was done{reason}"


_runner: RunnerLauncher | None = None


def runner() -> RunnerLauncher | None:
    """Return the runner of this process, or None when there is none. All trainings of a script share one channel.

    Removes the variable from the environment, because programs that the script starts do not have the descriptor.
    Raises EngineError when the descriptor is no socket.
    """
    global _runner
    descriptor = os.environ.pop(RUNNER_FD, None)
    if descriptor is not None:
        try:
            _runner = RunnerLauncher(socket.socket(fileno=int(descriptor)))
        except (OSError, ValueError) as error:
            raise EngineError(f"{RUNNER_FD}={descriptor} is not a socket to a runner: {error}") from None
    return _runner
