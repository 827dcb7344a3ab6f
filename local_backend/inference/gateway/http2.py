"""HTTP/2 on one connection: frames and flow control by h2, the same exchanges as HTTP/1.1."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Container
from typing import cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

from local_backend.inference.gateway import refusal as refusals
from local_backend.inference.gateway.exchange import (
    READ_HEADERS,
    HttpApplication,
    HttpExchange,
    Pairs,
    PieceAllowance,
)
from local_backend.inference.gateway.refusal import Refused

_KNOWN = {name.encode() for name in READ_HEADERS}
_FOREVER = float("inf")
#: Bytes that a client may send before the gateway has looked at them: of a stream, and of a connection.
_STREAM_WINDOW, _CONNECTION_WINDOW = 1 << 20, 16 << 20
#: Streams that a client may reset beyond those that got an answer; then the connection ends.
_RESETS = 200
#: Most bytes that are read from one connection before the others are read. They can contain 1,800 frames.
_TURN = 16_384
#: Frames besides those of requests that a client may send at once, per second, and per frame of an answer. h2 needs
#: much longer to read a frame than a client to send it.
_FRAMES, _FRAMES_PER_SECOND, _FRAMES_PER_ANSWER = 4000, 100, 10
_DATA, _HEADERS, _CONTINUATION = 0, 1, 9
#: Bytes of the preface, and of the head of a frame; most bytes of the rest of one, which is the default of HTTP/2.
_PREFACE, _FRAME_HEAD, _FRAME_LIMIT = 24, 9, 16_384
#: The largest id of a stream.
_LAST_STREAM = (1 << 31) - 1


class FrameHeads:
    """Follows the frames of a client: h2 would keep one of 16 MiB before it refuses it. `extra` counts those beside
    the requests: neither headers, nor data of an open stream."""

    def __init__(self, streams: Container[int]) -> None:
        self.extra = 0
        self._streams = streams
        self._skip = _PREFACE
        self._head = b""

    def permit(self, data: bytes) -> bool:
        """Count the frames that begin in these bytes. Return whether all of them have a permitted length."""
        at = 0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
                continue
            step = _FRAME_HEAD - len(self._head)
            self._head += data[at:at + step]
            at += step
            if len(self._head) == _FRAME_HEAD:
                self._skip = int.from_bytes(self._head[:3], "big")
                kind = self._head[3]
                if kind not in (_HEADERS, _CONTINUATION) and not (
                        kind == _DATA and self._skip and int.from_bytes(self._head[5:], "big") in self._streams):
                    self.extra += 1
                self._head = b""
                if self._skip > _FRAME_LIMIT:
                    return False
        return True


class Http2Exchange(HttpExchange):
    """One stream."""

    is_multiplexed = True
    __slots__ = ("closed", "complete", "connection", "ends", "number", "pending", "trailers",
                 "unacknowledged")

    def __init__(self, connection: Http2Connection, number: int, method: str, target: str,
                 headers: dict[str, str]) -> None:
        super().__init__(method, target, headers, connection.loop.time(), connection.is_local)
        self.connection = connection
        self.number = number
        self.complete = False
        self.unacknowledged = 0
        #: What waits for the window of the client, and whether the stream ends after it.
        self.pending = bytearray()
        self.ends = False
        #: Whether the client has been told that no data follow.
        self.closed = False
        self.trailers: Pairs = ()

    def answer(self, status: int, kind: str, body: bytes, headers: Pairs = ()) -> None:
        if self.gone:
            return
        self.status, self.sent = status, len(body)
        body = b"" if self.method == "HEAD" else body
        self._head(status, kind, [*headers, ("content-length", str(self.sent))], end=not body)
        self.pending += body
        self.ends, self.closed = True, not body
        self.connection.push(self)
        self.connection.application.answered(len(body))

    def begin(self, status: int, kind: str, headers: Pairs = ()) -> None:
        if not self.gone:
            self.status, self.streaming = status, True
            self._head(status, kind, headers, end=False)
            self.connection.flush()

    def _head(self, status: int, kind: str, headers: Pairs, *, end: bool) -> None:
        lines = [(":status", str(status)), *([("content-type", kind)] if kind else []),
                 ("date", self.connection.application.date[6:-2].decode()),
                 *((name.lower(), value) for name, value in headers)]
        self.connection.h2.send_headers(self.number, lines, end_stream=end)

    def write(self, data: bytes) -> None:
        if self.gone or not data:
            return
        self.sent += len(data)
        self.pending += data
        if len(self.pending) > self.connection.application.limits.unread_bytes:
            self.abort()
            return
        self.connection.push(self)

    def finish(self, trailers: Pairs = ()) -> None:
        if not self.gone:
            self.trailers, self.ends = trailers, True
            self.connection.push(self)

    def abort(self) -> None:
        if not self.gone:
            self.connection.reset(self, ErrorCodes.INTERNAL_ERROR)


class Http2Connection(asyncio.Protocol):
    """One connection. `deadline` is when it is closed, unless something happens before."""

    def __init__(self, application: HttpApplication, is_local: bool) -> None:
        self.application = application
        self.is_local = is_local
        self.loop = asyncio.get_running_loop()
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self.streams: dict[int, Http2Exchange] = {}
        self._limits = application.limits
        self._frames = FrameHeads(self.streams)
        self._allowed: float = _FRAMES
        self._counted = self.loop.time()
        self._pieces = PieceAllowance(self._limits.pieces, self._counted)
        self._resets = 0
        self._leaving = False
        self._handling = False
        #: What has arrived after the piece that is read in this turn, and whether a later turn reads on.
        self._arrived = bytearray()
        self._reads_later = False
        self.deadline = self.loop.time() + self._limits.header_time

    # Connection ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        permitted = self.application.opened(self)
        self.h2.local_settings = Settings(client=False, initial_values={
            SettingCodes.MAX_CONCURRENT_STREAMS: self._limits.streams,
            SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW,
            SettingCodes.MAX_HEADER_LIST_SIZE: self._limits.header_bytes,
        })
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(_CONNECTION_WINDOW)
        self.flush()
        if not permitted or self.application.is_ending:
            self.end()

    def connection_lost(self, error: Exception | None) -> None:
        self.application.closed(self)
        for exchange in list(self.streams.values()):
            self._gone(exchange)

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        if not self._reads_later:
            self._read_on()

    def _read_on(self) -> None:
        """Read the next piece of what has arrived; the rest in the next turn, or when the connection may send small
        pieces again."""
        self._reads_later = False
        piece = bytes(self._arrived[:_TURN])
        del self._arrived[:_TURN]
        if piece and not self.transport.is_closing():
            self._read(piece)
        if self.transport.is_closing():
            self._arrived.clear()
            return
        wait = self._pieces.wait(self.loop.time())
        if wait or self._arrived:
            self._reads_later = True
            self.deadline += wait
            self.transport.pause_reading()
            self.loop.call_later(wait, self._read_on)
        else:
            self.transport.resume_reading()

    def _read(self, data: bytes) -> None:
        """Take the frames of a piece."""
        self._handling = True
        try:
            if not self._frames.permit(data):
                self.h2.close_connection(ErrorCodes.FRAME_SIZE_ERROR)
                raise ProtocolError("a frame is too long")
            self._count()
            for event in self.h2.receive_data(data):
                self._take(event)
        except ProtocolError:
            # h2 has prepared a GOAWAY that names the error.
            self._handling = False
            self.flush()
            self.transport.close()
            return
        finally:
            self._handling = False
        self.flush()
        self._settle()

    def _count(self) -> None:
        """Subtract the frames beside the requests from those that the client may send. Raises ProtocolError."""
        now = self.loop.time()
        earned = (now - self._counted) * _FRAMES_PER_SECOND
        self._allowed = min(_FRAMES, self._allowed + earned) - self._frames.extra
        self._counted, self._frames.extra = now, 0
        if self._allowed < 0:
            self.h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            raise ProtocolError("too many frames")

    @property
    def unread(self) -> int:
        """Bytes of answers that the client has not taken yet."""
        return self.transport.get_write_buffer_size() + sum(len(one.pending) for one in self.streams.values())

    def cut_off(self) -> None:
        """End at once, whatever is unread."""
        self.transport.abort()

    def flush(self) -> None:
        """Send what h2 has prepared."""
        if not self._handling:
            data = self.h2.data_to_send()
            if data and not self.transport.is_closing():
                self.transport.write(data)

    # Events -------------------------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self._request(event)
        elif isinstance(event, DataReceived):
            self._data(event)
        elif isinstance(event, StreamEnded):
            exchange = self.streams.get(event.stream_id or 0)
            if exchange is not None:
                self._complete(exchange)
        elif isinstance(event, StreamReset):
            exchange = self.streams.get(event.stream_id or 0)
            self._resets += 1
            if exchange is not None:
                self._gone(exchange)
            if self._resets > _RESETS:
                self.h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
                raise ProtocolError("too many resets")
        elif isinstance(event, (WindowUpdated, RemoteSettingsChanged)):
            for exchange in list(self.streams.values()):
                if exchange.pending or exchange.ends:
                    self.push(exchange)
        elif isinstance(event, ConnectionTerminated):
            self._leaving = True

    def _request(self, event: RequestReceived) -> None:
        number = event.stream_id or 0
        if self._leaving:
            self.h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            return
        headers: dict[str, str] = {}
        method = target = ""
        for name, value in event.headers or ():
            key, text = bytes(name), bytes(value).decode("latin-1")
            if key == b":method":
                method = text
            elif key == b":path":
                target = text
            elif key in _KNOWN:
                headers[key.decode()] = f"{headers[key.decode()]},{text}" if key.decode() in headers else text
        exchange = self.streams[number] = Http2Exchange(self, number, method, target, headers)
        try:
            length = headers.get("content-length", "0")
            self.application.admit(exchange)
            if not exchange.question and length.isdigit() and int(length) > exchange.limit:
                raise refusals.too_large(exchange.limit)
        except Refused as why:
            self.application.refuse(exchange, why)
            return
        if exchange.question:
            self._examine(exchange)
        elif headers.get("expect", "").lower() == "100-continue":
            self.h2.send_headers(number, [(":status", "100")])

    def _examine(self, exchange: Http2Exchange) -> None:
        """Let the client send no more than its window until the server has said whose the token is."""

        def done(why: Refused | None) -> None:
            exchange.question = ""
            if exchange.gone:
                return
            if why is not None:
                self.application.refuse(exchange, why)
                return
            self._acknowledge(exchange)
            if exchange.complete:
                self._handle(exchange)
            self.flush()

        self.application.ask(exchange, done)

    def _data(self, event: DataReceived) -> None:
        exchange = self.streams.get(event.stream_id or 0)
        size = event.flow_controlled_length or 0
        if exchange is None or exchange.gone:
            self.h2.acknowledge_received_data(size, event.stream_id or 0) if size else None
            return
        exchange.unacknowledged += size
        data = bytes(event.data or b"")
        if exchange.received or exchange.feed is not None:
            self._pieces.take(len(data))
        if exchange.feed is not None and not exchange.question:
            self._acknowledge(exchange)
            exchange.feed(data, False)
            return
        try:
            if exchange.received + len(data) > exchange.limit and not exchange.question:
                raise refusals.too_large(exchange.limit)
            self.application.hold(len(data))
        except Refused as why:
            self.application.refuse(exchange, why)
            return
        exchange.received += len(data)
        exchange.collect(data)
        if not exchange.question:
            self._acknowledge(exchange)

    def _acknowledge(self, exchange: Http2Exchange) -> None:
        size, exchange.unacknowledged = exchange.unacknowledged, 0
        if size:
            self.h2.acknowledge_received_data(size, exchange.number)

    def _complete(self, exchange: Http2Exchange) -> None:
        exchange.complete = True
        if not exchange.question and not exchange.gone:
            self._handle(exchange)

    def _handle(self, exchange: Http2Exchange) -> None:
        exchange.join()
        if exchange.feed is not None:
            exchange.feed(exchange.body, True)
        else:
            self.application.handle(exchange)

    # Answers ------------------------------------------------------------------------------------------------------

    def push(self, exchange: Http2Exchange) -> None:
        """Send as much of an answer as the windows of the client permit."""
        number, pending = exchange.number, exchange.pending
        try:
            while pending:
                room = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size, len(pending))
                if room <= 0:
                    break
                last = exchange.ends and room == len(pending) and not exchange.trailers
                self.h2.send_data(number, bytes(pending[:room]), end_stream=last)
                exchange.closed = last
                self._allowed += _FRAMES_PER_ANSWER
                self._pieces.earn()
                del pending[:room]
            if exchange.ends and not pending:
                self._end(exchange)
        except ProtocolError:
            self._gone(exchange)
        self.flush()
        self._settle()

    def _end(self, exchange: Http2Exchange) -> None:
        """End a stream whose data are sent."""
        if exchange.trailers:
            self.h2.send_headers(exchange.number, list(exchange.trailers), end_stream=True)
        elif not exchange.closed:
            # All data went out before their end was known.
            self.h2.end_stream(exchange.number)
        if not exchange.complete:
            self.h2.reset_stream(exchange.number, ErrorCodes.NO_ERROR)
        self._resets = max(0, self._resets - 1)
        self._allowed += _FRAMES_PER_ANSWER
        self._finish(exchange)

    def reset(self, exchange: Http2Exchange, code: ErrorCodes) -> None:
        """End a stream so that the client sees that its answer is not complete."""
        try:
            self.h2.reset_stream(exchange.number, code)
        except ProtocolError:
            pass
        self._gone(exchange)
        self.flush()

    def _gone(self, exchange: Http2Exchange) -> None:
        """End an exchange whose client does not wait any more."""
        if not exchange.gone:
            cancel = exchange.cancel
            exchange.status = exchange.status or 499
            self._finish(exchange)
            if cancel is not None:
                cancel()

    def _finish(self, exchange: Http2Exchange) -> None:
        exchange.gone = True
        self.streams.pop(exchange.number, None)
        try:
            self._acknowledge(exchange)
        except ProtocolError:
            pass
        self.application.release(exchange.received)
        exchange.received = 0
        self.application.ended(exchange)

    def _settle(self) -> None:
        """Set the deadline, and close when nothing is left to do."""
        if self._leaving and not self.streams and not self._handling:
            self.transport.close()
        waits = any(one.pending or (not one.complete and one.feed is None) for one in self.streams.values())
        limits = self._limits
        self.deadline = _FOREVER if self.streams and not waits else self.loop.time() + (
            limits.body_time if waits else limits.idle_time)

    # Ends ---------------------------------------------------------------------------------------------------------

    def late(self) -> None:
        """End the connection, because its deadline has passed."""
        self.end()
        self.transport.abort() if self.streams else self.transport.close()

    def retire(self) -> None:
        """Ask the client to use another connection; take what it sends until it knows."""
        if not self._leaving:
            self.flush()
            self.transport.write(GoAwayFrame(0, last_stream_id=_LAST_STREAM).serialize())

    def end(self) -> None:
        """Take no further streams, answer the open ones, and close."""
        if not self._leaving:
            self._leaving = True
            last = GoAwayFrame(0, last_stream_id=self.h2.highest_inbound_stream_id)
            self.flush()
            self.transport.write(last.serialize())
        if not self.streams:
            self.transport.close()

