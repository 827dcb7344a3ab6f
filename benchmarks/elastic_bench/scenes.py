"""Long trainings whose workers join, leave and die. FabricModel and torchrun have the same interface here."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from elastic_bench.blocks import MARK, SCRIPTS
from elastic_bench.runner import Runner
from elastic_bench.stamps import (
    QUIET,
    Pause,
    Recovery,
    Stamps,
    pause,
    recovery_of_commits,
    recovery_of_restart,
    settled,
    wait_until,
)
from elastic_bench.torchrun import Torchrun
from local_backend.elastic.frames import receive_frame, send_frame

#: Steps of a training: more than a measurement takes.
STEPS = 5000
#: Maximum seconds of a change.
PATIENCE = 120.0


class Scene(Protocol):
    """A running training."""

    stamps: Stamps

    def resize(self, workers: int) -> None:
        """Set the number of workers from now on."""

    def kill(self) -> int:
        """Send SIGKILL to one worker, and return its process id."""

    def recovery(self, killed: float) -> Recovery:
        """Return how the training continued after a worker was killed at the time `killed`."""

    def failure(self) -> str | None:
        """Return why the training cannot continue, None while it can."""

    def close(self) -> None:
        """End the training."""


class FabricScene:
    """FabricModel under the stand-in for the runner."""

    def __init__(self, folder: Path, model: str, workers: int, most: int, tap: ReadyTap | None = None) -> None:
        (folder / "stamps").mkdir(parents=True)
        self.stamps = Stamps(folder / "stamps")
        self.runner = Runner(
            folder, SCRIPTS / "fabric_train.py", model, slots=workers, most=most,
            attributes={"mode": "exact"}, BENCH_STAMPS=str(folder / "stamps"),
        )
        self.runner.detour = tap.detour if tap else None
        self.runner.order(f"exact {STEPS} {MARK}")
        self.resize, self.failure, self.close = self.runner.resize, self.runner.failure, self.runner.close

    def kill(self) -> int:
        """Kill the newest worker that has applied a step."""
        last = {stamp.seat: stamp for stamp in self.stamps.read()}
        newest = last[max(last)]
        self.runner.kill(newest.seat)
        return newest.pid

    def recovery(self, killed: float) -> Recovery:
        return recovery_of_commits(self.stamps.commits(), killed)


class TorchrunScene:
    """torchrun, one agent per worker."""

    def __init__(self, folder: Path, model: str, workers: int, least: int, most: int) -> None:
        self._torchrun = Torchrun(folder, model, workers, least, most)
        self.stamps = Stamps(self._torchrun.stamps)
        self.resize, self.failure, self.close = self._torchrun.resize, self._torchrun.failure, self._torchrun.close

    def kill(self) -> int:
        return self._torchrun.kill(self.stamps.read())

    def recovery(self, killed: float) -> Recovery:
        return recovery_of_restart(self.stamps.read(), killed)


def await_change(scene: Scene, workers: int, since: float, without: frozenset[int] = frozenset()) -> None:
    """Wait until that many workers train. Raises RuntimeError."""
    wait_until(lambda: settled(scene.stamps.read(), workers, since, without), PATIENCE, scene.failure)


def undisturbed(scene: Scene, workers: int) -> None:
    """Wait for QUIET more steps of each worker."""
    known = len(scene.stamps.read())
    wait_until(lambda: len(scene.stamps.read()) >= known + QUIET * workers, PATIENCE, scene.failure)


def change(scene: Scene, before: int, after: int) -> Pause:
    """Change the number of workers. Return the pause of the workers that stay."""
    undisturbed(scene, before)
    begin = time.monotonic()
    scene.resize(after)
    await_change(scene, after, begin)
    return pause(scene.stamps.read(), begin)


def death(scene: Scene, workers: int) -> Recovery:
    """Kill a worker, and wait until the number of workers is as before. Return the recovery."""
    undisturbed(scene, workers)
    killed = time.monotonic()
    gone = scene.kill()
    await_change(scene, workers, killed, frozenset([gone]))
    return scene.recovery(killed)


class ReadyTap:
    """A proxy between workers and their hub that notes when each worker reports that it is ready."""

    def __init__(self) -> None:
        #: Worker → seconds from the request for it until it reports ready.
        self.seconds: dict[int, float] = {}

    def detour(self, worker: int, address: str) -> str:
        """Return an address for one worker. Its connection is passed on to `address`."""
        asked = time.monotonic()
        listener = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            theirs, _ = listener.accept()
            listener.close()
            host, _, port = address.rpartition(":")
            hub = socket.create_connection((host, int(port)))
            for end in (theirs, hub):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _in_background(lambda: _copy(hub, theirs))
            while (frame := receive_frame(theirs)) is not None:
                if frame[0].get("op") == "ready":
                    self.seconds[worker] = time.monotonic() - asked
                send_frame(hub, *frame)
            hub.shutdown(socket.SHUT_WR)

        _in_background(serve)
        return f"127.0.0.1:{listener.getsockname()[1]}"


def _copy(source: socket.socket, target: socket.socket) -> None:
    while data := source.recv(1 << 16):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)


def _in_background(work: Callable[[], None]) -> None:
    def run() -> None:
        try:
            work()
        except OSError:
            return  # one end was killed; the other end notices that itself

    threading.Thread(target=run, daemon=True).start()
