"""Pass the answer of a kernel on: verbatim, in chunks, or as server-sent events."""

from __future__ import annotations

import json
from typing import Any

from dlicmd.contract import inference_wire as wire
from dlicmd.contract.wire import ERROR_CODE
from local_backend.inference.gateway import refusal as refusals
from local_backend.inference.gateway.exchange import HttpExchange
from local_backend.inference.gateway.refusal import Refused, read_meta

#: A longer answer counts as JSON if it begins and ends as an object or a list does: parsing it would take too long.
_PARSED = 4096
_SPACE, _JSON_SPACE = b" \t\r\n", " \t\r\n"
#: Reads one value of JSON, as `json.loads` does, with less around it.
_read_value = json.JSONDecoder().raw_decode


def content_type(body: bytes) -> str:
    """Return the content type of an answer whose kernel does not name one: that of JSON, or of text."""
    if len(body) <= _PARSED:
        try:
            text = body.decode().strip(_JSON_SPACE)
            _, end = _read_value(text)
        except (ValueError, RecursionError):
            return wire.TEXT
        return wire.JSON if end == len(text) else wire.TEXT
    edges = body[:64].lstrip(_SPACE)[:1] + body[-64:].rstrip(_SPACE)[-1:]
    return wire.JSON if edges in (b"{}", b"[]") else wire.TEXT


def head_of(body: bytes, meta: bytes) -> tuple[str, list[tuple[str, str]]]:
    """Return the content type of an answer, and further headers."""
    if not meta:
        return content_type(body), []
    about = read_meta(meta)
    kind, length = _named_type(about), about.get(wire.META_LENGTH)
    if isinstance(length, int) and not isinstance(length, bool):
        return kind or wire.BYTES, [(wire.HEADER_LENGTH, str(length))]
    return kind or content_type(body), []


def _named_type(about: dict[str, Any]) -> str:
    """Return the content type that the kernel names; empty if it names none, or one that no header may have."""
    kind = about.get(wire.META_TYPE)
    return kind if isinstance(kind, str) and kind.isprintable() and kind.isascii() else ""


class VerbatimAnswer:
    """The answer as the kernel gives it; its parts as chunks."""

    __slots__ = ("exchange",)

    def __init__(self, exchange: HttpExchange) -> None:
        self.exchange = exchange

    def part(self, body: bytes, more: bool, meta: bytes) -> None:
        """Pass a part on."""
        exchange = self.exchange
        if not more and not exchange.streaming:
            kind, headers = head_of(body, meta)
            exchange.answer(200, kind, body, headers)
            return
        if not exchange.streaming:
            exchange.begin(200, _named_type(read_meta(meta) if meta else {}) or wire.TEXT)
        exchange.write(body)
        if not more:
            exchange.finish()

    def refuse(self, refusal: Refused) -> None:
        """Pass a refusal on. An answer that has begun is cut off, so that the client sees that it is not complete."""
        if self.exchange.streaming:
            self.exchange.abort()
        else:
            send_refusal(self.exchange, refusal)


class EventAnswer:
    """Each part of the answer as a server-sent event."""

    __slots__ = ("exchange",)

    def __init__(self, exchange: HttpExchange) -> None:
        self.exchange = exchange

    def part(self, body: bytes, more: bool, meta: bytes) -> None:
        """Send a part as an event. An empty last part is not an event."""
        exchange = self.exchange
        if not exchange.streaming:
            exchange.begin(200, wire.EVENTS, [("cache-control", "no-cache")])
        if body or more:
            exchange.write(event(body))
        if not more:
            exchange.finish()

    def refuse(self, refusal: Refused) -> None:
        """Send a refusal as an answer, or as an event `error` if the answer has begun."""
        if self.exchange.streaming:
            self.exchange.write(event(_body(refusal), b"error"))
            self.exchange.finish()
        else:
            send_refusal(self.exchange, refusal)


def event(data: bytes, name: bytes = b"") -> bytes:
    """Return one server-sent event."""
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    front = b"event: " + name + b"\n" if name else b""
    return front + b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"


def _body(refusal: Refused) -> bytes:
    about = {"error": {"code": refusal.code, "message": refusal.sentence}, "msg": refusal.sentence}
    return json.dumps(about, ensure_ascii=False).encode("utf-8", "replace")


def send_refusal(exchange: HttpExchange, refusal: Refused) -> None:
    """Answer with a refusal, in the format of the protocol that the path belongs to."""
    headers = [(ERROR_CODE, refusal.code)]
    if refusal.retry_after is not None:
        headers.append(("retry-after", str(refusal.retry_after)))
    if refusal.status == 401:
        headers.append(("www-authenticate", "Bearer"))
    if exchange.path.startswith(wire.OIP + "/"):
        body = json.dumps({"error": refusal.sentence}, ensure_ascii=False).encode("utf-8", "replace")
    else:
        body = _body(refusal)
    exchange.answer(refusal.status, wire.JSON, body, headers)


def request_timeout(headers: dict[str, str]) -> float | None:
    """Return the seconds that the client waits at most; None if it does not say. Raises Refused."""
    text = headers.get(wire.REQUEST_TIMEOUT)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise refusals.bad_request(f"Request-Timeout must be a number of seconds above 0, but it is {text[:40]!r}")
    return seconds
