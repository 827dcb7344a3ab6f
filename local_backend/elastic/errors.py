"""Errors of the engine.

    EngineError                 something that the engine refuses or cannot do; one clear line
    ├── WorkerLost              a worker died without saying why
    ├── HubGone                 the driver is gone; a worker has nothing more to do
    │   └── Dismissed           the hub has said so itself: the job is over, and why is told elsewhere
    └── GroupBroken             a collective failed because a peer is gone
    RemoteTraceback             the traceback of an exception in a worker, as the cause of that exception

Wrong arguments of FabricModel and train() are plain TypeErrors and ValueErrors.
"""

from __future__ import annotations


class EngineError(RuntimeError):
    """The engine cannot do what was asked; the message says what and why."""


class WorkerLost(EngineError):
    """A worker process ended without an exception of the user's code."""


class HubGone(EngineError):
    """The connection to the driver has ended."""


class Dismissed(HubGone):
    """The hub has said that the job is over."""


class GroupBroken(EngineError):
    """A collective operation failed: a peer is gone, and the group is of no more use."""


class RemoteTraceback(Exception):
    """Shown as the cause of an exception that was raised in a worker."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"in a worker\n\n{self.text.rstrip()}"
