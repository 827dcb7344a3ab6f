"""The hub's ears and mouth: a socket server in the driver. Reads frames into events, sends messages; decides nothing.

A worker connects, shows its number and the job's key in the first frame, and keeps the connection for life. Nothing
else is read from a peer that has not shown the key.
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
from typing import Any

from local_backend.elastic.errors import EngineError
from local_backend.elastic.events import (
    Applied,
    Arrived,
    AtBoundary,
    BatchResult,
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
    Published,
    Ready,
    Stepped,
    TaskDone,
)
from local_backend.elastic.frames import HELLO_LIMIT, Message, packed, receive_frame, send_frame

#: Seconds that a new connection may take to show the key.
HELLO_SECONDS = 10.0
#: Events that may wait; a worker that is ahead of a slow logger waits then.
BACKLOG = 256

#: A worker that does not read for this many seconds is as good as gone.
SEND_SECONDS = 30.0


@dataclass(frozen=True)
class Pong:
    """The worker's control thread answers; what its main thread does."""

    worker: int
    phase: str


@dataclass(frozen=True)
class Observed:
    """The state of a worker after a step, counted from 0 over the job, and how many members computed the step."""

    worker: int
    step: int
    members: int
    table: bytes


Inbox = queue.Queue[Event | Pong | Observed | BaseException]


class HubServer:
    """Listens on the loopback and turns what workers say into events in `inbox`."""

    def __init__(self, welcome: Message, payload: bytes) -> None:
        """`welcome` and `payload` are sent to each worker that shows its key."""
        self.inbox: Inbox = queue.Queue(BACKLOG)
        self._welcome = welcome
        self._payload = payload
        #: Worker → key, of those that may connect, once each.
        self._keys: dict[int, str] = {}
        self._connections: dict[int, socket.socket] = {}
        #: Workers that have been told all of the welcome, and hear nothing but from the hub's thread.
        self._welcomed: set[int] = set()
        self._over = False
        self._ended: dict[int, str] = {}
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        threading.Thread(target=self._accept, name="hub-accept", daemon=True).start()

    def expect(self, worker: int) -> str:
        """A worker will be started; the key that it has to show."""
        with self._lock:
            self._keys[worker] = secrets.token_hex(32)
            return self._keys[worker]

    @property
    def address(self) -> str:
        """`host:port` for workers."""
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def send(self, worker: int, message: Message, attachment: bytes = b"") -> None:
        """Tell a worker something. One that is gone does not hear it: its end is an event of its own."""
        connection = self._connections.get(worker)
        if connection is not None:
            try:
                send_frame(connection, message, attachment)
            except OSError:
                # Half a message may be on its way: nothing can follow it.
                self.cut(worker)

    def cut(self, worker: int) -> None:
        """End the connection of a worker, which is not to take part any more."""
        connection = self._connections.get(worker)
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                return

    def ended(self, worker: int, how: str) -> None:
        """The worker's process has ended: once all that it said is read, `Gone` follows."""
        with self._lock:
            self._keys.pop(worker, None)
            connection = self._connections.get(worker)
            if connection is not None:
                self._ended[worker] = how
        if connection is None:
            self.inbox.put(Gone(worker, how))
            return
        try:
            # Wakes the reader even if something that the worker forked still holds the other end.
            connection.shutdown(socket.SHUT_RD)
        except OSError:
            return

    def dismiss(self) -> None:
        """The job is over: the workers are told so and their connections end; and so with those who come later."""
        with self._lock:
            self._over = True
            connections = [self._connections[worker] for worker in self._welcomed]
        for connection in connections:
            _say_over(connection)

    def close(self) -> None:
        """Close all connections; workers that still live end then."""
        with self._lock:
            connections = [self._listener, *self._connections.values()]
        # Shutting down wakes the threads that wait; closing alone would not.
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
            threading.Thread(target=self._serve, args=(connection,), name="hub-worker", daemon=True).start()

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
                pass  # it is gone, perhaps before it was welcome
            except (ValueError, KeyError, TypeError) as error:
                self.inbox.put(EngineError(f"worker {worker} sent what makes no sense: {error!r}"))
            with self._lock:
                how = self._ended.pop(worker, None)
                self._connections.pop(worker, None)
                self._welcomed.discard(worker)
            self.inbox.put(Lost(worker) if how is None else Gone(worker, how))

    def _admit(self, connection: socket.socket) -> int | None:
        """The number of the worker at the other end, None when it may not come in."""
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
            # A key is good for one connection.
            del self._keys[worker]
            self._connections[worker] = connection
        connection.settimeout(None)
        # Sending never blocks the hub for long, whatever a worker does; receiving may take for ever.
        seconds = struct.pack("ll", int(SEND_SECONDS), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        return worker

    def _lets_in(self, worker: int) -> bool:
        """Whether the job goes on with this worker, which is welcome."""
        with self._lock:
            if not self._over:
                self._welcomed.add(worker)
            return not self._over

    def _listen(self, worker: int, connection: socket.socket) -> None:
        while (frame := receive_frame(connection)) is not None:
            self.inbox.put(to_event(worker, *frame))


def _say_over(connection: socket.socket) -> None:
    """Tell a worker that the job is over. One that does not even read is not waited for: it will be killed."""
    with suppress(OSError):
        connection.send(packed({"op": "over"}), socket.MSG_DONTWAIT)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def to_event(worker: int, message: Message, attachment: bytes) -> Event | Pong | Observed:
    """The event that a worker's message means. Raises KeyError, TypeError or ValueError when it makes no sense."""
    return _EVENTS[message["op"]](worker, message, attachment)


_EVENTS: dict[str, Callable[[int, Message, bytes], Event | Pong | Observed]] = {
    "ready": lambda worker, m, _: Ready(
        worker, int(m["samples"]), int(m["test_batches"]), dict(m.get("data", {}))
    ),
    "publish": lambda worker, m, data: Published(worker, int(m["generation"]), str(m["key"]), data),
    "formed": lambda worker, m, _: Formed(worker, int(m["generation"])),
    "entered": lambda worker, m, _: Entered(worker, int(m["generation"]), int(m["applied"])),
    "step": lambda worker, m, _: Stepped(worker, int(m["step"]), _results(m["results"]), float(m["seconds"])),
    "applied": lambda worker, m, _: Applied(worker, int(m["steps"])),
    "boundary": lambda worker, m, _: AtBoundary(
        worker, int(m["epoch"]), bool(m["saved"]), dict(m.get("data", {})), bool(m["told"]), bool(m["stop"]),
        dict(m["values"]),
    ),
    "done": lambda worker, m, _: TaskDone(worker, _results(m.get("results", []))),
    "kept": lambda worker, m, data: Kept(worker, int(m["version"]), str(m["path"]), data),
    "left": lambda worker, *_: Left(worker),
    "finished": lambda worker, _, attachment: Finished(worker, attachment),
    "failed": lambda worker, m, data: Failed(
        worker, str(m["summary"]), str(m["traceback"]), data[: int(m["exception"])], data[int(m["exception"]) :],
    ),
    "broken": lambda worker, m, _: Broken(worker, int(m["generation"])),
    "observed": lambda worker, m, data: Observed(worker, int(m["step"]), int(m["members"]), data),
    "pong": lambda worker, m, _: Pong(worker, str(m["phase"])),
}


def results_to_wire(results: list[BatchResult]) -> list[list[Any]]:
    """Results as JSON; doubles survive to the last bit."""
    return [[r.number, r.count, r.loss, r.correct, dict(r.metrics)] for r in results]


def _results(rows: list[list[Any]]) -> tuple[BatchResult, ...]:
    return tuple(BatchResult(*row) for row in rows)
