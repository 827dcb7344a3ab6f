"""Errors of the engine.

    EngineError                 the engine refuses or cannot do something; the message is one clear line
    ├── WorkerLost              a worker died without an exception
    ├── HubGone                 the driver is gone, so the worker has no more work
    │   └── Dismissed           the hub has told the worker that the job is over; the reason is reported elsewhere
    └── GroupBroken             a collective failed because a peer is gone
    RemoteTraceback             the traceback of an exception in a worker, as the cause of that exception

Wrong arguments of FabricModel and train() raise plain TypeError and ValueError.
"""

from __future__ import annotations


class EngineError(RuntimeError):
    """The engine refuses or cannot do something. The message says what and why."""


class WorkerLost(EngineError):
    """A worker process ended without an exception of the user's code."""


class HubGone(EngineError):
    """The connection to the driver has ended."""


class Dismissed(HubGone):
    """The hub has said that the job is over."""


class GroupBroken(EngineError):
    """A collective operation failed because a peer is gone. The group is of no more use."""


class RemoteTraceback(Exception):
    """The traceback in a worker, shown as the cause of the exception that the worker raised."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"in a worker\n\n{self.text.rstrip()}"
