"""Sends metrics by POST to a URL.

Uses `http.client` and not requests: the connection must go to a checked address (see network.py), through no proxy,
and must end after a total time, however slowly data arrives.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from dlicmd import __version__
from dlicmd.contract.secret import without_secrets
from local_backend import network
from local_backend.forward.channel import CONNECT, WHOLE, RecordRefused, Trouble
from local_backend.forward.source import SourceLine
from local_backend.forward.target import Rest

#: Statuses that concern the content, and not the sender or the time.
_REFUSALS = (400, 413, 422)
#: Maximum seconds to wait when a server asks for a pause.
_LONGEST_AFTER = 300.0


class RestChannel:
    """One POST per batch; see Channel. The body is `{"execId", "metrics": [{"source", "offset", "metric"}]}`."""

    def __init__(self, target: Rest, exec_id: str, loopback: bool, whole: float = WHOLE) -> None:
        self.name = without_secrets(target.url)
        self._target = target
        self._exec_id = exec_id
        self._loopback = loopback
        self._whole = whole
        self._tls = ssl.create_default_context() if target.url.startswith("https:") else None

    def send(self, lines: Sequence[SourceLine]) -> None:
        """See Channel."""
        metrics = [{"source": line.source, "offset": line.offset, "metric": line.metric} for line in lines]
        body = json.dumps({"execId": self._exec_id, "metrics": metrics}).encode()
        try:
            status, after = self._post(body)
        except (OSError, http.client.HTTPException) as problem:
            raise Trouble(_reason(problem)) from None
        if 200 <= status < 300:
            return
        if status in _REFUSALS:
            raise RecordRefused(f"the receiver answers {status}")
        if 300 <= status < 400:
            raise Trouble(f"the receiver answers {status}; redirects are not followed, to protect the token")
        raise Trouble(f"the receiver answers {status}", after=after)

    def close(self) -> None:
        """See Channel. No connection is kept."""

    def _post(self, body: bytes) -> tuple[int, float]:
        """Return the status and Retry-After (seconds, 0 without) of the answer. Its text is not needed."""
        parts = urlsplit(self._target.url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {"Content-Type": "application/json", "User-Agent": f"dlicmd/{__version__}", "Connection": "close"}
        if self._target.bearer:
            headers["Authorization"] = f"Bearer {self._target.bearer}"
        connection = self._connection(parts.hostname or "", parts.port)
        try:
            with _cut_after(connection, self._whole):
                connection.request("POST", path, body, headers)
                answer = connection.getresponse()
                wanted = answer.headers.get("Retry-After", "")
                after = float(wanted) if wanted.isascii() and wanted.isdigit() else 0.0
                return answer.status, min(after, _LONGEST_AFTER)
        finally:
            connection.close()

    def _connection(self, host: str, port: int | None) -> http.client.HTTPConnection:
        found: _CheckedAdapter | _CheckedTls = _CheckedAdapter(host, port, timeout=CONNECT)
        if self._tls is not None:
            found = _CheckedTls(host, port, timeout=CONNECT, context=self._tls)
        found.loopback = self._loopback
        return found


class _CheckedAdapter(http.client.HTTPConnection):
    """Connects to permitted addresses only."""

    #: Whether addresses of this machine are permitted.
    loopback = False

    def connect(self) -> None:
        self.sock = network.connect(self.host, self.port, CONNECT, self.loopback)


class _CheckedTls(http.client.HTTPSConnection, _CheckedAdapter):
    """The same with TLS: the base class wraps the socket that `_CheckedAdapter` has connected."""


@contextmanager
def _cut_after(connection: http.client.HTTPConnection, seconds: float) -> Iterator[None]:
    """Close a connection after a time, from another thread: if data arrives slowly, each single read is in time."""

    def cut() -> None:
        with suppress(OSError, AttributeError):  # the connection is closed, or not open yet
            connection.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _reason(problem: Exception) -> str:
    """Return one line about a failed connection."""
    if isinstance(problem, TimeoutError):
        return "the receiver does not answer in time"
    if isinstance(problem, http.client.RemoteDisconnected):
        return "the receiver closed the connection without an answer"
    if isinstance(problem, http.client.HTTPException):
        return "the answer is not HTTP"
    if isinstance(problem, ssl.SSLError):
        return f"no TLS connection: {problem.reason or problem}"
    return str(getattr(problem, "strerror", None) or problem or type(problem).__name__)
