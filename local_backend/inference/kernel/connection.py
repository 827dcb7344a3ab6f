"""A kernel's connection to the gateway: frames in and out on a Unix socket."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections import deque
from collections.abc import Iterable

from local_backend.inference.kernel import frames

#: Bytes of one read. A longer frame is read into memory of its size.
_CHUNK = 256 << 10
#: Answers of at most this many bytes are copied into one write.
_JOINED = 1 << 20
#: Seconds until the gateway must have answered HELLO.
_WELCOME_TIMEOUT = 10.0
#: Seconds without a frame after LEAVING, after which no further task comes, if the gateway says nothing.
_LAST_TASK = 1.0


class GatewayGone(Exception):
    """The connection to the gateway cannot be made, or is lost."""


class GatewayConnection:
    """One connection. Any thread may send; the threads that run batches take turns at receiving."""

    def __init__(self, path: str, hello: dict[str, object], stop: int) -> None:
        """Connect to the socket at `path` and say HELLO; `greet` must follow. `stop` is a descriptor that is readable
        once the kernel must leave. Raises GatewayGone."""
        self._stop = stop
        self._rest: bytes = b""
        self._batches: deque[bytes | memoryview] = deque()
        self._cancelled: set[int] = set()
        self._sending, self._receiving, self._left = threading.Lock(), threading.Lock(), threading.Lock()
        self._running = 0
        self._leaving = False
        #: Whether no further tasks come on this connection; whether answers cannot be sent, either.
        self._ended = self._lost = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(_WELCOME_TIMEOUT)
            self._socket.connect(path)
            self._socket.sendall(frames.json_frame(frames.HELLO, hello))
        except OSError as problem:
            self._socket.close()
            raise GatewayGone(str(problem)) from None
        #: What WELCOME says, once it is here.
        self.welcome: dict[str, object] = {}
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(stop, select.POLLIN)
        self._here = select.poll()
        self._here.register(self._socket, select.POLLIN)

    def greet(self) -> None:
        """Wait for WELCOME. Raises GatewayGone if the gateway refuses, and closes the connection then."""
        try:
            while not (found := self._frames()):
                pass
            (kind, payload), *others = found
            if kind != frames.WELCOME:
                raise GatewayGone(f"frame {kind} instead of WELCOME")
            self.welcome = frames.object_of(payload)
            for one in others:
                self._note(*one)
            self._socket.settimeout(None)
        except (OSError, GatewayGone, frames.Malformed) as problem:
            self.close()
            raise GatewayGone(str(problem) or type(problem).__name__) from None

    def send(self, parts: Iterable[bytes]) -> bool:
        """Send bytes, in one write unless they are many. Return False if the connection is lost."""
        found = tuple(parts)
        try:
            with self._sending:
                if sum(map(len, found)) <= _JOINED:
                    self._socket.sendall(b"".join(found))
                else:
                    for part in found:
                        self._socket.sendall(part)
        except OSError:
            return False
        return True

    def send_frame(self, kind: int) -> bool:
        """Send a frame without payload. Return False if the connection is lost."""
        return self.send((frames.frame(kind),))

    def leave(self) -> None:
        """Tell the gateway that the kernel leaves. Tasks that were sent before are still received."""
        with self._left:
            told, self._leaving = self._leaving, True
        if not told:
            self.send_frame(frames.LEAVING)

    def receive(self, again: bool) -> tuple[bytes | memoryview, set[int]] | None:
        """Wait for a batch. Return the payload of its frame and the ids of cancelled tasks, or None at the end.

        `again`: whether the thread has answered a batch before, which it no longer handles.
        """
        with self._receiving:
            self._running -= again
            if self._batches:
                self._take_all()  # cancellations
            while not self._batches:
                if self._ended:
                    return None
                if not self._running:
                    self._cancelled.clear()
                leaving = self._leaving
                found = self._here.poll(_LAST_TASK * 1000) if leaving else self._poll.poll()
                if self._readable(found):
                    self._take()
                elif leaving:
                    self._ended = True
                else:
                    self.leave()
            self._running += 1
            return self._batches.popleft(), self._cancelled

    def is_cancelled(self, number: int) -> bool:
        """Return whether the client of a task is gone, or the connection is lost."""
        if self._receiving.acquire(blocking=False):
            try:
                self._take_all()
            finally:
                self._receiving.release()
        return self._lost or number in self._cancelled

    def close(self) -> None:
        """Close the connection."""
        self._ended = self._lost = True
        self._socket.close()

    def forget(self) -> None:
        """Close the descriptor of the socket in a forked process."""
        os.close(self._socket.detach())

    def _readable(self, found: list[tuple[int, int]]) -> bool:
        return any(descriptor != self._stop for descriptor, _ in found)

    def _take_all(self) -> None:
        """Take what has already arrived."""
        while not self._ended and self._here.poll(0):
            self._take()

    def _take(self) -> None:
        """Take at least one piece of what arrives."""
        try:
            for kind, payload in self._frames():
                self._note(kind, payload)
        except (OSError, GatewayGone, frames.Malformed):
            self._ended = self._lost = True

    def _note(self, kind: int, payload: bytes | memoryview) -> None:
        if kind == frames.BATCH:
            self._batches.append(payload)
        elif kind == frames.CANCEL:
            self._cancelled.add(frames.cancelled(payload))
        elif kind == frames.BYE:
            self._ended = True

    def _frames(self) -> list[tuple[int, bytes | memoryview]]:
        """Read once; return the frames that are complete, as (type, payload)."""
        data = self._socket.recv(_CHUNK)
        if not data:
            raise GatewayGone("the gateway closed the connection")
        if self._rest:
            data = self._rest + data
        found: list[tuple[int, bytes | memoryview]] = []
        at, size = 0, len(data)
        while size - at >= 4:
            length = int.from_bytes(data[at:at + 4], "big")
            if length < 1:
                raise frames.Malformed("a frame of 0 bytes")
            start, end = at + 4, at + 4 + length
            if end > size:
                if length <= _CHUNK:
                    break
                whole = self._long(data[start:], length)
                found.append((whole[0], whole[1:]))
                start = end = size
            else:
                found.append((data[start], data[start + 1:end]))
            at = end
        self._rest = data[at:]
        return found

    def _long(self, begin: bytes, length: int) -> memoryview:
        """Read the rest of a long frame into place."""
        view = memoryview(bytearray(length))
        at = len(begin)
        view[:at] = begin
        while at < length:
            count = self._socket.recv_into(view[at:])
            if not count:
                raise GatewayGone("the gateway closed the connection")
            at += count
        return view
