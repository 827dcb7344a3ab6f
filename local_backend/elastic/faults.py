"""Fault points: named points of a worker's code at which a test can kill, stop or interrupt the worker.

The variable `ELASTIC_FAULT=point:worker:step:action` in the worker's environment sets a fault; commas separate several
faults. `*` matches every worker or step, and `POINTS` lists the points. Each fault happens once per process. Without
the variable a point costs one comparison. The action `hold` makes the main thread wait at the point: see `_hold`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from local_backend.elastic.errors import GroupBroken

VARIABLE = "ELASTIC_FAULT"
#: Variable with the folder in which `hold` shows where a worker waits.
HOLD_FOLDER = "ELASTIC_HOLD"

#: The points, in the order in which a worker reaches them.
POINTS = (
    "starting",
    "loading",
    "warming",
    "ready",
    "forming",
    "entering",
    "state-copy",
    "receiving",
    "local-step",
    "before-reduce",
    "mid-reduce",
    "after-reduce",
    "mid-apply",
    "snapshot-rename",
    "callbacks",
    "boundary",
    "agreeing",
    "checkpoint-rename",
    "validating",
    "told",
    "leaving",
    "keeping",
    "finishing",
)


class InjectedError(RuntimeError):
    """The exception that the action `raise` raises."""


@dataclass(frozen=True)
class FaultPoint:
    """One entry of ELASTIC_FAULT."""

    point: str
    worker: str
    step: str
    action: str

    def fits(self, point: str, worker: int, step: int) -> bool:
        return self.point == point and self.worker in ("*", str(worker)) and self.step in ("*", str(step))


def parse(text: str) -> list[FaultPoint]:
    """Return the faults that a value of ELASTIC_FAULT lists. Raises ValueError when the value is malformed."""
    faults = []
    for entry in filter(None, text.split(",")):
        words = entry.split(":")
        if len(words) != 4 or words[0] not in POINTS or words[3] not in ACTIONS:
            raise ValueError(
                f"{VARIABLE}: {entry!r} is not point:worker:step:action, point one of {', '.join(POINTS)}, "
                f"action one of {', '.join(ACTIONS)}"
            )
        faults.append(FaultPoint(*words))
    return faults


_armed: list[FaultPoint] = []
_worker = 0
_step = 0


def arm(worker: int, environment: Mapping[str, str]) -> None:
    """Set the faults of this process from its environment. `worker`: the number of this worker. Raises ValueError."""
    global _worker
    _worker = worker
    _armed[:] = parse(environment.get(VARIABLE, ""))


def now(step: int) -> None:
    """Set the step (counted over the whole job) that the main thread works on."""
    global _step
    _step = step


def at(point: str) -> None:
    """Carry out the faults of this point."""
    if not _armed:
        return
    for fault in list(_armed):
        if fault.fits(point, _worker, _step):
            _armed.remove(fault)
            ACTIONS[fault.action](point)


def _raise(point: str) -> None:
    raise InjectedError(f"injected at {point}")


def _break(point: str) -> None:
    raise GroupBroken(f"injected at {point}")


def _hold(point: str) -> None:
    """Write the file `<point>-<worker>` into the folder ELASTIC_HOLD, and wait until the test removes it.

    A file `over` in the folder ends all waits. The other threads of the worker continue.
    """
    folder = Path(os.environ[HOLD_FOLDER])
    mark = folder / f"{point}-{_worker}"
    mark.touch()
    while mark.exists() and not (folder / "over").exists():
        time.sleep(0.005)


#: Name → action: kill, hang, exit without a message, crash, exception, loss of the other members, wait.
ACTIONS: dict[str, Callable[[str], object]] = {
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "exit": lambda _: os._exit(0),
    "segfault": lambda _: os.kill(os.getpid(), signal.SIGSEGV),
    "raise": _raise,
    "break": _break,
    "hold": _hold,
}
