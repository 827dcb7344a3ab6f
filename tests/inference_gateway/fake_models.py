"""Models, requests and kernels without input or output, for tests of the decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from local_backend.inference.control import GatewayState, Model, RequestLimits, Revision
from local_backend.inference.gateway.refusal import Refused
from local_backend.inference.gateway.served_models import ServedModels
from local_backend.inference.gateway.tasks import KernelSeat, QueuedRequest
from local_backend.inference.kernel import frames


class Answer:
    """Takes the answer to one request, and fails if it gets a second one."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.refusal: Refused | None = None
        self.is_over = False

    def part(self, body: bytes, more: bool, meta: bytes) -> None:
        assert not self.is_over
        self.parts.append(body)
        self.is_over = not more

    def refuse(self, refusal: Refused) -> None:
        assert not self.is_over
        self.refusal, self.is_over = refusal, True


class Peer:
    """The connection of a kernel: remembers what it gets."""

    def __init__(self) -> None:
        self.sent: list[list[QueuedRequest]] = []
        self.cancelled: list[int] = []
        self.is_killed = False

    def send(self, requests: Sequence[QueuedRequest]) -> None:
        self.sent.append(list(requests))

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)

    def kill(self) -> None:
        self.is_killed = True

    def bye(self) -> None:
        """Nothing to do."""


class World:
    """The models of a gateway at a time that the test sets."""

    def __init__(self, **limits: Any) -> None:
        self.now = 100.0
        self.limits = RequestLimits(**limits)
        self.waits: list[bool] = []
        self._due: float | None = None
        self.models = ServedModels(self.waits.append, self._wake)
        self.kernels: list[KernelSeat] = []
        self.version = 0
        self.revise(Revision(1, "exec-1", "key-1", "serving"))

    def revise(self, *revisions: Revision) -> None:
        """Apply a state with these revisions of the model `m`."""
        self.version += 1
        self.models.apply(GatewayState(self.version, {"m": Model("m", "alice", limits=self.limits,
                                                                 revisions=revisions)}), self.now)

    def kernel(self, revision: int = 1, *, ready: bool = True) -> KernelSeat:
        """Connect a kernel."""
        seat = KernelSeat(len(self.kernels) + 1, 1, Peer())
        queue = self.models.queue_of_key(f"key-{revision}")
        assert queue is not None
        queue.join(seat)
        self.kernels.append(seat)
        if ready:
            queue.set_ready(seat, self.now)
        return seat

    def submit(self, body: bytes = b"x", **more: Any) -> tuple[QueuedRequest, Answer]:
        """Send a request."""
        answer = Answer()
        return self.models.submit(self.models.models["m"], body, b"", answer, self.now, **more), answer

    def reply(self, seat: KernelSeat, number: int, body: bytes = b"ok", flags: int = 0) -> bool:
        """Let a kernel reply."""
        queue: Any = seat.queue
        found = bool(queue.replied(seat, number, flags, body, b"", now=self.now))
        queue.pass_on()
        return found

    def fail(self, seat: KernelSeat, number: int) -> bool:
        """Let a kernel say that a task failed."""
        return self.reply(seat, number, b"no", frames.FAILED)

    def run_timer(self, seconds: float) -> None:
        """Let time pass, with what the models ask the process of the gateway for, and no other call."""
        end = self.now + seconds
        while self._due is not None and self._due <= end:
            self.now, self._due = max(self.now, self._due), None
            self.models.tick(self.now)
            due = self.models.next_tick()
            if due is not None:
                self._wake(due)
        self.now = end

    def _wake(self, when: float) -> None:
        self._due = when if self._due is None else min(self._due, when)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with all that is due in between."""
        end = self.now + seconds
        while (due := self.models.next_tick()) is not None and due <= end:
            self.now = max(self.now, due)
            self.models.tick(self.now)
        self.now = end
        self.models.tick(end)


def batches(seat: KernelSeat) -> list[list[bytes]]:
    """Return the bodies of all batches that a kernel got."""
    peer: Any = seat.peer
    return [[one.body for one in batch] for batch in peer.sent]
