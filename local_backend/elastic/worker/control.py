"""The control thread of a worker: it receives the hub's messages while the main thread trains.

The control thread handles messages about generations and pings at once. It forms groups in the background. The message
`enter` interrupts any wait in an older generation. All other messages are orders for the main thread. `Link` is the
connection to the hub.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch

from local_backend.elastic.collective.group import Formation, Interrupted
from local_backend.elastic.errors import Dismissed, EngineError, HubGone
from local_backend.elastic.frames import Message, receive_frame, send_frame


class Link:
    """One stream socket for the lifetime of the worker. Any thread may send; only one thread receives."""

    def __init__(self, number: int, address: str, key: str) -> None:
        """Connect to the hub at `address` (host:port) and send `hello`. Raises HubGone when there is no hub."""
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host, int(port)))
        except OSError as error:
            raise HubGone(f"cannot connect to the hub at {address}: {error.strerror}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sending = threading.Lock()
        self.send({"op": "hello", "worker": number, "key": key})

    @property
    def descriptor(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message, attachment: bytes = b"") -> None:
        """Send a message. Raises HubGone when the connection has ended."""
        try:
            with self._sending:
                send_frame(self._socket, message, attachment)
        except OSError:
            raise HubGone("the connection to the driver ended") from None

    def receive(self) -> tuple[Message, bytes]:
        """Return the next message and its attachment. Raises HubGone when the connection has ended, and Dismissed when
        the hub says that the job is over."""
        try:
            frame = receive_frame(self._socket)
        except (OSError, ValueError):
            frame = None
        if frame is None:
            raise HubGone("the connection to the driver ended")
        if frame[0].get("op") == "over":
            raise Dismissed("the job has ended")
        return frame

    def close(self) -> None:
        """Close the connection. A thread that is receiving wakes up."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the hub has closed the connection already
        self._socket.close()


Order = tuple[Message, bytes]


@dataclass(frozen=True)
class Proposal:
    """A generation as the hub has described it in `prepare`."""

    number: int
    members: tuple[int, ...]
    counts: tuple[int, ...]


class ControlThread:
    """The messages of the hub, for the main thread. `start` starts the control thread."""

    def __init__(self, number: int, link: Link, device: torch.device) -> None:
        """Groups exchange tensors on `device`."""
        self._number = number
        self._link = link
        self._device = device
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._proposals: dict[int, Proposal] = {}
        self._formations: dict[int, Formation] = {}
        #: The generation of the newest message `enter`.
        self._called = 0
        #: Set when the connection to the hub has ended.
        self._gone: HubGone | None = None
        #: The newest generation whose members are all connected. Members agree on it in the next step.
        self.word = 0
        #: Activity of the main thread, for the answer to a ping of the hub.
        self.phase = "starting"
        self._listener = threading.Thread(target=self._listen, name="control", daemon=True)

    def start(self) -> None:
        """Start to receive messages."""
        self._listener.start()

    def order(self, *expected: str) -> Order:
        """Return the next order. Raises HubGone, and EngineError if the order is not one of `expected`."""
        order = self._orders.get()
        if order is None:
            raise self.why_gone()
        if order[0]["op"] not in expected:
            raise EngineError(f"the hub sent {order[0]['op']!r}; expected {' or '.join(expected)}")
        return order

    def why_gone(self) -> HubGone:
        """Return why the hub is gone. Waits for the control thread: a send may fail before the last message is read."""
        self._listener.join()
        assert self._gone is not None
        return self._gone

    def called_away(self, generation: int) -> bool:
        """Return whether the hub has called for a newer generation than this one, or is gone."""
        return self._called > generation or self._gone is not None

    def proposal(self, number: int) -> Proposal:
        """Return the description of the generation with that number."""
        with self._lock:
            return self._proposals[number]

    def formation(self, number: int) -> Formation:
        """Return the formation of that generation's group. Raises Interrupted if the hub has canceled it."""
        with self._lock:
            found = self._formations.get(number)
        if found is None:
            raise Interrupted(f"the hub canceled generation {number}")
        return found

    def taken(self, number: int) -> None:
        """Forget the formation of that generation: the main thread has taken its group."""
        with self._lock:
            self._formations.pop(number, None)

    def close(self) -> None:
        """Abandon all groups that are being formed."""
        with self._lock:
            for formation in self._formations.values():
                formation.abandon()
            self._formations.clear()

    def _listen(self) -> None:
        gone = HubGone("the connection to the driver ended")
        try:
            while True:
                self._hear(*self._link.receive())
        except HubGone as error:
            gone = error
        finally:
            self._gone = gone
            self.close()
            self._orders.put(None)

    def _hear(self, message: Message, attachment: bytes) -> None:
        match message:
            case {"op": "prepare", "generation": int(number)}:
                self._prepare(Proposal(number, tuple(message["members"]), tuple(message["counts"])))
            case {"op": "address", "generation": int(number), "key": str(key)}:
                with self._lock:
                    formation = self._formations.get(number)
                if formation is not None:
                    formation.deliver(key, attachment)
            case {"op": "cancel", "generation": int(number)}:
                self._forget(lambda other: other == number)
            case {"op": "confirm", "generation": int(number)}:
                self.word = number
            case {"op": "ping"}:
                with suppress(HubGone):
                    self._link.send({"op": "pong", "phase": self.phase})
            case {"op": "enter", "generation": int(number)}:
                self._forget(lambda other: other < number)
                self._called = number
                self._orders.put((message, attachment))
            case _:
                self._orders.put((message, attachment))

    def _prepare(self, proposal: Proposal) -> None:
        """Start to form the group of the generation, if this worker is a member."""
        number, link = proposal.number, self._link

        def publish(key: str, value: bytes) -> None:
            with suppress(HubGone):
                link.send({"op": "publish", "generation": number, "key": key}, value)

        def formed() -> None:
            with suppress(HubGone):
                link.send({"op": "formed", "generation": number})

        with self._lock:
            self._proposals[number] = proposal
            for old in [other for other in self._proposals if other < number - 100]:
                del self._proposals[old]
            if self._number in proposal.members:
                rank = proposal.members.index(self._number)
                self._formations[number] = Formation(
                    number, rank, len(proposal.members), self._device, publish, formed
                )

    def _forget(self, which: Callable[[int], bool]) -> None:
        with self._lock:
            for number in [number for number in self._formations if which(number)]:
                self._formations.pop(number).abandon()
