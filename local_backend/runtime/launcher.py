"""The interface between the supervisor and the place where jobs run.

The supervisor decides which exec gets which slots. A `Launcher` has the slots, starts runs on them, and finds the runs
of earlier servers. Only a launcher knows processes and their files. `local_launcher.py` runs jobs on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from local_backend.runtime.paths import ExecPaths
from local_backend.scheduler.model import Allocation, Machine, Slot
from local_backend.workload import Workload

if TYPE_CHECKING:
    from local_backend.runtime.loop import Loop


@dataclass(frozen=True)
class RunOrder:
    """The attempt that a launcher is to start."""

    workload: Workload
    attempt: int
    slots: tuple[Slot, ...]
    #: Fraction of each of its slots that a worker may use.
    share: float
    #: Number of finished epochs after which an elastic job rests; None: it trains to its end.
    rest: int | None = None


@dataclass(frozen=True)
class Held:
    """The slots of a running job."""

    #: Sequence of the allocation that the job acts on, and the ids of its slots.
    sequence: int
    slots: tuple[str, ...]
    #: Ids of these slots, and of slots on which any process of a worker still lives.
    held: tuple[str, ...]
    #: Numbers of the running workers of an elastic job.
    workers: tuple[int, ...] = ()
    #: Whether the driver died and is being restarted, or reports that it is recovering.
    recovering: bool = False
    #: Number of workers that the driver can use; None until the driver has reported it.
    usable: int | None = None
    #: Number of finished epochs after which the job rests, by this allocation; after which it rests now. Its curves up
    #: to there are on the disk.
    rest: int | None = None
    rested: int | None = None
    #: Whether the state of a resting job is on the disk, so that its processes are not needed.
    stored: bool = False


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended, as its runner recorded it. In state PENDING, it was set aside while the job rested: the
    job continues with another attempt."""

    attempt: int
    state: str
    end_time: float
    exit_code: int | None = None
    #: Name of the signal that ended the first failing process.
    signal: str | None = None
    message: str | None = None
    reason: str | None = None
    #: Last progress of the program, see `progress.valid`.
    progress: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LostRun:
    """The attempt began, and is gone without an outcome. It cannot return."""

    why: str
    #: Whether the attempt was lost because the machine was restarted.
    rebooted: bool = False


class Run(Protocol):
    """One attempt. Its last messages can be read from any thread; only the supervisor's thread calls the methods."""

    #: Why the attempt could not begin.
    refused: str | None
    #: Whether the attempt has ended, or never began. The run is then closed.
    ended: bool
    #: The slots of the job; None while they are unknown.
    held: Held | None
    #: The progress of the program.
    progress: Mapping[str, Any]

    @property
    def begun(self) -> bool:
        """Whether the attempt has begun."""

    @property
    def connected(self) -> bool:
        """Whether messages of the job arrive, and it has not ended."""

    @property
    def descriptors(self) -> list[int]:
        """Descriptors that become readable when `on_ready` has something to handle."""

    @property
    def due(self) -> float | None:
        """When `tick` is due (monotonic); None if it is not."""

    def tick(self) -> None:
        """Do what a timer asks for, such as connecting again."""

    def on_ready(self, ready: Collection[int]) -> bool:
        """Handle events of these descriptors. Return whether the supervisor has something to decide: not for progress
        alone."""

    def allocate(self, allocation: Allocation) -> None:
        """Give the job other slots. If the job does not get them, it does not report their sequence."""

    def set_aside(self, sequence: int) -> None:
        """Ask the attempt of a resting job to end, and to leave its state for another attempt. The attempt ignores this
        if the job does not rest, or if it acts on another allocation than the one with this sequence."""

    def stop(self) -> None:
        """Ask the attempt to end."""

    def kill(self) -> None:
        """End an attempt that does not stop. `Launcher.sweep` then kills its processes."""

    def call_off(self) -> bool:
        """Prevent the start of an attempt that has not begun. Return False if it is too late: then an event follows.
        Raises OSError."""

    def cpu_seconds(self) -> float:
        """Return the CPU time, in seconds, that the processes of the attempt used so far; 0.0 while it has none. Call
        from any thread."""

    def outcome(self) -> Outcome | LostRun:
        """Return how an ended attempt ended. Raises OSError."""

    def close(self) -> None:
        """Stop following the attempt, which keeps running."""


class Launcher(Protocol):
    """Slots, and the runs on them. Only the supervisor's thread calls the methods; all properties but `descriptors` and
    `due` may be read from any thread."""

    @property
    def machine(self) -> Machine:
        """The slots, memory and labels; `drained` are the slots that must not be used now."""

    @property
    def status(self) -> dict[str, object]:
        """Values for GET /status, by name."""

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The background loops of the launcher."""

    # --- lifetime

    def warm_up(self) -> None:
        """Prepare for fast starts."""

    def watch_slots(self, held: Callable[[], Collection[str]], changed: Callable[[], None]) -> None:
        """Begin to check the slots. `held` returns the ids of the slots that jobs hold. Call `changed`, in any thread,
        when `machine.drained` has changed."""

    def close(self) -> None:
        """End everything but the runs, which keep running."""

    # --- events

    @property
    def descriptors(self) -> list[int]:
        """Descriptors that become readable when `on_ready` has something to handle; not those of runs."""

    @property
    def due(self) -> float | None:
        """When `tick` is due (monotonic); None if it is not."""

    def on_ready(self, ready: Collection[int]) -> None:
        """Handle events of these descriptors."""

    def tick(self) -> None:
        """Do what a timer asks for."""

    # --- runs

    def claim(self, paths: ExecPaths) -> AbstractContextManager[bool]:
        """Yield whether no attempt of an exec lives. Then none can begin within the block. Raises OSError."""

    def prepare(self, order: RunOrder) -> None:
        """Allow this attempt to begin, and no earlier one. Call within `claim`. Raises OSError or VaultError."""

    def start(self, order: RunOrder, *, warm: bool) -> Run:
        """Start a prepared attempt, after the block of `claim`. Without `warm`, use nothing that `warm_up` prepared.
        Raises OSError."""

    def adopt(self, paths: ExecPaths, attempt: int) -> Run | Outcome | LostRun | None:
        """Return the run of an attempt that an earlier server started, or how the attempt ended. None: it never began,
        and can no longer begin. An ended attempt can no longer begin, either. Raises OSError when this cannot be found
        out now: call again later."""

    def sweep_strays(self, kept: Collection[str], last: int) -> int:
        """Kill the processes of all execs up to the number `last` that are not `kept` (ids), such as execs that were
        deleted from the database. Return their number. Raises OSError while some of them live."""

    def restarts(self, paths: ExecPaths, step: float) -> bool:
        """Return whether an exec whose attempt is lost may start again, and count the restart if so. `step` is the
        highest step that this server knows. Call after `sweep`. Raises OSError."""

    def sweep(self, paths: ExecPaths) -> int:
        """Kill all processes that an ended attempt has left, and return their number. Raises OSError while some of
        them live: call again later. Until then no other job may get the slots."""
