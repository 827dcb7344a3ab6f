"""Requests that wait for a kernel or have one, the batches of a kernel, and the kernel itself. Without input or output.

`queues.py` decides; this module holds what it decides about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from local_backend.inference.gateway.refusal import Refused

if TYPE_CHECKING:
    from local_backend.inference.control import KernelLoad


class AnswerSink(Protocol):
    """The receiver of the answer to one request. Exactly one of the calls is the last one: a part without `more`, or
    a refusal."""

    def part(self, body: bytes, more: bool, meta: bytes) -> None:
        """Take a part of the answer. `meta` is a JSON object, or empty."""

    def refuse(self, refusal: Refused) -> None:
        """Take a refusal instead of the answer, or of its rest."""


class KernelPeer(Protocol):
    """The connection of one kernel, or of the gateway that replaces this one."""

    def send(self, requests: Sequence[QueuedRequest]) -> None:
        """Send a batch."""

    def cancel(self, number: int) -> None:
        """Say that the client of a request is gone, so that its answer is not needed."""

    def kill(self) -> None:
        """End the kernel at once. `KernelSeat` gets no further call from the connection."""

    def bye(self) -> None:
        """Ask the kernel to answer what it has and to connect again."""


class QueuedRequest:
    """One request to a model, until it has its answer."""

    __slots__ = ("arrived", "batch", "begun", "body", "bucket", "deadline", "fixed", "id", "meta", "model", "pinned",
                 "queue", "sink", "tries")

    def __init__(self, number: int, model: str, body: bytes, meta: bytes, *, sink: AnswerSink,
                 now: float) -> None:
        """`meta` is a JSON object, or empty; `now` is the time of arrival."""
        self.id = number
        self.model = model
        self.body = body
        self.meta = meta
        #: None when the client has its answer, or is gone.
        self.sink: AnswerSink | None = sink
        self.arrived = now
        self.deadline: float | None = None
        #: Whether the client has set the deadline: then a part of a stream does not extend it.
        self.fixed = False
        self.bucket = -1
        #: The revision that the client asks for; None if the weights choose.
        self.pinned: int | None = None
        #: Its `RevisionQueue`; typed as object because the queue knows the request.
        self.queue: object | None = None
        self.batch: KernelBatch | None = None
        #: Whether a part of the answer has been passed on, so that no other kernel can take over.
        self.begun = False
        self.tries = 0


class KernelBatch:
    """Requests that a kernel got together."""

    __slots__ = ("began", "left", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.left = size
        #: When the kernel could begin with it; 0.0 while it waits behind other batches.
        self.began = 0.0


#: The batch of a task that its kernel has returned from without an answer.
NO_BATCH = KernelBatch(0)


class KernelSeat:
    """What the queue knows about one connected kernel."""

    __slots__ = ("batches", "failed", "finished", "leaving", "number", "peer", "pid", "queue", "ready", "tasks")

    def __init__(self, number: int, pid: int, peer: KernelPeer) -> None:
        self.number = number
        self.pid = pid
        self.peer = peer
        self.queue: object | None = None
        self.ready = False
        self.leaving = False
        self.batches: dict[KernelBatch, None] = {}
        #: Requests without their last part, by id; also those whose client is gone.
        self.tasks: dict[int, QueuedRequest] = {}
        self.finished = 0
        self.failed = 0

    def load(self, make: type[KernelLoad]) -> KernelLoad:
        """Return its load."""
        return make(self.number, self.pid, self.ready, self.leaving, len(self.tasks), self.finished, self.failed)

    def promote(self, parallel: int, now: float) -> None:
        """Note that the kernel can begin with its first batches, because earlier ones are done."""
        for position, batch in enumerate(self.batches):
            if position >= parallel:
                break
            if batch.began == 0.0:
                batch.began = now

    def overdue(self, seconds: float, now: float) -> set[KernelBatch]:
        """Return the batches that the kernel has had for longer than `seconds` since it could begin with them."""
        return {batch for batch in self.batches if batch.began and now - batch.began > seconds}
