"""The socket server of the hub, in the driver. It turns frames into events and sends messages; it decides nothing.

A worker connects, sends its number and its key in the first frame, and keeps the connection until the worker ends. The
server reads nothing else from a peer that has not sent a valid key.
"""

from __future__ import annotations

import hmac
import queue
import secrets
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from local_backend.elastic.errors import EngineError
from local_backend.elastic.frames import HELLO_LIMIT, Message, packed, receive_frame, send_frame
from local_backend.elastic.hub.events import (
    Applied,
    Arrived,
    AtBoundary,
    Broken,
    Entered,
    Event,
    Failed,
    Finished,
    Formed,
    Gone,
    Kept,
    Left,
    Lost,
    NotKept,
    Published,
    Ready,
    Stepped,
    TaskDone,
    results_from_wire,
)
from local_backend.elastic.position import Position
from local_backend.elastic.threads import EngineThread

#: Seconds within which a new connection must send the key.
HELLO_SECONDS = 10.0
#: Maximum number of events in the inbox. When it is full, a worker that is ahead of a slow logger waits.
BACKLOG = 256

#: The hub cuts the connection of a worker that does not read for this many seconds.
SEND_SECONDS = 30.0


@dataclass(frozen=True)
class Pong:
    """The answer of a worker's control thread to a ping. `phase` is the present activity of its main thread."""

    worker: int
    phase: str


@dataclass(frozen=True)
class Observed:
    """The state of a worker after a step, and the number of members that computed the step. Steps count from 0 over the
    job."""

    worker: int
    step: int
    members: int
    table: bytes


Inbox = queue.Queue[Event | Pong | Observed | BaseException]


class HubServer:
    """A server on the loopback that turns messages of workers into events in `inbox`."""

    def __init__(self, welcome: Message, payload: bytes) -> None:
        """The server sends `welcome` and `payload` to each worker that has sent its key."""
        self.inbox: Inbox = queue.Queue(BACKLOG)
        self._welcome = welcome
        self._payload = payload
        #: Worker → key, for workers that may connect. Each key is valid for one connection.
        self._keys: dict[int, str] = {}
        self._connections: dict[int, socket.socket] = {}
        #: Workers that have received the whole welcome. From then on, only the hub's thread sends to them.
        self._welcomed: set[int] = set()
        self._over = False
        self._ended: dict[int, str] = {}
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        EngineThread(self._accept, "hub-accept").start()

    def expect(self, worker: int) -> str:
        """Return the key that a worker must send. Call this before the worker is started."""
        with self._lock:
            self._keys[worker] = secrets.token_hex(32)
            return self._keys[worker]

    @property
    def address(self) -> str:
        """The `host:port` to which workers connect."""
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def send(self, worker: int, message: Message, attachment: bytes = b"") -> None:
        """Send a message to a worker. A message to a worker that is gone is dropped; a separate event reports its
        end."""
        connection = self._connections.get(worker)
        if connection is not None:
            try:
                send_frame(connection, message, attachment)
            except OSError:
                # A part of the message may have been sent: no other message can follow.
                self.cut(worker)

    def cut(self, worker: int) -> None:
        """End the connection of a worker that must not take part any more."""
        connection = self._connections.get(worker)
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                return

    def ended(self, worker: int, how: str) -> None:
        """Note that the worker's process has ended. The event `Gone` follows after all messages of the worker are
        read."""
        with self._lock:
            self._keys.pop(worker, None)
            connection = self._connections.get(worker)
            if connection is not None:
                self._ended[worker] = how
        if connection is None:
            self.inbox.put(Gone(worker, how))
            return
        try:
            # Wake the reader even if a child of the worker still holds the other end.
            connection.shutdown(socket.SHUT_RD)
        except OSError:
            return

    def dismiss(self) -> None:
        """Tell all workers that the job is over, and end their connections. Do the same with workers that connect
        later."""
        with self._lock:
            self._over = True
            connections = [self._connections[worker] for worker in self._welcomed]
        for connection in connections:
            _say_over(connection)

    def close(self) -> None:
        """Close all connections. Workers that are still alive end then."""
        with self._lock:
            connections = [self._listener, *self._connections.values()]
        # Shutting down wakes waiting threads; closing alone would not.
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            EngineThread(self._serve, "hub-worker", connection).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            worker = self._admit(connection)
            if worker is None:
                return
            try:
                if not self._over:
                    send_frame(connection, self._welcome, self._payload)
                if self._lets_in(worker):
                    self.inbox.put(Arrived(worker))
                    self._listen(worker, connection)
                else:
                    _say_over(connection)
            except OSError:
                pass  # the worker is gone, perhaps before it got the welcome
            except (ValueError, KeyError, TypeError) as error:
                self.inbox.put(EngineError(f"worker {worker} sent an invalid message: {error!r}"))
            with self._lock:
                how = self._ended.pop(worker, None)
                self._connections.pop(worker, None)
                self._welcomed.discard(worker)
            self.inbox.put(Lost(worker) if how is None else Gone(worker, how))

    def _admit(self, connection: socket.socket) -> int | None:
        """Return the number of the worker at the other end, or None when the peer is not admitted."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(HELLO_SECONDS)
        try:
            frame = receive_frame(connection, HELLO_LIMIT)
        except (OSError, ValueError):
            return None
        if frame is None:
            return None
        worker = frame[0].get("worker")
        if not isinstance(worker, int):
            return None
        with self._lock:
            known = self._keys.get(worker)
            if known is None or not hmac.compare_digest(str(frame[0].get("key")), known):
                return None
            # A key is valid for one connection.
            del self._keys[worker]
            self._connections[worker] = connection
        connection.settimeout(None)
        # A worker must not block the hub for long, so sending has a limit. Receiving has no limit.
        seconds = struct.pack("ll", int(SEND_SECONDS), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        return worker

    def _lets_in(self, worker: int) -> bool:
        """Return whether the job still goes on; if so, count the worker as welcomed."""
        with self._lock:
            if not self._over:
                self._welcomed.add(worker)
            return not self._over

    def _listen(self, worker: int, connection: socket.socket) -> None:
        while (frame := receive_frame(connection)) is not None:
            self.inbox.put(to_event(worker, *frame))


def _say_over(connection: socket.socket) -> None:
    """Tell a worker that the job is over. Do not wait for a worker that does not read: it will be killed."""
    with suppress(OSError):
        connection.send(packed({"op": "over"}), socket.MSG_DONTWAIT)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def to_event(worker: int, message: Message, attachment: bytes) -> Event | Pong | Observed:
    """Return the event for a worker's message. Raises KeyError, TypeError or ValueError when the message is invalid."""
    return _EVENTS[message["op"]](worker, message, attachment)


_EVENTS: dict[str, Callable[[int, Message, bytes], Event | Pong | Observed]] = {
    "ready": lambda worker, m, _: Ready(
        worker, int(m["samples"]), int(m["test_batches"]), dict(m.get("data", {}))
    ),
    "publish": lambda worker, m, data: Published(worker, int(m["generation"]), str(m["key"]), data),
    "formed": lambda worker, m, _: Formed(worker, int(m["generation"])),
    "entered": lambda worker, m, _: Entered(worker, int(m["generation"]), int(m["applied"])),
    "step": lambda worker, m, _: Stepped(worker, int(m["step"]), results_from_wire(m["results"]), float(m["seconds"])),
    "applied": lambda worker, m, _: Applied(worker, int(m["steps"])),
    "boundary": lambda worker, m, _: AtBoundary(
        worker, int(m["epoch"]), bool(m["saved"]), dict(m.get("data", {})), bool(m["told"]), bool(m["stop"]),
        dict(m["values"]),
    ),
    "done": lambda worker, m, _: TaskDone(worker, results_from_wire(m.get("results", [])), str(m.get("trouble", ""))),
    "unkept": lambda worker, m, _: NotKept(worker, str(m["why"])),
    "kept": lambda worker, m, data: Kept(worker, Position.from_number(m["version"]), str(m["path"]), data),
    "left": lambda worker, *_: Left(worker),
    "finished": lambda worker, _, attachment: Finished(worker, attachment),
    "failed": lambda worker, m, data: Failed(
        worker, str(m["summary"]), str(m["traceback"]), data[: int(m["exception"])], data[int(m["exception"]) :],
    ),
    "broken": lambda worker, m, _: Broken(worker, int(m["generation"])),
    "observed": lambda worker, m, data: Observed(worker, int(m["step"]), int(m["members"]), data),
    "pong": lambda worker, m, _: Pong(worker, str(m["phase"])),
}
