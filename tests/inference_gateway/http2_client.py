"""A small client of HTTP/2."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
from calls import PATH


@dataclass
class Stream:
    """What has arrived on a stream."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    trailers: dict[str, str] = field(default_factory=dict)
    is_over: bool = False
    #: The code of a reset.
    reset: int | None = None

    @property
    def status(self) -> int:
        """The status of the answer."""
        return int(self.headers[":status"])


class Http2Client:
    """One connection. Use it as a context."""

    def __init__(self, port: int, authority: Path | None = None) -> None:
        """`authority`: the certificate to trust, for TLS."""
        self.link: socket.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        if authority is not None:
            context = ssl.create_default_context(cafile=str(authority))
            context.set_alpn_protocols(["h2"])
            self.link = context.wrap_socket(self.link, server_hostname="localhost")
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.streams: dict[int, Stream] = {}
        self.is_closed = False
        #: The last stream of a GOAWAY.
        self.last: int | None = None
        self.flush()

    def __enter__(self) -> Http2Client:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.link.close()

    def flush(self) -> None:
        """Send what h2 has prepared."""
        self.link.sendall(self.h2.data_to_send())

    def open(self, body: bytes | None = b"", path: str = PATH, *, token: str = "alice", method: str = "POST",
             **headers: str) -> int:
        """Begin a request; with a body of None, without an end. Return its stream."""
        number = self.h2.get_next_available_stream_id()
        self.streams[number] = Stream()
        lines = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "x"),
                 ("authorization", f"Bearer {token}")]
        lines += [(name.replace("_", "-"), one) for name, one in headers.items()]
        self.h2.send_headers(number, lines, end_stream=body == b"")
        self.flush()
        if body:
            self.send(number, body)
        return number

    def send(self, number: int, body: bytes, *, end: bool = True) -> None:
        """Send a body, as the windows of the gateway permit."""
        at = 0
        while at < len(body):
            room = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size, len(body) - at)
            if not room:
                self.read()
                if self.streams[number].is_over:
                    return
                continue
            self.h2.send_data(number, body[at:at + room], end_stream=end and at + room == len(body))
            at += room
            self.flush()

    def read(self) -> None:
        """Take what has arrived, or what arrives next."""
        try:
            data = self.link.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            self.is_closed = True
            return
        for event in self.h2.receive_data(data):
            self._take(event)
        try:
            self.flush()
        except OSError:
            self.is_closed = True

    def _take(self, event: Any) -> None:
        stream = self.streams.get(getattr(event, "stream_id", 0) or 0, Stream())
        if isinstance(event, h2.events.ResponseReceived):
            stream.headers = dict(event.headers)
        elif isinstance(event, h2.events.TrailersReceived):
            stream.trailers = dict(event.headers)
        elif isinstance(event, h2.events.DataReceived):
            stream.body += event.data
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            stream.is_over = True
        elif isinstance(event, h2.events.StreamReset):
            stream.is_over, stream.reset = True, event.error_code
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.last = event.last_stream_id

    def until(self, probe: Callable[[], object]) -> None:
        """Read until something is so, or the connection is closed."""
        while not probe() and not self.is_closed:
            self.read()

    def get(self, number: int) -> Stream:
        """Return a stream when it is over."""
        self.until(lambda: self.streams[number].is_over)
        return self.streams[number]
