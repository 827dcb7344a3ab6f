"""Replace a gateway by a new one without a failed request.

The new gateway connects to the control socket of the old one and sends `take_over`. The old one sends its listening
sockets and its state; the new one accepts connections and says `taken`. From then on the connection carries frames:
the old gateway sends the requests that no kernel of its own has, as batches, and gets replies, as from a kernel. It
asks its kernels to connect again, lets each connection end after its next answer, and exits when it has none.

A server sends `share`, and gets the sockets of clients, too. It gives them to the next gateway if this one is killed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from typing import Any, cast

from local_backend.inference.control import GatewayState, state_of, to_line
from local_backend.inference.gateway import refusal as refusals
from local_backend.inference.gateway.config import GatewayConfig, GatewayFailed
from local_backend.inference.gateway.control_socket import ControlConnection
from local_backend.inference.gateway.kernel_frames import read_reply
from local_backend.inference.gateway.refusal import Refused, read_meta
from local_backend.inference.gateway.served_models import ServedModels
from local_backend.inference.gateway.tasks import QueuedRequest
from local_backend.inference.kernel import frames

log = logging.getLogger(__name__)
TAKE_OVER, TAKEN, SHARE = "take_over", "taken", "share"
#: Seconds that the old gateway has for each of its messages.
_PATIENCE = 10.0
_DESCRIPTORS = 16


class Predecessor:
    """The new gateway's side: what the old one has handed over."""

    def __init__(self, link: socket.socket, sockets: dict[str, socket.socket], state: GatewayState | None) -> None:
        self.link = link
        self.sockets = sockets
        self.state = state

    async def take(self, models: ServedModels) -> None:
        """Say that this gateway accepts connections; take the requests of the old one from now on."""
        self.link.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_unix_connection(lambda: PredecessorLink(models), sock=self.link)
        transport.write(json.dumps({"op": TAKEN}).encode() + b"\n")


def find_predecessor(config: GatewayConfig) -> Predecessor | None:
    """Ask the gateway that runs with this control socket for its sockets. Return None if none runs.

    Raises GatewayFailed if one runs and does not answer.
    """
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(_PATIENCE)
    try:
        link.connect(config.control)
    except OSError:
        link.close()
        return None
    try:
        link.sendall(json.dumps({"op": TAKE_OVER}).encode() + b"\n")
        return _receive(link)
    except (OSError, ValueError, KeyError, TypeError) as error:
        link.close()
        raise GatewayFailed(f"The gateway at {config.control} does not hand its sockets over: {error}") from None


def _receive(link: socket.socket) -> Predecessor:
    """Read until the sockets and the state have arrived."""
    buffer, descriptors, names = b"", [], None
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        data, found, _, _ = socket.recv_fds(link, 1 << 16, _DESCRIPTORS)
        if not data:
            raise ConnectionError("it closed the connection")
        descriptors += found
        buffer += data
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            message = json.loads(line)
            if message["op"] == "sockets":
                names = message["names"]
            elif message["op"] == "state" and names is not None:
                sockets = {name: socket.socket(fileno=one) for name, one in zip(names, descriptors, strict=True)}
                return Predecessor(link, sockets, _state(message))
    raise TimeoutError("it did not answer in time")


def _state(message: dict[str, Any]) -> GatewayState | None:
    """Return the state of the old gateway; None if it has none, or one of another version that cannot be read."""
    if message["models"] is None:
        return None
    try:
        return state_of(message)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        log.warning("The state of the previous gateway cannot be read (%r); the server sends the state", error)
        return None


def send_sockets(connection: ControlConnection, sockets: dict[str, socket.socket]) -> None:
    """Send listening sockets to a process that asks for them. Raises OSError."""
    with socket.socket(fileno=os.dup(connection.transport.get_extra_info("socket").fileno())) as raw:
        raw.setblocking(True)
        line = json.dumps({"op": "sockets", "names": list(sockets)}).encode() + b"\n"
        socket.send_fds(raw, [line], [one.fileno() for one in sockets.values()])
        raw.setblocking(False)


def send_state(connection: ControlConnection, state: GatewayState | None) -> None:
    """Send the state to a gateway that asks for it."""
    connection.transport.write(to_line(state) if state is not None else b'{"op": "state", "models": null}\n')


class SuccessorRequests:
    """The old gateway's side of the frames: a `SuccessorLink`."""

    def __init__(self, connection: ControlConnection, models: ServedModels) -> None:
        self._transport = connection.transport
        self._models = models
        self._reader = frames.FrameReader()
        self._open: dict[int, QueuedRequest] = {}
        connection.raw = self.feed
        connection.lost = self.lost

    def take(self, request: QueuedRequest) -> None:
        """Send a request to the new gateway."""
        self._open[request.id] = request
        about: dict[str, Any] = {"model": request.model, "meta": request.meta.decode()}
        if request.pinned is not None:
            about["pinned"] = request.pinned
        if request.deadline is not None:
            about["seconds"] = max(0.001, request.deadline - asyncio.get_running_loop().time())
        self._transport.write(frames.batch([frames.KernelTask(request.id, request.body, about)]))

    def drop(self, request: QueuedRequest) -> None:
        """Forget a request whose client is gone."""
        if self._open.pop(request.id, None) is not None:
            self._transport.write(frames.cancel(request.id))

    def feed(self, data: bytes) -> None:
        """Take bytes of the new gateway."""
        try:
            for kind, payload in self._reader.feed(data):
                if kind == frames.REPLY:
                    self._reply(*read_reply(payload))
        except frames.Malformed:
            self._transport.abort()

    def _reply(self, number: int, flags: int, meta: bytes, body: bytes) -> None:
        request = self._open.get(number)
        if request is None or request.sink is None:
            return
        sink = request.sink
        if flags & frames.MORE:
            request.begun = True
            sink.part(body, True, meta)
            return
        del self._open[number]
        request.sink = None
        self._models.ended(request)
        if flags & frames.FAILED:
            about = read_meta(meta)
            sink.refuse(Refused(int(about.get("status", 500)), str(about.get("code", "inference.kernel_failed")),
                                body.decode("utf-8", "replace"), retry_after=about.get("retry_after")))
        else:
            sink.part(body, False, meta)

    def lost(self) -> None:
        """Refuse what the new gateway has not answered before its connection was lost."""
        requests, self._open = list(self._open.values()), {}
        for request in requests:
            sink, request.sink = request.sink, None
            self._models.ended(request)
            if sink is not None:
                sink.refuse(refusals.ending())


class PredecessorLink(asyncio.Protocol):
    """The new gateway's side of the frames: the old gateway is like a client."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self._reader = frames.FrameReader()
        self._open: dict[int, QueuedRequest | None] = {}
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        for request in list(self._open.values()):
            if request is not None:
                self._models.withdraw(request)

    def data_received(self, data: bytes) -> None:
        try:
            for kind, payload in self._reader.feed(data):
                if kind == frames.BATCH:
                    for task in frames.tasks_of(payload):
                        self._take(task)
                elif kind == frames.CANCEL:
                    request = self._open.pop(frames.cancelled(payload), None)
                    if request is not None:
                        self._models.withdraw(request)
        except frames.Malformed:
            self.transport.abort()

    def _take(self, task: frames.KernelTask) -> None:
        about = task.meta
        sink = PredecessorSink(self, task.id)
        self._open[task.id] = None
        try:
            served = self._models.models.get(str(about.get("model")))
            if served is None:
                raise refusals.stopped(str(about.get("model")))
            request = self._models.submit(
                served, task.body, str(about.get("meta", "")).encode(), sink, self._loop.time(),
                timeout=about.get("seconds"), pinned=about.get("pinned"), forced=True)
        except Refused as why:
            sink.refuse(why)
            return
        if task.id in self._open:
            self._open[task.id] = request

    def reply(self, number: int, body: bytes, flags: int, meta: bytes) -> None:
        """Send a part of an answer to the old gateway."""
        if not flags & frames.MORE:
            self._open.pop(number, None)
        if not self.transport.is_closing():
            answer = frames.Reply(number, body, bool(flags & frames.MORE), bool(flags & frames.FAILED),
                                  read_meta(meta) if meta else {})
            self.transport.write(frames.reply(answer))


class PredecessorSink:
    """The way back of one request of the old gateway."""

    __slots__ = ("_link", "_number")

    def __init__(self, link: PredecessorLink, number: int) -> None:
        self._link = link
        self._number = number

    def part(self, body: bytes, more: bool, meta: bytes) -> None:
        """Send a part."""
        self._link.reply(self._number, body, frames.MORE if more else 0, meta)

    def refuse(self, refusal: Refused) -> None:
        """Send a refusal, with what an answer of HTTP needs."""
        about = {"status": refusal.status, "code": refusal.code, "retry_after": refusal.retry_after}
        self._link.reply(self._number, refusal.sentence.encode(), frames.FAILED, json.dumps(about).encode())
