"""The Open Inference Protocol over REST, and what its gRPC form shares with it."""

from __future__ import annotations

import json
import zlib
from typing import Any

from dlicmd import __version__
from dlicmd.contract import inference_wire as wire
from local_backend.inference.gateway import refusal as refusals
from local_backend.inference.gateway.answers import VerbatimAnswer, request_timeout
from local_backend.inference.gateway.endpoints import Endpoints, meta_of
from local_backend.inference.gateway.exchange import HttpExchange
from local_backend.inference.gateway.refusal import Refused
from local_backend.inference.gateway.served_models import ServedModel
from local_backend.inference.gateway.tensors import header_length

SERVER_NAME = "dlicmd"
EXTENSIONS = ("binary_tensor_data",)
_VERSIONS = "versions"


class OpenInference:
    """The paths below `/v2`."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints

    @property
    def is_ready(self) -> bool:
        """Whether the gateway takes requests and knows the models."""
        return self._endpoints.is_live and self._endpoints.models.state is not None

    def admit(self, exchange: HttpExchange) -> None:
        """Find the handler of a request. Raises Refused."""
        path = exchange.path.rstrip("/")
        if path.startswith(wire.OIP_MODELS):
            self._admit_model(exchange, path[len(wire.OIP_MODELS):].split("/"))
            return
        handlers = {wire.OIP_LIVE: self._live, wire.OIP_READY: self._ready, wire.OIP: self._server}
        if path not in handlers:
            raise refusals.no_path(path[:200])
        self._endpoints.open_to_all(exchange, handlers[path])

    def _admit_model(self, exchange: HttpExchange, parts: list[str]) -> None:
        """Find the handler of NAME, NAME/ready, NAME/infer, and of these with versions/NUMBER after the name."""
        rest = parts[3:] if parts[1:2] == [_VERSIONS] and len(parts) > 2 else parts[1:]
        handlers = {(): self._metadata, ("ready",): self._model_ready, ("infer",): self._infer}
        handler = handlers.get(tuple(rest))
        if handler is None or not parts[0]:
            raise refusals.no_path(exchange.path[:200])
        wanted = "POST" if rest == ["infer"] else "GET"
        if exchange.method != wanted and (wanted, exchange.method) != ("GET", "HEAD"):
            raise refusals.wrong_method(wanted)
        exchange.handler = handler
        self._endpoints.find_model(exchange, parts[0])

    # Handlers -----------------------------------------------------------------------------------------------------

    def _live(self, exchange: HttpExchange) -> None:
        exchange.answer(200, wire.JSON, b'{"live": true}')

    def _ready(self, exchange: HttpExchange) -> None:
        exchange.answer(200 if self.is_ready else 503, wire.JSON, json.dumps({"ready": self.is_ready}).encode())

    def _server(self, exchange: HttpExchange) -> None:
        about = {"name": SERVER_NAME, "version": __version__, "extensions": EXTENSIONS}
        exchange.answer(200, wire.JSON, json.dumps(about).encode())

    def _metadata(self, exchange: HttpExchange) -> None:
        try:
            about = model_metadata(_served(exchange), self._version(exchange))
        except Refused as why:
            self._endpoints.refuse(exchange, why)
        else:
            exchange.answer(200, wire.JSON, json.dumps(about).encode())

    def _model_ready(self, exchange: HttpExchange) -> None:
        try:
            ready = model_ready(_served(exchange), self._version(exchange))
        except Refused as why:
            self._endpoints.refuse(exchange, why)
        else:
            exchange.answer(200 if ready else 503, wire.JSON, json.dumps({"ready": ready}).encode())

    def _infer(self, exchange: HttpExchange) -> None:
        try:
            pinned = pinned_revision(_served(exchange), self._version(exchange))
            body = plain_body(exchange.body, exchange.headers.get("content-encoding", ""), exchange.limit)
            length = header_length(exchange.headers, len(body))
            timeout = request_timeout(exchange.headers)
        except Refused as why:
            self._endpoints.refuse(exchange, why)
            return
        self._endpoints.submit(exchange, VerbatimAnswer(exchange), body=body, pinned=pinned, timeout=timeout,
                               meta=meta_of(exchange.headers, timeout, length))

    @staticmethod
    def _version(exchange: HttpExchange) -> str:
        """Return the version in a path; empty if the path has none."""
        parts = exchange.path[len(wire.OIP_MODELS):].split("/")
        return parts[2] if parts[1:2] == [_VERSIONS] and len(parts) > 2 else ""


def _served(exchange: HttpExchange) -> ServedModel:
    assert exchange.served is not None
    return exchange.served


def pinned_revision(served: ServedModel, version: str) -> int | None:
    """Return the revision that a request asks for; None if it asks for none. Raises Refused."""
    if not version:
        return None
    if not version.isascii() or not version.isdigit() or len(version) > 9 or int(version) not in served.queues:
        raise refusals.no_revision(served.model.name, version[:40])
    return int(version)


def model_ready(served: ServedModel, version: str) -> bool:
    """Return whether a kernel can answer now. Raises Refused for a revision that does not exist."""
    pinned = pinned_revision(served, version)
    return served.is_ready if pinned is None else bool(served.queues[pinned].ready)


def model_metadata(served: ServedModel, version: str) -> dict[str, Any]:
    """Return the metadata of a model. Raises Refused for a revision that does not exist."""
    pinned_revision(served, version)
    known = served.model.metadata
    return {"name": served.model.name, "versions": [str(number) for number in sorted(served.queues)],
            "platform": known.get("platform", ""), "inputs": known.get("inputs", []),
            "outputs": known.get("outputs", [])}


def plain_body(body: bytes, encoding: str, limit: int) -> bytes:
    """Return a body without its content encoding. Raises Refused if it is then larger than `limit` bytes."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise Refused(415, "inference.encoding", f"The gateway does not know the content encoding {encoding[:40]!r}")
    reader = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        plain = reader.decompress(body, limit + 1)
    except zlib.error as error:
        raise refusals.bad_request(f"The body is not valid {encoding}: {error}") from None
    if len(plain) > limit:
        raise refusals.too_large(limit)
    if not reader.eof:
        raise refusals.bad_request(f"The body is not complete {encoding}")
    return plain
