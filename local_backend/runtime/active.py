"""An attempt that is starting or running, as seen by the supervisor."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from local_backend.runtime.launcher import Run
from local_backend.runtime.paths import ExecPaths
from local_backend.scheduler.model import Allocation, Slot


@dataclass(frozen=True)
class LiveValues:
    """The last messages of a runner about its job."""

    progress: Mapping[str, Any]
    #: Numbers of the running workers of an elastic job.
    workers: tuple[int, ...] = ()


@dataclass
class Active:
    """One attempt. The attempt is starting until `run.begun` or `run.ended`."""

    paths: ExecPaths
    run: Run
    attempt: int
    #: Slots that the job may use.
    allocation: Allocation
    #: All slots that no other job may get: the slots of `allocation`, and earlier slots that the job still holds.
    slots: tuple[Slot, ...]
    #: Whether the database records that the attempt has begun.
    recorded: bool = False
    #: Whether the exec is in state RECOVERING.
    recovering: bool = False
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
    #: Seconds that the kernels of a service may take to answer their requests, and to end.
    leave_timeout: float = 0.0
    #: When the attempt got its first slots, and when its slots last changed (monotonic).
    began: float = field(default_factory=time.monotonic)
    changed: float = field(default_factory=time.monotonic)
    #: Seconds that the attempt was parked before `changed`; rests do not count.
    parked: float = 0.0
    #: When the exec began to rest (monotonic); None while it does not rest.
    #: What was done last, so that it is done once: the rest that was recorded, and the sequence of the allocation with
    #: which the runner was asked to set the job aside.
    rested_at: float | None = None
    noted: int | None = None
    asked: int | None = None
    #: Slot-seconds that the attempt had used at `_counted` (monotonic).
    _served: float = 0.0
    _counted: float = field(default_factory=time.monotonic)

    @property
    def exec_id(self) -> str:
        return self.paths.exec_id

    @property
    def live(self) -> LiveValues:
        """The last messages of the runner."""
        held = self.run.held
        return LiveValues(self.run.progress, held.workers if held is not None else ())

    @property
    def resizable(self) -> bool:
        """Whether the runner acts on the newest allocation, so that it can get another one."""
        held = self.run.held
        return self.elastic and self.movable and held is not None and held.sequence == self.allocation.sequence

    @property
    def movable(self) -> bool:
        """Whether the attempt is running and is not being stopped."""
        return self.recorded and not self.leaving

    @property
    def leaving(self) -> bool:
        """Whether the attempt is being stopped, or is over."""
        return self.run.ended or self.kill_at is not None

    def service(self, now: float) -> float:
        """Return the slot-seconds that the attempt has used since this server knows it."""
        self._served += len(self.slots) * (now - self._counted)
        self._counted = now
        return self._served

    def on_ready(self, ready: Collection[int]) -> bool:
        """Handle messages of the runner, or its end. Return whether the supervisor has something to decide.

        The first state over a connection tells the allocation that the runner acts on. An allocation that was sent over
        an earlier connection, and is not in this state, never reaches the runner.
        """
        before = self.run.held
        news = self.run.on_ready(ready)
        held = self.run.held
        if before is None and held is not None:
            known = {slot.id: slot for slot in self.slots}
            slots = tuple(known[name] for name in held.slots if name in known)
            self.allocation = Allocation(slots, held.sequence, held.rest)
        return news
