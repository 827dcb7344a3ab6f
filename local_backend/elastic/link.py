"""A worker's connection to the hub of its job."""

from __future__ import annotations

import socket
import threading

from local_backend.elastic.errors import Dismissed, HubGone
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
