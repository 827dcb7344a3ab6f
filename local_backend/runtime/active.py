"""An attempt that is starting or running, as seen by the supervisor."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field

from local_backend.runtime import processes
from local_backend.runtime.allocation import Allocation, Report
from local_backend.runtime.launch import ProcessId
from local_backend.runtime.paths import ExecPaths
from local_backend.scheduler.model import Slot


@dataclass
class Active:
    """One attempt. The attempt is starting while `ready` is open, running while `watch` is open, and over when
    `gone`."""

    paths: ExecPaths
    attempt: int
    #: Slots that the job may use.
    allocation: Allocation
    #: All slots that no other job may get: the slots of `allocation`, and earlier slots that the job still holds.
    slots: tuple[Slot, ...]
    #: Read end of the runner's ready pipe.
    ready: int | None = None
    #: The runner's message about its start, once `ready` is closed; None if the runner ended without a message.
    said: dict[str, object] | None = None
    #: Whether the database records that the attempt has begun.
    recorded: bool = False
    #: Last report of an elastic job's runner.
    report: Report | None = None
    #: Whether the exec is in state RECOVERING.
    recovering: bool = False
    runner: ProcessId | None = None
    #: Descriptor that becomes readable when the runner ends.
    watch: int | None = None
    gone: bool = False
    #: Set when a stop was sent to the runner: the moment (monotonic) at which the supervisor kills it if it still
    #: lives.
    kill_at: float | None = None
    killed: bool = False
    #: Owner of the slots, if the attempt is stopped to return lent slots; the exec is then queued again.
    reclaimed_for: str | None = None
    #: Whether the job's slots may change while it runs.
    elastic: bool = False
    #: Fraction of each slot that a worker on that slot takes.
    share: float = 1.0
    #: When the attempt got its first slots, and when its slots last changed (monotonic).
    began: float = field(default_factory=time.monotonic)
    changed: float = field(default_factory=time.monotonic)
    #: Seconds that the attempt was parked before `changed`.
    parked: float = 0.0
    #: Slot-seconds that the attempt had used at `_counted` (monotonic).
    _served: float = 0.0
    _counted: float = field(default_factory=time.monotonic)

    @property
    def exec_id(self) -> str:
        return self.paths.exec_id

    @property
    def resizable(self) -> bool:
        """Whether the supervisor can give the runner other slots now."""
        return self.elastic and self.movable and self.report is not None

    @property
    def movable(self) -> bool:
        """Whether the attempt is running and is not being stopped."""
        return self.recorded and not self.leaving and self.runner is not None

    @property
    def leaving(self) -> bool:
        """Whether the attempt is being stopped, or is over."""
        return self.gone or self.kill_at is not None

    def service(self, now: float) -> float:
        """Return the slot-seconds that the attempt has used since this server knows it."""
        self._served += len(self.slots) * (now - self._counted)
        self._counted = now
        return self._served

    def begin(self, runner: ProcessId) -> None:
        """Watch a runner that has begun."""
        self.runner = runner
        self.watch = processes.watch(runner)
        self.gone = self.watch is None

    def read_ready(self) -> None:
        """Read the runner's message about its start, and watch the runner if it has begun. Closes the pipe."""
        assert self.ready is not None
        with open(self.ready, "rb") as pipe:
            self.ready = None
            line = pipe.readline(65536)
        try:
            said = json.loads(line)
        except ValueError:
            return
        if isinstance(said, dict):
            self.said = said
            match said:
                case {"pid": int(pid), "start_time": float(began)}:
                    self.begin(ProcessId(pid, began))

    def ended(self) -> None:
        """Mark the attempt as over, because its runner has ended."""
        self.gone = True
        self.close()

    def close(self) -> None:
        """Close the watched descriptors; the runner keeps running."""
        for fd in (self.ready, self.watch):
            if fd is not None:
                os.close(fd)
        self.ready = self.watch = None
