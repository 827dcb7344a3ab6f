"""HTTP/1.1 on one connection: parsing with httptools, answers in the order of the requests."""

from __future__ import annotations

import asyncio
import re
import socket
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

import httptools

from local_backend.inference.gateway import refusal as refusals
from local_backend.inference.gateway.exchange import (
    READ_HEADERS,
    HttpApplication,
    HttpExchange,
    Pairs,
    PieceAllowance,
)
from local_backend.inference.gateway.refusal import Refused

_NAMES = {name.encode(): name for name in READ_HEADERS}
#: Headers that must not be repeated: two parties could read different values.
_ONCE = {"authorization", "content-length", "host", "transfer-encoding", "x-auth-token", "x-user-token",
         "x-dlicmd-user", "x-dlicmd-admin", "inference-header-content-length"}
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: Seconds that a client has to read the last answer of a connection that ends early.
_LINGER = 2.0
_FOREVER = float("inf")
#: Requests of one connection that may wait for their turn; reading pauses above it.
_PIPELINE = 16
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_HEADS: dict[tuple[int, str], bytes] = {}
#: Most bytes of a head that a connection remembers.
_KNOWN_HEAD = 2048
#: The line with the length of the body, and most digits of a length in a known head.
_LENGTH_LINE = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)\r\n", re.IGNORECASE)
_LENGTH_DIGITS = 10


def _head(status: int, kind: str) -> bytes:
    """Return the beginning of an answer, up to its length."""
    found = _HEADS.get((status, kind))
    if found is None:
        lines = f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}\r\n"
        lines += f"content-type: {kind}\r\n" if kind else ""
        found = lines.encode("latin-1", "replace")
        if len(_HEADS) < 1000:
            _HEADS[(status, kind)] = found
    return found


class Http1Exchange(HttpExchange):
    """One request of an HTTP/1.1 connection."""

    __slots__ = ("chunked", "complete", "connection", "expects", "keep", "old", "refusal")

    def __init__(self, connection: Http1Connection, method: str, target: str, headers: dict[str, str],
                 began: float) -> None:
        super().__init__(method, target, headers, began, connection.is_local)
        self.connection = connection
        self.keep = True
        #: HTTP/1.0.
        self.old = False
        self.expects = False
        self.complete = False
        self.chunked = False
        #: Why the request gets no handler, although its turn has not come yet.
        self.refusal: Refused | None = None

    def again(self, body: bytes, began: float) -> Http1Exchange:
        """Return an exchange with the same head and another body, which is complete."""
        other = Http1Exchange(self.connection, self.method, self.path, self.headers, began)
        other.target, other.limit, other.handler = self.target, self.limit, self.handler
        other.user, other.served = self.user, self.served
        other.body, other.received, other.complete = body, len(body), True
        return other

    def answer(self, status: int, kind: str, body: bytes, headers: Pairs = ()) -> None:
        if self.gone:
            return
        self.status, self.sent = status, len(body)
        connection = self.connection
        application = connection.application
        more = b"".join([f"{name}: {value}\r\n".encode("latin-1", "replace") for name, value in headers]) \
            if headers else b""
        if not self.keep or application.is_ending:
            self.keep = False
            more += b"connection: close\r\n"
        elif self.old:
            more += b"connection: keep-alive\r\n"
        connection.transport.write(b"%b%b%bcontent-length: %d\r\n\r\n%b" % (
            _head(status, kind), application.date, more, len(body),
            b"" if self.method == "HEAD" else body))
        connection.answered(self)
        connection.application.answered(len(body))

    def begin(self, status: int, kind: str, headers: Pairs = ()) -> None:
        if self.gone:
            return
        self.status, self.streaming = status, True
        self.chunked = not self.old
        if self.old or self.connection.application.is_ending:
            self.keep = False
        lines = [*headers, *([("transfer-encoding", "chunked")] if self.chunked else []),
                 *([] if self.keep else [("connection", "close")])]
        self.connection.transport.write(_head(status, kind) + self.connection.application.date + b"".join(
            f"{name}: {value}\r\n".encode("latin-1", "replace") for name, value in lines) + b"\r\n")

    def write(self, data: bytes) -> None:
        if self.gone or not data:
            return
        self.sent += len(data)
        self.connection.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)
        self.connection.check_unread()

    def finish(self, trailers: Pairs = ()) -> None:
        if self.gone:
            return
        if self.chunked:
            self.connection.transport.write(b"0\r\n\r\n")
        self.connection.answered(self)

    def abort(self) -> None:
        if not self.gone:
            self.keep = False
            self.connection.transport.abort()


class KnownHead:
    """The head of a request, and what `HttpApplication.admit` found for it.

    A client that sends many requests to one model repeats the same bytes, except for the length of the body: such a
    head is not parsed again.
    """

    __slots__ = ("_after", "_before", "exchange", "state")

    def __init__(self, before: bytes, after: bytes, exchange: Http1Exchange, state: object) -> None:
        """`before`, `after`: the bytes around the length of the body; `exchange`: an admitted request with this head;
        `state`: that of the application when it admitted the request."""
        self._before = before
        self._after = after
        self.state = state
        self.exchange = exchange.again(b"", 0.0)
        self.exchange.headers = {name: value for name, value in exchange.headers.items() if name != "content-length"}

    def body(self, data: bytes) -> bytes | None:
        """Return the body if `data` is one whole request with this head; otherwise None."""
        before, after = self._before, self._after
        if not data.startswith(before):
            return None
        end = data.find(b"\r", len(before), len(before) + _LENGTH_DIGITS + 1)
        if end < 0 or not data.startswith(after, end):
            return None
        length, start = data[len(before):end], end + len(after)
        return data[start:] if length.isdigit() and int(length) == len(data) - start else None


def known_head(data: bytes, exchange: Http1Exchange, state: object) -> KnownHead | None:
    """Return the head of `data` for later requests; None unless `data` is one whole request, which is always admitted
    in this way, and which cannot be read in another way."""
    headers = exchange.headers
    end = data.find(b"\r\n\r\n", 0, _KNOWN_HEAD) + 4
    head = data[:end]
    if end < 4 or end + exchange.received != len(data) or head.count(b"\n") != head.count(b"\r\n"):
        return None
    if exchange.served is None or exchange.question or exchange.refusal is not None or exchange.feed is not None:
        return None
    if exchange.old or not exchange.keep or "expect" in headers or "transfer-encoding" in headers:
        return None
    found = _LENGTH_LINE.search(head)
    return KnownHead(head[:found.start(1)], head[found.end(1):], exchange, state) if found is not None else None


class Http1Connection(asyncio.Protocol):
    """One connection. `deadline` is when it is closed, unless something happens before."""

    def __init__(self, application: HttpApplication, upgrade: Callable[[bool], asyncio.Protocol],
                 is_local: bool = False) -> None:
        """`upgrade` returns the protocol of HTTP/2, for a client that begins with its preface."""
        self.application = application
        self.is_local = is_local
        self._upgrade = upgrade
        self._parser: httptools.HttpRequestParser | None = None
        self._loop = asyncio.get_running_loop()
        self._limits = application.limits
        self._headers: dict[str, str] = {}
        self._count = self._size = 0
        self._url = b""
        self._in_head = False
        self._fed = 0
        #: The request whose body arrives; the one that is being answered; those that wait for their turn.
        self._current: Http1Exchange | None = None
        self._active: Http1Exchange | None = None
        self._pipeline: deque[Http1Exchange] = deque()
        self._started = b""
        self._again = b""
        self._turning = self._closing = self._lingers = False
        #: Why reading pauses: "pipeline", "question" or "pieces".
        self._pauses: set[str] = set()
        self._pieces = PieceAllowance(self._limits.pieces, self._loop.time())
        self._unsent = 0
        self._known: KnownHead | None = None
        #: The bytes that are being parsed, if they begin with a request.
        self._whole = b""
        self.deadline = self._loop.time() + self._limits.header_time

    # Connection ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        secure = transport.get_extra_info("ssl_object")
        if secure is not None and secure.selected_alpn_protocol() == "h2":
            self._become_http2(b"")
            return
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.application.opened(self):
            self.transport.write(_head(503, "text/plain") + b"retry-after: 1\r\nconnection: close\r\n"
                                 b"content-length: 0\r\n\r\n")
            self._close()

    def _become_http2(self, data: bytes) -> None:
        self.application.closed(self)
        successor = self._upgrade(self.is_local)
        self.transport.set_protocol(successor)
        successor.connection_made(self.transport)
        if data:
            successor.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.application.closed(self)
        exchanges = [self._active, *self._pipeline, self._current]
        self._active = self._current = None
        self._pipeline.clear()
        for exchange in exchanges:
            if exchange is not None and not exchange.gone:
                exchange.gone = True
                self._release(exchange)
                exchange.status = exchange.status or 499
                self.application.ended(exchange)
                if exchange.cancel is not None:
                    exchange.cancel()

    def data_received(self, data: bytes) -> None:
        known = self._known
        if known is not None and (body := known.body(data)) is not None and self._repeat(known, body):
            return
        if self._closing:
            return
        if self._parser is None:
            self._started += data
            if _PREFACE.startswith(self._started[:len(_PREFACE)]):
                if len(self._started) >= len(_PREFACE):
                    self._become_http2(self._started)
                return
            data, self._started = self._started, b""
            self._parser = httptools.HttpRequestParser(self)
        if self._is_idle():
            self._whole = data
        self._feed(data)
        self._whole = b""

    def _is_idle(self) -> bool:
        """Whether the next byte begins a request, and no other request is here."""
        return self._active is None and self._current is None and not self._in_head and not self._pipeline

    def _repeat(self, known: KnownHead, body: bytes) -> bool:
        """Handle a whole request with a known head. Return False if it must be parsed and admitted as any other."""
        application, like = self.application, known.exchange
        if not self._is_idle() or self._closing or not application.admits(like, known.state) or len(body) > like.limit:
            return False
        try:
            application.hold(len(body))
        except Refused:
            return False
        exchange = like.again(body, self._loop.time())
        self.deadline = _FOREVER
        self._active = exchange
        application.handle(exchange)
        return True

    def _feed(self, data: bytes) -> None:
        parser = self._parser
        assert parser is not None
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The gateway passes over the header Upgrade, but the parser then takes no body. So it gets the head again.
            self._parser = httptools.HttpRequestParser(self)
            if not self._closing:
                self._feed(self._again + data[upgrade.args[0]:])
            return
        except httptools.HttpParserError as error:
            cause = error.__context__
            why = cause if isinstance(cause, Refused) else refusals.bad_request(
                f"The request is not well-formed HTTP: {str(error) or 'unknown'}", close=True)
            self._fail(why)
            return
        if self._in_head:
            self._fed += len(data)
            if self._fed > self._limits.header_bytes:
                self._fail(_too_many_headers(self._limits.header_bytes))
        elif self._current is not None and self._active is None:
            self.deadline = self._loop.time() + self._limits.body_time
        if len(self._pipeline) > _PIPELINE:
            self._pause("pipeline")
        self._slow_down()

    def _slow_down(self) -> None:
        """Read no further until the connection may send small pieces again, so that others get their turn."""
        wait = self._pieces.wait(self._loop.time())
        if wait:
            self.deadline += wait
            self._pause("pieces")
            self._loop.call_later(wait, self._resume, "pieces")

    def _fail(self, why: Refused) -> None:
        """Refuse what arrives after the requests that are complete, and close."""
        exchange = self._current
        if exchange is None:
            exchange = Http1Exchange(self, "GET", "*", {}, self._loop.time())
        if exchange.refusal is None:
            exchange.refusal = why
        exchange.keep = False
        exchange.question = ""
        self._current = None
        self._in_head = False
        self._closing = self._lingers = True
        self._enqueue(exchange)

    def eof_received(self) -> bool:
        """A client that ends its side is gone, and needs no answer."""
        return False

    # Callbacks of the parser --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._headers = {}
        self._count = self._size = self._fed = 0
        self._url = b""
        self._in_head = True
        if self._active is None:
            self.deadline = self._loop.time() + self._limits.header_time

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count += 1
        self._size += len(name) + len(value) + 4
        if self._count > self._limits.headers or self._size > self._limits.header_bytes:
            raise _too_many_headers(self._limits.header_bytes)
        known = _NAMES.get(name) or _NAMES.get(name.lower())
        if known is None:
            return
        if known in self._headers:
            if known in _ONCE:
                raise refusals.bad_request(f"The request has the header {known} twice", close=True)
            self._headers[known] += "," + value.decode("latin-1")
        else:
            self._headers[known] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        parser, headers = self._parser, self._headers
        assert parser is not None
        self._in_head = False
        method = parser.get_method().decode("latin-1")
        exchange = Http1Exchange(self, method, self._url.decode("latin-1"), headers, self._loop.time())
        self._current = exchange
        version = parser.get_http_version()
        if parser.should_upgrade() and method != "CONNECT":
            self._current = None
            self._again = _without_upgrade(method, self._url, version, headers)
            return
        exchange.old = version == "1.0"
        exchange.keep = parser.should_keep_alive()
        if version not in ("1.0", "1.1") or method == "CONNECT":
            raise refusals.bad_request("The gateway speaks HTTP/1.1 and HTTP/2", close=True)
        if "host" not in headers and not exchange.old:
            raise refusals.bad_request("The request has no header Host", close=True)
        if "transfer-encoding" in headers and ("content-length" in headers or exchange.old):
            raise refusals.bad_request("The request has a length and a transfer encoding", close=True)
        self._admit(exchange, headers)

    def _admit(self, exchange: Http1Exchange, headers: dict[str, str]) -> None:
        """Examine the head. A refused request without a body leaves the connection open."""
        has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        try:
            self.application.admit(exchange)
            if not exchange.question and int(headers.get("content-length", "0")) > exchange.limit:
                raise refusals.too_large(exchange.limit)
            expect = headers.get("expect", "")
            if expect and expect.lower() != "100-continue":
                raise Refused(417, "inference.expect", "The gateway knows only Expect: 100-continue", close=True)
        except Refused as why:
            if has_body:
                raise
            exchange.refusal = why
            return
        exchange.expects = bool(expect) and has_body and not exchange.old
        if exchange.question:
            self._examine(exchange)
        else:
            self._invite(exchange)

    def _examine(self, exchange: Http1Exchange) -> None:
        """Read no further until the server has said whose the token is."""
        self._pause("question")

        def done(why: Refused | None) -> None:
            exchange.question = ""
            if exchange.gone:
                return
            if why is not None:
                exchange.refusal = why
                if not exchange.complete:
                    self._fail(why)
                    return
            self._invite(exchange)
            self._resume("question")
            self._turn()

        self.application.ask(exchange, done)

    def _invite(self, exchange: Http1Exchange) -> None:
        """Ask for the body, if the client waits for that and it is its turn."""
        if exchange.expects and self._active is None and not self._pipeline and not exchange.complete:
            exchange.expects = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        exchange = self._current
        if exchange is None or exchange.refusal is not None:
            return
        if exchange.received:
            self._pieces.take(len(data))
        exchange.received += len(data)
        # While the server is asked about the token, reading rests; the limit is not known before.
        if exchange.received > exchange.limit and not exchange.question:
            raise refusals.too_large(exchange.limit)
        self.application.hold(len(data))
        exchange.collect(data)

    def on_message_complete(self) -> None:
        exchange, self._current = self._current, None
        if exchange is not None:
            exchange.complete = True
            exchange.join()
            if self._whole:
                self._known = known_head(self._whole, exchange, self.application.state)
                self._whole = b""
            self._enqueue(exchange)

    # Turns --------------------------------------------------------------------------------------------------------

    def _enqueue(self, exchange: Http1Exchange) -> None:
        self.deadline = _FOREVER
        self._pipeline.append(exchange)
        self._turn()

    def _turn(self) -> None:
        """Handle the requests whose turn it is."""
        if self._turning:
            return
        self._turning = True
        try:
            while self._pipeline and self._active is None and not self._pipeline[0].question:
                exchange = self._active = self._pipeline.popleft()
                if exchange.refusal is not None:
                    exchange.keep = exchange.keep and not exchange.refusal.close
                    self.application.refuse(exchange, exchange.refusal)
                else:
                    self.application.handle(exchange)
        finally:
            self._turning = False
        if self._active is None and not self._closing:
            limits = self._limits
            if self._current is not None:
                self._invite(self._current)
            seconds = limits.header_time if self._in_head else limits.body_time if self._current else limits.idle_time
            self.deadline = self._loop.time() + seconds

    def answered(self, exchange: Http1Exchange) -> None:
        """Note that an exchange has its answer."""
        exchange.gone = True
        if exchange.received:
            self._release(exchange)
        self.application.ended(exchange)
        self._active = None
        if not exchange.keep:
            self._close()
            return
        if len(self._pipeline) < _PIPELINE // 2:
            self._resume("pipeline")
        if self._is_idle():
            self.deadline = self._loop.time() + self._limits.idle_time
            return
        self._turn()

    def _pause(self, why: str) -> None:
        if not self._pauses:
            self.transport.pause_reading()
        self._pauses.add(why)

    def _resume(self, why: str) -> None:
        """Read on, unless there is another reason to pause."""
        if why in self._pauses:
            self._pauses.remove(why)
            if not self._pauses and not self.transport.is_closing():
                self.transport.resume_reading()

    def _release(self, exchange: Http1Exchange) -> None:
        if exchange.received:
            self.application.release(exchange.received)
            exchange.received = 0

    # Ends ---------------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        """Close so that the client can read the last answer, although it may still send."""
        self._closing = True
        self._pipeline.clear()
        self.deadline = self._loop.time() + _LINGER
        if not self._lingers:
            self.transport.close()
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        for why in [*self._pauses]:
            self._resume(why)

    @property
    def unread(self) -> int:
        """Bytes of answers that the client has not taken yet."""
        return self.transport.get_write_buffer_size()

    def cut_off(self) -> None:
        """End at once, whatever is unread."""
        self.transport.abort()

    def check_unread(self) -> None:
        """Cut a client off that does not read its stream."""
        if self.transport.get_write_buffer_size() > self._limits.unread_bytes:
            self.transport.abort()

    def pause_writing(self) -> None:
        self.deadline = min(self.deadline, self._loop.time() + self._limits.body_time)

    def resume_writing(self) -> None:
        self._unsent = 0
        self.deadline = self._loop.time() + self._limits.idle_time if self._active is None else _FOREVER

    def late(self) -> None:
        """End the connection, because its deadline has passed."""
        unsent = self.transport.get_write_buffer_size()
        if unsent and (not self._unsent or unsent < self._unsent):
            self._unsent = unsent
            self.deadline = self._loop.time() + self._limits.body_time
        elif unsent or self._closing or self._active is not None:
            self.transport.abort()
        elif self._in_head or self._current is not None:
            self._fail(Refused(408, "inference.too_slow", "The request arrives too slowly", close=True))
        else:
            self.transport.close()

    def end(self) -> None:
        """Close the connection if it is idle; otherwise its next answer closes it."""
        if self._is_idle():
            self.transport.close()


def _too_many_headers(most: int) -> Refused:
    return Refused(431, "inference.headers", f"The headers of a request have at most {most} bytes", close=True)


def _without_upgrade(method: str, url: bytes, version: str, headers: dict[str, str]) -> bytes:
    """Return the head of a request without its header Upgrade."""
    keep = {name: value for name, value in headers.items() if name not in ("upgrade", "connection")}
    if "close" in headers.get("connection", "").lower():
        keep["connection"] = "close"
    lines = "".join(f"{name}: {value}\r\n" for name, value in keep.items())
    return f"{method} ".encode() + url + f" HTTP/{version}\r\n{lines}\r\n".encode("latin-1")
