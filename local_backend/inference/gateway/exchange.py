"""One HTTP request and its answer, whatever the version of HTTP; and the limits of connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from local_backend.inference.gateway.access import RequestUser
from local_backend.inference.gateway.refusal import Refused
from local_backend.inference.gateway.served_models import ServedModel

Pairs = Sequence[tuple[str, str]]
#: Headers of requests that the gateway reads; it passes over all others.
READ_HEADERS = (
    "accept", "authorization", "connection", "content-encoding", "content-length", "content-type", "expect",
    "grpc-encoding", "grpc-timeout", "host", "inference-header-content-length", "request-timeout", "te", "traceparent",
    "transfer-encoding", "upgrade", "x-auth-token", "x-user-token", "x-dlicmd-user", "x-dlicmd-admin",
)


@dataclass(frozen=True)
class OriginLimits:
    """What bounds the connections of the gateway. Times are seconds."""

    #: Open connections; further ones get 503.
    connections: int = 20_000
    #: Bytes of the request line and the headers, and their number.
    header_bytes: int = 65_536
    headers: int = 200
    #: From the first byte of a request, or from the connection, until its headers are complete.
    header_time: float = 15.0
    #: Between two requests of a connection.
    idle_time: float = 75.0
    #: Between two parts of a body; and until a client takes the bytes that wait for it.
    body_time: float = 30.0
    #: Small pieces of bodies that a connection may send per second.
    pieces: float = 1000.0
    #: Bytes of the bodies of all requests that the gateway holds; and of all answers that wait for slow clients.
    memory: int = 2 << 30
    #: Bytes of a stream that wait for a slow client; a client behind that is cut off.
    unread_bytes: int = 8 << 20
    #: Streams of one HTTP/2 connection.
    streams: int = 256
    #: Seconds that open requests have to end after SIGTERM.
    drain_time: float = 30.0


def limits_of(value: dict[str, Any]) -> OriginLimits:
    """Return the limits of a configuration. Raises ValueError for a name that does not exist or a wrong value."""
    known = {field.name: field.default for field in fields(OriginLimits)}
    for name, one in value.items():
        if name not in known:
            raise ValueError(f"origin_limits has no member {name}; members: {', '.join(known)}")
        if isinstance(one, bool) or not isinstance(one, (int, float)) or one <= 0:
            raise ValueError(f"origin_limits.{name} must be a number above 0, but it is {one!r}")
        if isinstance(known[name], int) and not isinstance(one, int):
            raise ValueError(f"origin_limits.{name} must be a whole number, but it is {one!r}")
    return OriginLimits(**value)


#: Small pieces of bodies that a connection may send at once, and per part of an answer; bytes that make a piece not
#: small.
_PIECES, _PIECES_PER_ANSWER, _PIECE = 4000.0, 10, 64


class PieceAllowance:
    """The small pieces of bodies that a connection may send before its reading pauses: each piece costs the gateway
    some calls, however small it is."""

    __slots__ = ("_left", "_per_second", "_since")

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second = per_second
        self._left = _PIECES
        self._since = now

    def take(self, size: int) -> None:
        """Count a piece of `size` bytes behind the first one of a body."""
        self._left = min(_PIECES, self._left + size / _PIECE - 1)

    def earn(self) -> None:
        """Count a part of an answer: a stream of requests may have one small piece for each."""
        self._left += _PIECES_PER_ANSWER

    def wait(self, now: float) -> float:
        """Return the seconds for which reading must pause; 0 if it may go on."""
        self._left = min(_PIECES, self._left + (now - self._since) * self._per_second)
        self._since = now
        return max(0.0, -self._left / self._per_second)


#: Bytes below which pieces of a body are collected.
_SMALL = 4096


class HttpExchange:
    """One request, and the way back for its answer."""

    #: Whether it is a stream of HTTP/2.
    is_multiplexed = False
    __slots__ = ("began", "body", "cancel", "feed", "gone", "handler", "headers", "is_local", "limit", "method", "path",
                 "pieces", "question", "received", "sent", "served", "status", "streaming", "target", "user")

    def __init__(self, method: str, target: str, headers: dict[str, str], began: float, is_local: bool) -> None:
        self.method = method
        #: The target of the request line, and its path without the query.
        self.target = target
        self.path = target.partition("?")[0]
        self.headers = headers
        self.began = began
        #: Whether the request came through the Unix socket of the server.
        self.is_local = is_local
        self.body = b""
        #: The body as it arrives.
        self.pieces: list[bytes | bytearray] = []
        self.received = 0
        #: Most bytes of the body.
        self.limit = 0
        #: Takes the exchange when the body is complete.
        self.handler: Callable[[HttpExchange], None] | None = None
        #: Takes the parts of the body as they arrive, and whether it is the last one; then there is no `handler`.
        self.feed: Callable[[bytes, bool], None] | None = None
        self.user: RequestUser | None = None
        self.served: ServedModel | None = None
        #: Digest of a token that the server must be asked about.
        self.question = ""
        #: Called when the client goes before it has its answer.
        self.cancel: Callable[[], None] | None = None
        self.gone = False
        self.streaming = False
        self.status = 0
        self.sent = 0

    def collect(self, data: bytes) -> None:
        """Keep a piece of the body. Small pieces share one object: an object each would need far more memory."""
        last = self.pieces[-1] if self.pieces else None
        if len(data) >= _SMALL or last is None:
            self.pieces.append(data)
        elif isinstance(last, bytearray):
            last += data
        else:
            self.pieces.append(bytearray(data))

    def join(self) -> None:
        """Make the body of its pieces."""
        only = self.pieces[0] if len(self.pieces) == 1 else None
        self.body = only if isinstance(only, bytes) else b"".join(self.pieces)
        self.pieces = []

    def answer(self, status: int, kind: str, body: bytes, headers: Pairs = ()) -> None:
        """Send the whole answer. `kind` is its content type."""
        raise AssertionError("abstract")

    def begin(self, status: int, kind: str, headers: Pairs = ()) -> None:
        """Send the head of an answer whose parts follow."""
        raise AssertionError("abstract")

    def write(self, data: bytes) -> None:
        """Send a part."""
        raise AssertionError("abstract")

    def finish(self, trailers: Pairs = ()) -> None:
        """End an answer in parts."""
        raise AssertionError("abstract")

    def abort(self) -> None:
        """End an answer in parts so that the client sees that it is not complete."""
        raise AssertionError("abstract")


class HttpApplication(Protocol):
    """What a connection needs from the gateway."""

    limits: OriginLimits
    #: The `Date` line of answers.
    date: bytes
    #: Whether connections must end with their answer.
    is_ending: bool

    def opened(self, connection: Any) -> bool:
        """Note a new connection. Return False if there are too many."""

    def closed(self, connection: Any) -> None:
        """Note that a connection is closed."""

    def admit(self, exchange: HttpExchange) -> None:
        """Look at the head of a request: find its handler, user, model and limit. Raises Refused."""

    @property
    def state(self) -> object:
        """What `admit` decides with: another object after each change of the models or the tokens."""

    def admits(self, exchange: HttpExchange, state: object) -> bool:
        """Return whether `admit` would find for a request with a model what it found with this state."""

    def ask(self, exchange: HttpExchange, done: Callable[[Refused | None], None]) -> None:
        """Ask the server about the token of an exchange with a `question`; then call `done`."""

    def handle(self, exchange: HttpExchange) -> None:
        """Give an exchange whose body is complete to its handler."""

    def hold(self, size: int) -> None:
        """Account for bytes of a body. Raises Refused if the bodies fill the gateway."""

    def release(self, size: int) -> None:
        """Account for the end of a body."""

    def answered(self, size: int) -> None:
        """Note an answer of so many bytes, which clients may leave unread."""

    def refuse(self, exchange: HttpExchange, why: Refused) -> None:
        """Answer an exchange with a refusal."""

    def ended(self, exchange: HttpExchange) -> None:
        """Note the end of an exchange: count it, and write it into the access log."""
