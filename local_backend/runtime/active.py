"""An attempt that is starting or running, as the supervisor knows it."""

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
    """One attempt. It is starting while `ready` is open, running while `watch` is, and over when `gone`."""

    paths: ExecPaths
    attempt: int
    #: What the job may use.
    allocation: Allocation
    #: All slots that nobody else may have: those of `allocation`, and those that it had before and still holds.
    slots: tuple[Slot, ...]
    #: Reading end of the runner's ready pipe.
    ready: int | None = None
    #: What the runner said about its beginning, once `ready` is closed; None when it ended without a word.
    said: dict[str, object] | None = None
    #: Its beginning is in the database.
    recorded: bool = False
    #: What the runner of an elastic job said last.
    report: Report | None = None
    #: The exec is shown as RECOVERING.
    recovering: bool = False
    runner: ProcessId | None = None
    #: Readable when the runner has ended.
    watch: int | None = None
    gone: bool = False
    #: A stop was passed on to the runner; it is killed at this moment (monotonic) if it still lives.
    kill_at: float | None = None
    killed: bool = False
    #: Whose slots it was on, when it is stopped for that and waits again.
    reclaimed_for: str | None = None
    #: It may be given other slots while it runs.
    elastic: bool = False
    #: Of each of its slots, for each worker that is on it.
    share: float = 1.0
    #: When it got its first slots, and when it was last given others (monotonic).
    began: float = field(default_factory=time.monotonic)
    changed: float = field(default_factory=time.monotonic)
    #: Seconds for which it was parked, until `changed`.
    parked: float = 0.0
    #: Slot-seconds that it has had, until that moment.
    _served: float = 0.0
    _counted: float = field(default_factory=time.monotonic)

    @property
    def exec_id(self) -> str:
        return self.paths.exec_id

    @property
    def resizable(self) -> bool:
        """Whether its runner can be told of other slots now."""
        return self.elastic and self.movable and self.report is not None

    @property
    def movable(self) -> bool:
        """Whether it runs, and is not on its way out."""
        return self.recorded and not self.leaving and self.runner is not None

    @property
    def leaving(self) -> bool:
        """Whether it is being stopped, or is over."""
        return self.gone or self.kill_at is not None

    def service(self, now: float) -> float:
        """Slot-seconds that it has had since this server knows it."""
        self._served += len(self.slots) * (now - self._counted)
        self._counted = now
        return self._served

    def begin(self, runner: ProcessId) -> None:
        """The runner has begun: watch it."""
        self.runner = runner
        self.watch = processes.watch(runner)
        self.gone = self.watch is None

    def read_ready(self) -> None:
        """Read what the runner says about its beginning, and watch it if it has begun. Closes the pipe."""
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
        """The runner is gone."""
        self.gone = True
        self.close()

    def close(self) -> None:
        """Close what is watched; the runner goes on."""
        for fd in (self.ready, self.watch):
            if fd is not None:
                os.close(fd)
        self.ready = self.watch = None
