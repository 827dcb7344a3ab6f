"""A TCP proxy that applies one fault of a schedule to each connection: a cut or reset at any byte, silence, a delay."""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from support import PATIENCE

PASS = "pass"
#: Close or reset the connection after `at` bytes of the request or of the answer.
CUT_REQUEST, CUT_ANSWER, RESET_REQUEST, RESET_ANSWER = "cut request", "cut answer", "reset request", "reset answer"
#: Deliver the request, keep the answer and leave the connection open.
SILENT = "silent"
#: Hang up at once, and deliver the whole request when the client makes its next connection.
LATE = "late"
#: Keep the answer, and call `killer` before hanging up.
KILL = "kill"
#: Answer with this status instead of the server. The server gets the request only if `at` is odd.
STATUS = {"500": 500, "502": 502, "503": 503, "429": 429}
KINDS = (CUT_REQUEST, CUT_ANSWER, RESET_REQUEST, RESET_ANSWER, LATE, *STATUS)


class Fault(NamedTuple):
    """The fault of one connection; `at` counts bytes."""

    kind: str
    at: int = 0


@dataclass
class ChaosProxy:
    """The proxy, as a context manager. Connections beyond the schedule are passed through."""

    port_behind: int
    schedule: list[Fault] = field(default_factory=list)
    killer: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        self.connections = 0
        self._late: list[bytes] = []
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> ChaosProxy:
        self._begin(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            connection.close()
        self.settle()

    def settle(self) -> None:
        """Wait until the server has received and answered all pending requests."""
        for thread in self._threads[1:]:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        del self._threads[1:]

    def _begin(self, work: object, *given: object) -> None:
        thread = threading.Thread(target=work, args=given, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            fault = self.schedule[self.connections] if self.connections < len(self.schedule) else Fault(PASS)
            self.connections += 1
            late, self._late = self._late, []
            for request in late:
                self._begin(self._deliver, request)
            self._begin(self._serve, client, fault)

    def _serve(self, client: socket.socket, fault: Fault) -> None:
        request = b"".join(_message(client))
        try:
            self._treat(client, fault, request)
        except OSError:
            pass  # the client has hung up
        if fault.kind != SILENT:
            client.close()

    def _treat(self, client: socket.socket, fault: Fault, request: bytes) -> None:
        kind, at = fault
        if kind in (CUT_REQUEST, RESET_REQUEST):
            self._deliver(request[: at % len(request)], whole=False)
        elif kind == KILL:
            self._deliver(request)
            self.killer()
        elif kind == LATE:
            self._late.append(request)
        elif kind in STATUS:
            if at % 2:
                self._deliver(request)
            client.sendall(f"HTTP/1.1 {STATUS[kind]} Chaos\r\nContent-Length: 0\r\nRetry-After: 0\r\n\r\n".encode())
        elif kind == SILENT:
            self._open.append(client)
            self._deliver(request)
        else:
            answer = self._deliver(request)
            client.sendall(answer if kind == PASS else answer[: at % (len(answer) or 1)])
        if kind in (RESET_REQUEST, RESET_ANSWER):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _deliver(self, request: bytes, whole: bool = True) -> bytes:
        """Send a request, or a part of it, to the server; return the answer."""
        with socket.create_connection(("127.0.0.1", self.port_behind), PATIENCE) as server:
            server.sendall(request)
            return b"".join(_message(server)) if whole else b""


def _message(sock: socket.socket) -> Iterator[bytes]:
    """Yield one HTTP message, or the part that arrives before the connection ends."""
    data, whole = b"", None
    while whole is None or len(data) < whole:
        try:
            chunk = sock.recv(2**16)
        except OSError:
            chunk = b""
        if not chunk:
            break
        data += chunk
        head, end, _ = data.partition(b"\r\n\r\n")
        if whole is None and end:
            length = re.search(rb"(?i)content-length: *([0-9]+)", head)
            whole = len(head) + 4 + (int(length[1]) if length else 0)
    yield data
