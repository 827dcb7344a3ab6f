"""Limits on HTTP connections, so that a client with many idle connections does not keep other clients out."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from local_backend.protection import PROTECTION

#: Maximum of open files and sockets. A higher limit is not used: some programs visit every number up to theirs.
_MOST_FILES = 65536
#: Maximum bytes of a request line with its headers; it contains the command line of a submission.
LARGEST_HEAD = 64 << 10
_NO_REQUESTS = {
    431: (b"Request Header Fields Too Large",
          f"Error 431: The address and headers of the call are larger than {LARGEST_HEAD} bytes; send a long "
          "command line in the data part of the submission, as args.\n"),
    501: (b"Not Implemented", "Error 501: The body has a transfer encoding other than chunked.\n"),
    400: (b"Bad Request", "Error 400: This is not a valid HTTP/1.1 request.\n"),
}


class _StrictConnection(h11.Connection):
    """Reads requests, and refuses what a proxy in front of this server could read in another way."""

    def next_event(self) -> Any:
        """See the base class. Raises h11.RemoteProtocolError for a head above LARGEST_HEAD, also one that arrived at
        once, and for a body with two lengths."""
        before = len(self.trailing_data[0]) if self.their_state is h11.IDLE else 0
        event = super().next_event()
        if isinstance(event, h11.Request):
            if before - len(self.trailing_data[0]) > LARGEST_HEAD:
                raise h11.RemoteProtocolError("the head is too large", error_status_hint=431)
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in event.headers}:
                raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding")
        return event


class Protocol(H11Protocol):
    """HTTP/1.1 on one connection, with a timeout for the next request.

    Without the timeout, a connection on which nothing arrives stays open forever, and so does one on which the head of
    a request arrives byte by byte. A client without a request in progress has `timeout_keep_alive` seconds to send the
    next whole head.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout when a client has connected."""
        super().connection_made(transport)
        self.conn = _StrictConnection(h11.SERVER, LARGEST_HEAD)
        self._patience: asyncio.TimerHandle | None = None
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout when the connection has ended."""
        if self._patience is not None:
            self._patience.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Restart the timeout after a response. The next request may have arrived already."""
        self._expect()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer input that is not a valid request, and close the connection. The base class calls this while it
        handles the error."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            hint = getattr(sys.exc_info()[1], "error_status_hint", 400)
            code = hint if hint in _NO_REQUESTS else 400
            reason, sentence = _NO_REQUESTS[code]
            headers = [*self.server_state.default_headers, *PROTECTION, (b"Content-Type", b"text/plain; charset=utf-8"),
                       (b"Connection", b"close"), (b"Content-Length", str(len(sentence)).encode())]
            for event in (h11.Response(status_code=code, headers=headers, reason=reason),
                          h11.Data(data=sentence.encode("ascii")), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _expect(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._patience = self.loop.call_later(self.timeout_keep_alive, self._give_up, self.cycle)

    def _give_up(self, last: Any) -> None:
        """Close the connection, unless a request has arrived since the `last` one."""
        if self.cycle is last and not self.transport.is_closing():
            self.transport.close()


def raise_file_limit() -> None:
    """Let this process open as many files and sockets as it may, up to `_MOST_FILES`; shells allow 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
