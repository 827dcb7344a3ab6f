"""The hub's ears and mouth: a socket server in the driver. Reads frames into events, sends messages; decides nothing.

A worker connects, shows its number and the job's key in the first frame, and keeps the connection for life. Nothing
else is read from a peer that has not shown the key.
"""

from __future__ import annotations

import hmac
import queue
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

from local_backend.elastic.errors import EngineError
from local_backend.elastic.events import (
    Arrived,
    AtBoundary,
    BatchResult,
    Broken,
    Event,
    Failed,
    Finished,
    Gone,
    Ready,
    Stepped,
    TaskDone,
)
from local_backend.elastic.frames import HELLO_LIMIT, Message, receive_frame, send_frame

#: Seconds that a new connection may take to show the key.
HELLO_SECONDS = 10.0
#: Events that may wait; a worker that is ahead of a slow logger waits then.
BACKLOG = 10_000

Inbox = queue.Queue[Event | BaseException]


class HubServer:
    """Listens on the loopback and turns what workers say into events in `inbox`."""

    def __init__(self, workers: tuple[int, ...], welcome: Message, payload: bytes) -> None:
        """`welcome` and `payload` are sent to each worker that shows the key."""
        self.inbox: Inbox = queue.Queue(BACKLOG)
        self.key = secrets.token_hex(32)
        self._workers = workers
        self._welcome = welcome
        self._payload = payload
        self._connections: dict[int, socket.socket] = {}
        self._ended: dict[int, str] = {}
        self._heard: set[int] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        threading.Thread(target=self._accept, name="hub-accept", daemon=True).start()

    @property
    def address(self) -> str:
        """`host:port` for workers."""
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def send(self, worker: int, message: Message) -> None:
        """Tell a worker something. One that is gone does not hear it: its end is an event of its own."""
        connection = self._connections.get(worker)
        if connection is not None:
            try:
                send_frame(connection, message)
            except OSError:
                return

    def ended(self, worker: int, how: str) -> None:
        """The worker's process has ended: once all that it said is read, `Gone` follows."""
        with self._lock:
            self._ended[worker] = how
            connection = self._connections.get(worker)
            heard = connection is None or worker in self._heard
        if heard:
            self.inbox.put(Gone(worker, how))
        elif connection is not None:
            try:
                # Wakes the reader even if something that the worker forked still holds the other end.
                connection.shutdown(socket.SHUT_RD)
            except OSError:
                return

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
                send_frame(connection, self._welcome, self._payload)
                self.inbox.put(Arrived(worker))
                self._listen(worker, connection)
            except (OSError, ValueError, KeyError, TypeError) as error:
                self.inbox.put(EngineError(f"worker {worker} sent what makes no sense: {error!r}"))
            with self._lock:
                self._heard.add(worker)
                how = self._ended.get(worker)
            if how is not None:
                self.inbox.put(Gone(worker, how))

    def _admit(self, connection: socket.socket) -> int | None:
        """The number of the worker at the other end, None when it may not come in."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(HELLO_SECONDS)
        try:
            frame = receive_frame(connection, HELLO_LIMIT)
        except (OSError, ValueError):
            return None
        if frame is None or not hmac.compare_digest(str(frame[0].get("key")), self.key):
            return None
        worker = frame[0].get("worker")
        connection.settimeout(None)
        with self._lock:
            if worker not in self._workers or worker in self._connections:
                return None
            self._connections[worker] = connection
        return worker

    def _listen(self, worker: int, connection: socket.socket) -> None:
        while (frame := receive_frame(connection)) is not None:
            self.inbox.put(to_event(worker, *frame))


def to_event(worker: int, message: Message, attachment: bytes) -> Event:
    """The event that a worker's message means. Raises KeyError, TypeError or ValueError when it makes no sense."""
    return _EVENTS[message["op"]](worker, message, attachment)


_EVENTS: dict[str, Callable[[int, Message, bytes], Event]] = {
    "ready": lambda worker, m, _: Ready(worker, int(m["samples"]), int(m["test_batches"])),
    "step": lambda worker, m, _: Stepped(worker, int(m["step"]), _results(m["results"])),
    "boundary": lambda worker, m, _: AtBoundary(worker, int(m["epoch"])),
    "done": lambda worker, m, _: TaskDone(worker, _results(m.get("results", []))),
    "finished": lambda worker, _, attachment: Finished(worker, attachment),
    "failed": lambda worker, m, attachment: Failed(worker, str(m["summary"]), str(m["traceback"]), attachment),
    "broken": lambda worker, *_: Broken(worker),
}


def results_to_wire(results: list[BatchResult]) -> list[list[Any]]:
    """Results as JSON; doubles survive to the last bit."""
    return [[r.number, r.count, r.loss, r.correct, dict(r.metrics)] for r in results]


def _results(rows: list[list[Any]]) -> tuple[BatchResult, ...]:
    return tuple(BatchResult(*row) for row in rows)
