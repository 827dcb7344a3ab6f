"""The run of an attempt on this machine: its runner, and the connection to that runner.

The server connects again whenever the connection ends and the runner lives. The runner then sends its whole state.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from local_backend.runtime import processes, tree, unix_socket
from local_backend.runtime.channel import Channel
from local_backend.runtime.launch import (
    ProcessId,
    read_identity,
    read_outcome,
    server_proof,
    try_lock,
    write_attempt,
)
from local_backend.runtime.launcher import Held, LostRun, Outcome
from local_backend.runtime.messages import (
    Begun,
    Exited,
    FromServer,
    GpusMeasured,
    Hello,
    Progressed,
    SetAside,
    StartRefused,
    from_runner,
    of_server,
)
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.utilisation import Use
from local_backend.scheduler.model import Allocation

#: Seconds between two attempts to connect to a runner.
_CONNECT_EVERY = 1.0
#: Seconds between two attempts to send to a runner that does not read.
_SEND_EVERY = 0.5


class LocalRun:
    """The `Run` of this machine."""

    def __init__(
        self, paths: ExecPaths, attempt: int, *, server: int | None = None, process: ProcessId | None = None
    ) -> None:
        """`server`: the connection to a runner that was just started. `process`: a runner of an earlier server."""
        #: Why the attempt could not begin.
        self.refused: str | None = None
        #: Whether the runner is gone, or never began.
        self.ended = False
        #: The slots of the job; None before the runner has sent them over the present connection.
        self.held: Held | None = None
        #: The progress of the program.
        self.progress: Mapping[str, Any] = {}
        self._paths = paths
        self._attempt = attempt
        self._channel = None if server is None else Channel(server)
        self._process: ProcessId | None = None
        #: Descriptor that becomes readable when the runner ends.
        self._watch: int | None = None
        self._exited: Outcome | None = None
        self._connect_at = 0.0
        if process is not None:
            self._follow(process)
            self.tick()

    @property
    def begun(self) -> bool:
        """Whether the runner has begun."""
        return self._process is not None

    @property
    def connected(self) -> bool:
        """Whether the runner is connected and has not ended the job."""
        return self._channel is not None and self._exited is None

    # --- events

    @property
    def descriptors(self) -> list[int]:
        """Descriptors that become readable when `on_ready` has something to handle."""
        channel = [] if self._channel is None else [self._channel.fd]
        return channel + ([] if self._watch is None else [self._watch])

    @property
    def due(self) -> float | None:
        """When `tick` is due (monotonic); None if it is not."""
        now, moments = time.monotonic(), list[float]()
        if self._is_unwatched:
            moments.append(now + _CONNECT_EVERY)
        if self._channel is None and self._is_lost:
            moments.append(self._connect_at)
        elif self._channel is not None and self._channel.wants_to_write:
            moments.append(now + _SEND_EVERY)
        return min(moments, default=None)

    @property
    def _is_unwatched(self) -> bool:
        """Whether the runner lives without a watch, because no descriptor was free."""
        return self._process is not None and self._watch is None and not self.ended

    @property
    def _is_lost(self) -> bool:
        """Whether the runner lives and needs a connection."""
        return self.begun and not self.ended and self._exited is None

    def tick(self) -> None:
        """Send what a busy runner has not read yet. Connect to the runner if there is no connection. If that fails, a
        later call tries again."""
        if self._process is None:
            return
        if self._is_unwatched:
            self._follow(self._process)
        if self._channel is not None:
            self._channel.flush()
            self._check(self._channel)
            return
        if not self._is_lost or time.monotonic() < self._connect_at:
            return
        self._connect_at = time.monotonic() + _CONNECT_EVERY
        try:
            hello = Hello(server_proof(self._paths))
            fd, peer = unix_socket.connect(self._paths.socket)
        except OSError:
            return  # the runner is busy, or the program has removed the socket file: the runner creates it again
        if peer is None or peer.pid == self._process.pid:
            self._channel = Channel(fd)
            self._channel.send(of_server(hello))
            self._check(self._channel)
        else:
            os.close(fd)  # a program listens in the runner's place

    def on_ready(self, ready: Collection[int]) -> bool:
        """Handle events of these descriptors. Return whether the supervisor has something to decide: not for progress
        alone."""
        before = self._facts()
        watched = self._watch in ready
        if self._channel is not None and (watched or self._channel.fd in ready):
            self._receive(self._channel)
        if watched:
            self._end()
        return self._facts() != before

    def _facts(self) -> tuple[object, ...]:
        held = self.held and replace(self.held, workers=())
        return self.begun, self.connected, self.refused, self.ended, held

    def _receive(self, channel: Channel) -> None:
        for value in channel.receive():
            match from_runner(value, self._attempt):
                case Begun(process) if self._process is None:
                    self._follow(process)
                case StartRefused(why):
                    self.refused = why
                case Held() as held:
                    self.held = held
                case Progressed(values):
                    self.progress = values
                case Exited(outcome):
                    self._exited = outcome
        channel.flush()
        self._check(channel)

    def _check(self, channel: Channel) -> None:
        """Forget a connection that has ended."""
        if not channel.open:
            self._channel, self.held = None, None
            self._connect_at = time.monotonic() + _CONNECT_EVERY
            if self._process is None:
                self._end()

    def _follow(self, process: ProcessId) -> None:
        """Watch the runner. Without a free descriptor, `tick` tries again."""
        self._process = process
        with suppress(OSError):
            self._watch = processes.watch(process)
            if self._watch is None:
                self._end()

    def _end(self) -> None:
        self.ended = True
        self.close()

    # --- requests

    def allocate(self, allocation: Allocation) -> None:
        """Give the job other slots. If the runner does not get this message, it does not report its sequence."""
        self._send(allocation)

    def set_aside(self, sequence: int) -> None:
        """Ask the runner of a resting job to end, and to leave its state."""
        self._send(SetAside(sequence))

    def report(self, uses: Mapping[str, Use]) -> None:
        """Tell the runner how busy the GPUs of its slots are. Only a report is lost if the runner does not read."""
        if self._channel is not None and not self._channel.wants_to_write:
            self._send(GpusMeasured({slot: (use.busy, use.memory) for slot, use in uses.items()}))

    def _send(self, message: FromServer) -> None:
        if self._channel is not None:
            self._channel.send(of_server(message))
            self._check(self._channel)

    def stop(self) -> None:
        """Ask the runner to end the job."""
        if self._process is not None:
            processes.send_signal(self._process, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the runner itself. `LocalLauncher.sweep` then kills its processes."""
        if self._process is not None:
            processes.send_signal(self._process, signal.SIGKILL)

    def call_off(self) -> bool:
        """Prevent the start of an attempt that has not begun. Return False if it is too late: then an event follows.
        Raises OSError."""
        lock = try_lock(self._paths)
        if lock is None:
            return False
        try:
            runner = read_identity(self._paths)
            if runner is not None and runner.attempt == self._attempt:
                return False  # the runner has begun and ended: both events are still to be processed
            write_attempt(self._paths, 0)
        finally:
            os.close(lock)
        return True

    def cpu_seconds(self) -> float:
        """Return the CPU time, in seconds, that the processes of the attempt used so far. Call from any thread."""
        runner = self._process
        return 0.0 if runner is None or self.ended else tree.cpu_seconds(runner.pid)

    def outcome(self) -> Outcome | LostRun:
        """Return how an ended attempt ended; `LostRun` if its runner was killed. Raises OSError."""
        state = self._paths.state
        return self._exited or read_outcome(self._paths, self._attempt) or LostRun(
            "the runner was killed" if state.is_dir() else f"{state} was removed"
        )

    def close(self) -> None:
        """Close the connection; the runner keeps running."""
        if self._channel is not None:
            self._channel.close()
        if self._watch is not None:
            os.close(self._watch)
        self._channel = self._watch = None

