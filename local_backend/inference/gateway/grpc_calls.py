"""gRPC of the Open Inference Protocol, on the streams of HTTP/2."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from dlicmd import __version__
from dlicmd.contract import inference_wire as wire
from local_backend.inference.gateway import refusal as refusals
from local_backend.inference.gateway.access import RequestUser
from local_backend.inference.gateway.endpoints import Endpoints, meta_of
from local_backend.inference.gateway.exchange import HttpExchange
from local_backend.inference.gateway.grpc_messages import messages
from local_backend.inference.gateway.open_inference import (
    EXTENSIONS,
    SERVER_NAME,
    OpenInference,
    model_metadata,
    model_ready,
    pinned_revision,
    plain_body,
)
from local_backend.inference.gateway.refusal import Refused, read_meta
from local_backend.inference.gateway.tasks import QueuedRequest
from local_backend.inference.gateway.tensors import from_rest, to_rest

_PREFIX = struct.Struct(">BI")
#: HTTP status → status of gRPC; 13, INTERNAL, for all others.
_STATUS = {400: 3, 401: 16, 403: 7, 404: 5, 405: 12, 408: 4, 413: 8, 415: 12, 417: 3, 429: 8, 431: 8, 501: 12, 502: 14,
           503: 14, 504: 4}
_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])", re.ASCII)
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
#: Requests of one stream whose answers are not complete.
_OPEN = 1000
_FINAL = "triton_final_response"
_EMPTY_FINAL = "triton_enable_empty_final_response"


class GrpcCalls:
    """The methods of `GRPCInferenceService`."""

    def __init__(self, endpoints: Endpoints, open_inference: OpenInference) -> None:
        self.endpoints = endpoints
        self._open_inference = open_inference
        self._methods: dict[str, Callable[[HttpExchange, Any], Any]] = {
            "ServerLive": lambda exchange, request: {"live": True},
            "ServerReady": lambda exchange, request: {"ready": open_inference.is_ready},
            "ServerMetadata": lambda exchange, request: {
                "name": SERVER_NAME, "version": __version__, "extensions": EXTENSIONS},
            "ModelReady": self._model_ready, "ModelMetadata": self._model_metadata,
        }

    def admit(self, exchange: HttpExchange) -> None:
        """Find the handler and the user of a call. Raises Refused."""
        method = exchange.path.removeprefix(wire.GRPC_SERVICE)
        messages()
        if method == "ModelStreamInfer":
            exchange.feed = StreamCall(self, exchange).feed
        elif method == "ModelInfer":
            exchange.handler = self._infer
        elif method in self._methods:
            exchange.handler = lambda found: self._simple(found, method)
        else:
            raise Refused(501, "inference.no_path", f"The gateway has no method {exchange.path[:200]}")
        if method in ("ServerLive", "ServerReady"):
            exchange.limit = _PREFIX.size
        else:
            self.endpoints.find_model(exchange, "")

    # Simple calls -------------------------------------------------------------------------------------------------

    def _simple(self, exchange: HttpExchange, method: str) -> None:
        try:
            (data,) = read_messages(exchange)
            request = parsed(getattr(messages(), f"{method}Request"), data)
            fields = self._methods[method](exchange, request)
        except Refused as why:
            send_status(exchange, why)
            return
        begin(exchange)
        exchange.write(framed(getattr(messages(), f"{method}Response")(**fields)))
        exchange.finish([("grpc-status", "0")])

    def _model_ready(self, exchange: HttpExchange, request: Any) -> dict[str, Any]:
        self.find(exchange, request.name)
        return {"ready": exchange.served is not None and model_ready(exchange.served, request.version)}

    def _model_metadata(self, exchange: HttpExchange, request: Any) -> dict[str, Any]:
        self.find(exchange, request.name)
        assert exchange.served is not None
        found = model_metadata(exchange.served, request.version)
        kind = messages().ModelMetadataResponse.TensorMetadata
        for side in ("inputs", "outputs"):
            try:
                found[side] = [kind(name=one["name"], datatype=one["datatype"], shape=one["shape"])
                               for one in found[side]]
            except (KeyError, TypeError, ValueError):
                found[side] = []
        return found

    def find(self, exchange: HttpExchange, name: str) -> None:
        """Find the model that a message names. Raises Refused."""
        user = exchange.user
        assert isinstance(user, RequestUser)
        exchange.served = self.endpoints.access.model(name, user)

    # Inference ----------------------------------------------------------------------------------------------------

    def _infer(self, exchange: HttpExchange) -> None:
        try:
            (data,) = read_messages(exchange)
            request = parsed(messages().ModelInferRequest, data)
            self.submit(exchange, request, UnaryAnswer(exchange, request))
        except Refused as why:
            send_status(exchange, why)

    def submit(self, exchange: HttpExchange, request: Any, sink: UnaryAnswer | StreamAnswer) -> QueuedRequest | None:
        """Hand a request to the queue of its model. Raises Refused for a request that is wrong."""
        self.find(exchange, request.model_name)
        served = exchange.served
        assert served is not None
        pinned = pinned_revision(served, request.model_version)
        body, length = to_rest(request)
        if len(body) > served.model.limits.body_bytes:
            raise refusals.too_large(served.model.limits.body_bytes)
        timeout = grpc_timeout(exchange.headers)
        headers = {name: value for name, value in exchange.headers.items() if name == wire.TRACE_PARENT}
        headers["content-type"] = wire.BYTES
        return self.endpoints.submit(exchange, sink, body=body, pinned=pinned, timeout=timeout,
                                      meta=meta_of(headers, timeout, length))


class UnaryAnswer:
    """The answer to `ModelInfer`: one message of all parts."""

    def __init__(self, exchange: HttpExchange, request: Any) -> None:
        self._exchange = exchange
        self._request = request
        self._parts: list[bytes] = []
        self._meta = b""

    def part(self, body: bytes, more: bool, meta: bytes) -> None:
        """Take a part; send the message after the last one."""
        self._parts.append(body)
        self._meta = self._meta or meta
        if more:
            return
        try:
            response = to_message(self._request, b"".join(self._parts), self._meta)
        except Refused as why:
            self.refuse(why)
            return
        begin(self._exchange)
        self._exchange.write(framed(response))
        self._exchange.finish([("grpc-status", "0")])

    def refuse(self, refusal: Refused) -> None:
        """Send a refusal."""
        send_status(self._exchange, refusal)


class StreamCall:
    """One call of `ModelStreamInfer`: requests come in, answers go out as they are ready."""

    def __init__(self, calls: GrpcCalls, exchange: HttpExchange) -> None:
        self._calls = calls
        self._exchange = exchange
        self._buffer = bytearray()
        self._open: dict[StreamAnswer, QueuedRequest | None] = {}
        self._is_last = False

    def feed(self, data: bytes, last: bool) -> None:
        """Take bytes of the stream."""
        exchange = self._exchange
        if exchange.gone:
            return
        exchange.cancel = self._cancel
        if not exchange.streaming:
            begin(exchange)
        self._buffer += data
        try:
            while (message := self._next()) is not None:
                self._take(parsed(messages().ModelInferRequest, message))
            if last and self._buffer:
                raise refusals.bad_request("The last message of the stream is cut off")
        except Refused as why:
            self._cancel()
            finish_with(exchange, why)
            return
        self._is_last = last
        self._settle()

    def _next(self) -> bytes | None:
        if len(self._buffer) < _PREFIX.size:
            return None
        flag, size = _PREFIX.unpack_from(self._buffer)
        if size > self._exchange.limit:
            raise refusals.too_large(self._exchange.limit)
        if len(self._buffer) < _PREFIX.size + size:
            return None
        message = bytes(self._buffer[_PREFIX.size:_PREFIX.size + size])
        del self._buffer[:_PREFIX.size + size]
        return unpacked(flag, message, self._exchange)

    def _take(self, request: Any) -> None:
        answer = StreamAnswer(self, request)
        self._open[answer] = None
        if len(self._open) > _OPEN:
            answer.refuse(refusals.full(request.model_name, refusals.SOON))
            return
        try:
            queued = self._calls.submit(self._exchange, request, answer)
        except Refused as why:
            answer.refuse(why)
        else:
            if answer in self._open:
                self._open[answer] = queued
        self._exchange.cancel = self._cancel

    def send(self, response: Any) -> None:
        """Send a message."""
        self._exchange.write(framed(response))

    def ended(self, answer: StreamAnswer) -> None:
        """Note that a request has its last answer."""
        self._open.pop(answer, None)
        self._settle()

    def _settle(self) -> None:
        if self._is_last and not self._open:
            self._exchange.finish([("grpc-status", "0")])

    def _cancel(self) -> None:
        """Withdraw all open requests, because the client is gone."""
        requests, self._open = list(self._open.values()), {}
        for one in requests:
            if one is not None:
                self._calls.endpoints.withdraw(one)


class StreamAnswer:
    """The answers to one request of a stream."""

    def __init__(self, call: StreamCall, request: Any) -> None:
        self._call = call
        self._request = request

    def part(self, body: bytes, more: bool, meta: bytes) -> None:
        """Send a part as a message. An empty last part is a message only for clients that ask for one."""
        made = messages().ModelStreamInferResponse()
        try:
            if body or more:
                made.infer_response.CopyFrom(to_message(self._request, body, meta))
            else:
                made.infer_response.CopyFrom(empty_message(self._request))
        except Refused as why:
            made.error_message = why.sentence
        made.infer_response.parameters[_FINAL].bool_param = not more
        if body or more or self._request.parameters[_EMPTY_FINAL].bool_param:
            self._call.send(made)
        if not more:
            self._call.ended(self)

    def refuse(self, refusal: Refused) -> None:
        """Send a refusal. The stream goes on."""
        made = messages().ModelStreamInferResponse(error_message=refusal.sentence)
        made.infer_response.CopyFrom(empty_message(self._request))
        made.infer_response.parameters[_FINAL].bool_param = True
        self._call.send(made)
        self._call.ended(self)


# Bytes and messages -----------------------------------------------------------------------------------------------


def empty_message(request: Any) -> Any:
    """Return an answer without outputs."""
    return messages().ModelInferResponse(
        model_name=request.model_name, model_version=request.model_version, id=request.id)


def to_message(request: Any, body: bytes, meta: bytes) -> Any:
    """Return the answer of a kernel as a message. Raises Refused."""
    response = empty_message(request)
    length = read_meta(meta).get(wire.META_LENGTH) if meta else None
    from_rest(body, length if isinstance(length, int) and not isinstance(length, bool) else None, response)
    return response


def framed(message: Any) -> bytes:
    """Return a message as it goes over the wire."""
    data = message.SerializeToString()
    return _PREFIX.pack(0, len(data)) + data


def parsed(kind: Any, data: bytes) -> Any:
    """Return the message of bytes. Raises Refused."""
    try:
        return kind.FromString(data)
    except Exception as error:  # protobuf is an extra, so its DecodeError cannot be named
        raise refusals.bad_request(f"The message is not a {kind.__name__}: {error}") from None


def read_messages(exchange: HttpExchange) -> list[bytes]:
    """Return the message of a body, which must be one. Raises Refused."""
    body = exchange.body
    if len(body) < _PREFIX.size or _PREFIX.unpack_from(body)[1] != len(body) - _PREFIX.size:
        raise refusals.bad_request("The body is not one message of gRPC")
    return [unpacked(body[0], body[_PREFIX.size:], exchange)]


def unpacked(flag: int, message: bytes, exchange: HttpExchange) -> bytes:
    """Return a message without its compression. Raises Refused."""
    if flag == 0:
        return message
    return plain_body(message, exchange.headers.get("grpc-encoding", ""), max(exchange.limit, len(message)))


def grpc_timeout(headers: dict[str, str]) -> float | None:
    """Return the seconds that the client waits at most; None if it does not say. Raises Refused."""
    text = headers.get("grpc-timeout")
    if text is None:
        return None
    match = _TIMEOUT.fullmatch(text)
    if match is None:
        raise refusals.bad_request(f"grpc-timeout must be digits and a unit, but it is {text[:40]!r}")
    return max(1e-3, int(match[1]) * _UNITS[match[2]])


def begin(exchange: HttpExchange) -> None:
    """Send the head of an answer."""
    exchange.begin(200, wire.GRPC, [("grpc-accept-encoding", "identity,gzip,deflate")])


def _status_of(refusal: Refused) -> list[tuple[str, str]]:
    return [("grpc-status", str(_STATUS.get(refusal.status, 13))),
            ("grpc-message", quote(refusal.sentence, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"))]


def send_status(exchange: HttpExchange, refusal: Refused) -> None:
    """Answer with a refusal."""
    exchange.answer(200, wire.GRPC, b"", _status_of(refusal))


def finish_with(exchange: HttpExchange, refusal: Refused) -> None:
    """End a stream with a refusal."""
    exchange.finish(_status_of(refusal))
