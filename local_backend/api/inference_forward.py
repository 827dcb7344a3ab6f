"""Requests for models that reach the server: it passes them to the gateway on a Unix socket, and the answers back, as
they arrive. Clients that can reach the gateway need not come this way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import h11
from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dlicmd.contract import dlim, inference_wire
from local_backend.api.bulk import resting
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import about
from local_backend.api.errors import BodyRefused, refusal
from local_backend.api.inference_models import SEES
from local_backend.api.route import Route
from local_backend.errors import BackendError, Unavailable
from local_backend.services.access import Caller
from local_backend.services.model_views import GatewayAddress
from local_backend.services.services import Services

router = APIRouter(tags=["inference"], route_class=Route)

_MEDIA = "application/json application/octet-stream text/plain text/html text/event-stream"
#: Headers that concern one connection, or that name the sender: the server adds them itself.
_OWN_HEADERS = frozenset({
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host",
    b"authorization", b"cookie", b"x-auth-token", b"x-user-token", b"expect", b"content-length",
    inference_wire.LOCAL_USER.encode(), inference_wire.LOCAL_ADMIN.encode(),
})
_CHUNK = 1 << 16
#: Seconds that a request waits for a gateway that is starting, and between two looks.
_PATIENCE, _PAUSE = 10.0, 0.05
#: Most seconds of a trial, and most bytes of its answer.
TRIAL_SECONDS, TRIAL_SHOWN = 120.0, 256 << 10

Headers = list[tuple[bytes, bytes]]


@router.post(dlim.INFERENCE + "/{m}")
@about(SEES, media=_MEDIA, errors={
    400: "inference.body inference.input inference.malformed", 404: "inference.no_model model.not_found",
    408: "inference.too_slow",
    413: "inference.too_large", 429: "inference.queue_full inference.rate",
    500: "inference.failed inference.kernel_failed",
    502: "inference.kernel_died",
    503: "gateway.absent gateway.lost inference.cannot_start inference.no_server inference.not_ready inference.stopped "
         "model.stopped",
    504: "inference.timeout"})
async def infer(request: Request, services: TheServices, caller: TheCaller, m: str) -> Response:
    """Send a request to a model. The body reaches a kernel as it is, and the answer of the kernel comes back as it
    is."""
    caller.check_scope("inference.run")
    async with resting():
        address = services.models.facts.address() or await _begun(services, caller, m)
    return ForwardedRequest(request, address, caller, dlim.inference_path(m))


async def _begun(services: Services, caller: Caller, name: str) -> GatewayAddress:
    """Return the address of a gateway that is starting, because a model was started. Raises NotFound
    (`model.not_found`), Unavailable (`model.stopped`, `gateway.absent`)."""
    view = await run_in_threadpool(services.models.view, caller, name)
    if not view.row.started:
        raise Unavailable("model.stopped", f"The model {name} is stopped. Start it: dlim model start {name}",
                          retry_after=10)
    for _ in range(int(_PATIENCE / _PAUSE)):
        address = services.models.facts.address()
        if address is not None:
            return address
        await asyncio.sleep(_PAUSE)
    raise Unavailable("gateway.absent", "The gateway of the models is starting; send the request again", retry_after=1)


@dataclass(frozen=True)
class TrialAnswer:
    """The answer of a model to a trial. Of a long body, only the beginning is kept, and `is_cut`."""

    status: int
    media: str
    body: bytes
    is_cut: bool
    seconds: float


async def tried(services: Services, caller: Caller, name: str, body: bytes, media: str) -> TrialAnswer:
    """Send a request to a model as a user, and return the answer. Raises NotFound (`model.not_found`), AccessDenied
    (`auth.scope`), Unavailable (`model.stopped`, `gateway.absent`, `gateway.lost`)."""
    caller.check_scope("inference.run")
    began = time.monotonic()
    async with resting():
        address = services.models.facts.address() or await _begun(services, caller, name)
        try:
            status, kind, found, cut = await asyncio.wait_for(
                _exchange(address, caller, dlim.inference_path(name), body, media), TRIAL_SECONDS)
        except asyncio.TimeoutError:
            raise Unavailable("gateway.lost", f"The model {name} has not answered within {TRIAL_SECONDS:.0f} s; send "
                                              f"longer requests with dlim invoke {name}") from None
        except (OSError, h11.RemoteProtocolError):
            raise Unavailable("gateway.lost", "The gateway of the models ended before it answered; send the request "
                                              "again", retry_after=1) from None
    return TrialAnswer(status, kind, found, cut, time.monotonic() - began)


async def _exchange(
    address: GatewayAddress, caller: Caller, path: str, body: bytes, media: str
) -> tuple[int, str, bytes, bool]:
    """Return status, media type and beginning of an answer, and whether more follows."""
    reader, writer = await asyncio.open_unix_connection(address.local)
    try:
        peer = h11.Connection(h11.CLIENT)
        headers = [(b"host", b"gateway"), (b"content-length", str(len(body)).encode()),
                   (b"content-type", media.encode("latin-1")), *_identity(caller), (b"connection", b"close")]
        writer.write(peer.send(h11.Request(method="POST", target=path, headers=headers)) or b"")
        writer.write(peer.send(h11.Data(data=body)) or b"")
        writer.write(peer.send(h11.EndOfMessage()) or b"")
        sender = asyncio.create_task(writer.drain())
        status, kind, found = 0, "", bytearray()
        try:
            async for message in _answer(reader):
                if message["type"] == "http.response.start":
                    status, kind = _start(message)
                else:
                    piece = message["body"]
                    found += piece if isinstance(piece, bytes) else b""
                if len(found) > TRIAL_SHOWN:
                    return status, kind, bytes(found[:TRIAL_SHOWN]), True
        finally:
            sender.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await sender
        return status, kind, bytes(found), False
    finally:
        writer.close()


def _start(message: dict[str, Any]) -> tuple[int, str]:
    headers = {bytes(name).lower(): bytes(value) for name, value in message["headers"]}
    return int(message["status"]), headers.get(b"content-type", b"").decode("latin-1")


def _identity(caller: Caller) -> Headers:
    """Return the headers that say who sends a request to the gateway."""
    return [(inference_wire.LOCAL_USER.encode(), caller.name.encode()),
            (inference_wire.LOCAL_ADMIN.encode(), b"1" if caller.admin else b"0")]


class ForwardedRequest(Response):
    """The answer of the gateway to a request, which is sent to it at the same time."""

    def __init__(self, request: Request, address: GatewayAddress, caller: Caller, path: str) -> None:
        super().__init__()
        self._request, self._address, self._caller, self._path = request, address, caller, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the request to the gateway, and its answer to the client (ASGI)."""
        async with resting():
            try:
                reader, writer = await asyncio.open_unix_connection(self._address.local)
            except OSError:
                absent = Unavailable("gateway.absent", "The gateway of the models does not answer; send the request "
                                                       "again", retry_after=1)
                await refusal(scope, absent)(scope, receive, send)
                return
            sender = asyncio.create_task(self._send(writer))
            begun = False
            try:
                async for message in _answer(reader):
                    begun = True
                    await send(message)
            except (OSError, h11.RemoteProtocolError):
                if begun:
                    raise  # the web server ends the connection, so that no client takes a part for the whole
                await refusal(scope, await _why(sender))(scope, receive, send)
            finally:
                sender.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await sender
                writer.close()

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        """Send the request with its body. Raises BodyRefused, and OSError when the gateway has closed."""
        peer = h11.Connection(h11.CLIENT)
        length = self._request.headers.get("content-length", "")
        framing = (b"content-length", length.encode()) if length.isdecimal() else (b"transfer-encoding", b"chunked")
        headers = [(b"host", b"gateway"), framing, *_identity(self._caller), *_kept(self._request.headers.raw),
                   (b"connection", b"close")]
        query = self._request.url.query
        target = self._path + (f"?{query}" if query else "")
        writer.write(peer.send(h11.Request(method="POST", target=target, headers=headers)) or b"")
        try:
            async for piece in self._request.stream():
                if piece:
                    writer.write(peer.send(h11.Data(data=piece)) or b"")
                    await writer.drain()
        except BaseException:
            writer.close()  # a part of a body must not look like the whole
            raise
        writer.write(peer.send(h11.EndOfMessage()) or b"")
        await writer.drain()


def _kept(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in _OWN_HEADERS]


async def _answer(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, object]]:
    """Yield the answer of the gateway as ASGI messages. Raises RemoteProtocolError for a cut off answer."""
    peer = h11.Connection(h11.CLIENT)
    # The request goes out elsewhere; this half only reads.
    peer.send(h11.Request(method="POST", target="/", headers=[(b"host", b"gateway"), (b"content-length", b"0")]))
    peer.send(h11.EndOfMessage())
    while True:
        event = peer.next_event()
        if event is h11.NEED_DATA:
            peer.receive_data(await reader.read(_CHUNK))
        elif isinstance(event, h11.Response):
            kept = [(name, value) for name, value in event.headers
                    if name == b"content-length" or name not in (*_OWN_HEADERS, b"date")]
            yield {"type": "http.response.start", "status": event.status_code, "headers": kept}
        elif isinstance(event, h11.Data):
            yield {"type": "http.response.body", "body": bytes(event.data), "more_body": True}
        elif isinstance(event, h11.EndOfMessage):
            yield {"type": "http.response.body", "body": b"", "more_body": False}
            return
        elif isinstance(event, h11.ConnectionClosed):
            raise h11.RemoteProtocolError("the gateway closed the connection without an answer")


async def _why(sender: asyncio.Task[None]) -> BackendError:
    """Return why the gateway gave no answer: the body of the client is refused, or the gateway has ended."""
    with suppress(asyncio.TimeoutError, OSError, ClientDisconnect):
        try:
            await asyncio.wait_for(asyncio.shield(sender), 1.0)
        except BodyRefused as problem:
            return problem.problem
    return Unavailable("gateway.lost", "The gateway of the models ended before it answered; send the request again",
                       retry_after=1)
