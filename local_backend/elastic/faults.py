"""Fault points: named instants at which a test may have a worker killed, stopped or broken off.

`ELASTIC_FAULT=point:worker:step:action` in the worker's environment, several separated by commas; `*` fits every
worker or step, `POINTS` names the points. Without it a point costs one comparison. Each happens once in a process.
The action `hold` makes the main thread wait at the point: see `_hold`.
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
#: The folder in which `hold` shows where a worker waits.
HOLD_FOLDER = "ELASTIC_HOLD"

#: In the order in which a worker comes by.
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
    """What the action `raise` raises."""


@dataclass(frozen=True)
class Fault:
    """One entry of ELASTIC_FAULT."""

    point: str
    worker: str
    step: str
    action: str

    def fits(self, point: str, worker: int, step: int) -> bool:
        return self.point == point and self.worker in ("*", str(worker)) and self.step in ("*", str(step))


def parse(text: str) -> list[Fault]:
    """The faults that a value of ELASTIC_FAULT asks for. Raises ValueError."""
    faults = []
    for entry in filter(None, text.split(",")):
        words = entry.split(":")
        if len(words) != 4 or words[0] not in POINTS or words[3] not in ACTIONS:
            raise ValueError(
                f"{VARIABLE}: {entry!r} is not point:worker:step:action, point one of {', '.join(POINTS)}, "
                f"action one of {', '.join(ACTIONS)}"
            )
        faults.append(Fault(*words))
    return faults


_armed: list[Fault] = []
_worker = 0
_step = 0


def arm(worker: int, environment: Mapping[str, str]) -> None:
    """Faults of this process, which is `worker`. Raises ValueError."""
    global _worker
    _worker = worker
    _armed[:] = parse(environment.get(VARIABLE, ""))


def now(step: int) -> None:
    """The step (counted over the whole job) that the main thread works on."""
    global _step
    _step = step


def at(point: str) -> None:
    """This instant has come."""
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
    """Write the file `<point>-<worker>` into the folder ELASTIC_HOLD, and wait until the test has removed it.

    A file `over` in the folder ends all waiting. The other threads of the worker go on.
    """
    folder = Path(os.environ[HOLD_FOLDER])
    mark = folder / f"{point}-{_worker}"
    mark.touch()
    while mark.exists() and not (folder / "over").exists():
        time.sleep(0.005)


#: What may happen: a kill, a hang, an end without a word, a crash, an exception, the loss of the other members, a wait.
ACTIONS: dict[str, Callable[[str], object]] = {
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "exit": lambda _: os._exit(0),
    "segfault": lambda _: os.kill(os.getpid(), signal.SIGSEGV),
    "raise": _raise,
    "break": _break,
    "hold": _hold,
}
