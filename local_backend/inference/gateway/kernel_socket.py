"""The Unix socket that kernels connect to: frames in, frames out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import cast

from local_backend.inference.gateway.kernel_frames import batch_frame, read_reply
from local_backend.inference.gateway.peers import PeerProcess
from local_backend.inference.gateway.queues import RevisionQueue
from local_backend.inference.gateway.served_models import ServedModels
from local_backend.inference.gateway.tasks import KernelSeat, QueuedRequest
from local_backend.inference.kernel import frames

log = logging.getLogger(__name__)
#: Seconds for a HELLO.
_HELLO_TIME = 10.0
#: Seconds that a kernel with an unknown key waits for a state of the server that names it.
_KEY_TIME = 1.0
#: Most bytes of one frame of a kernel.
_FRAME_LIMIT = 1 << 30
#: Most connections that have not shown a known key. For each further one, the oldest is closed: kernels say HELLO at
#: once, so those that stay silent cannot keep others out.
_STRANGERS = 1000
#: Most connections of one revision: the kernel of one user must not take the descriptors of all.
_OF_REVISION = 1000
#: Most bytes of all frames that have arrived in part. Above it, the connection with the longest part is closed.
_PARTS_LIMIT = 2 << 30
#: Highest number of a kernel.
_MOST_NUMBER = (1 << 31) - 1


class KernelSocket:
    """All kernels that are connected, and connections that have not shown a key yet."""

    def __init__(self, models: ServedModels, parts_limit: int = _PARTS_LIMIT) -> None:
        """`parts_limit`: most bytes of all frames that have arrived in part."""
        self.models = models
        self.connections: set[KernelConnection] = set()
        self.parted = False
        self._strangers: dict[KernelConnection, None] = {}
        self._waiting: set[KernelConnection] = set()
        #: Bytes of all frames that have arrived in part.
        self._parts, self._parts_limit = 0, parts_limit

    def connection(self) -> KernelConnection:
        """Return a protocol for a new connection."""
        return KernelConnection(self)

    def examine(self) -> None:
        """Look at the keys of waiting kernels again, after a new state."""
        for one in list(self._waiting):
            one.introduce()

    def wait(self, connection: KernelConnection, waits: bool) -> None:
        """Note whether a kernel waits for a state that names its key."""
        (self._waiting.add if waits else self._waiting.discard)(connection)

    def opened(self, connection: KernelConnection) -> None:
        """Note a new connection. Close the oldest one without a known key if there are too many."""
        self.connections.add(connection)
        self._strangers[connection] = None
        if len(self._strangers) > _STRANGERS:
            oldest = next(iter(self._strangers))
            self.known(oldest)
            oldest.transport.abort()

    def known(self, connection: KernelConnection) -> None:
        """Note that a connection has shown a known key, or is closed."""
        self._strangers.pop(connection, None)

    def closed(self, connection: KernelConnection) -> None:
        """Note that a connection is closed."""
        self.connections.discard(connection)
        self.known(connection)
        self.wait(connection, False)
        self.hold(-connection.part)

    def hold(self, size: int) -> None:
        """Account for bytes of frames that have arrived in part. Close the greediest connection above the limit."""
        self._parts += size
        if size > 0 and self._parts > self._parts_limit:
            largest = max(self.connections, key=lambda one: one.part)
            largest.refuse(f"it holds {largest.part} bytes of a frame while those of all kernels exceed the limit")

    def bye(self) -> None:
        """Ask all kernels to connect again, to the gateway that replaces this one."""
        self.parted = True
        for one in list(self.connections):
            one.bye()

    def close_idle(self) -> None:
        """Close the connections of kernels that have nothing to answer."""
        for one in list(self.connections):
            if one.seat is None or not one.seat.tasks:
                one.transport.close()

    def close(self) -> None:
        """Close all connections."""
        for one in list(self.connections):
            one.transport.close()


class KernelConnection(asyncio.Protocol):
    """One kernel. It is a `KernelPeer` of its seat."""

    transport: asyncio.Transport

    def __init__(self, owner: KernelSocket) -> None:
        self._owner = owner
        self._models = owner.models
        self._reader = frames.FrameReader(frames.HELLO_LIMIT)
        self._loop = asyncio.get_running_loop()
        self._hello: dict[str, object] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._process: PeerProcess | None = None
        self._early: list[tuple[int, bytes]] = []
        self._out: list[bytes] = []
        self._queue: RevisionQueue | None = None
        self.seat: KernelSeat | None = None
        #: Bytes of a frame that has arrived in part.
        self.part = 0

    # Connection ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._owner.opened(self)
        self._process = PeerProcess(transport.get_extra_info("socket"))
        self._timer = self._loop.call_later(_HELLO_TIME, self.refuse, "it sent no HELLO")

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.closed(self)
        self._reader, self.part = frames.FrameReader(frames.HELLO_LIMIT), 0
        if self._timer is not None:
            self._timer.cancel()
        if self.seat is not None:
            self._models.lost(self.seat, self._loop.time())
        if self._process is not None:
            self._process.close()

    def data_received(self, data: bytes) -> None:
        try:
            now = self._loop.time()
            for kind, payload in self._reader.feed(data):
                queue, seat = self._queue, self.seat
                if kind == frames.REPLY and queue is not None and seat is not None:
                    number, flags, meta, body = read_reply(payload)
                    queue.replied(seat, number, flags, body, meta, now=now)
                else:
                    self._take(kind, payload)
        except frames.Malformed as error:
            self.refuse(f"it sent {error}")
            return
        finally:
            if self._queue is not None:
                self._queue.pass_on()
        before, self.part = self.part, self._reader.size
        if before != self.part:
            self._owner.hold(self.part - before)

    def _take(self, kind: int, payload: bytes) -> None:
        queue, seat = self._queue, self.seat
        if queue is None or seat is None:
            self._greet(kind, payload)
        elif kind == frames.READY:
            queue.set_ready(seat, self._loop.time())
        elif kind == frames.LEAVING:
            queue.set_leaving(seat)
            self.bye()
        elif kind == frames.UNANSWERED:
            queue.unanswered(seat, frames.unanswered_of(payload), self._loop.time())
        else:
            raise frames.Malformed(f"a frame of type {kind}")

    # HELLO --------------------------------------------------------------------------------------------------------

    def _greet(self, kind: int, payload: bytes) -> None:
        if self._hello:
            self._early.append((kind, payload))
            if len(self._early) > 2:
                raise frames.Malformed("frames before WELCOME")
            return
        hello = frames.object_of(payload) if kind == frames.HELLO else {}
        if hello.get("version") != frames.VERSION or not isinstance(hello.get("key"), str) \
                or not isinstance(number := hello.get("kernel"), int) or not 0 <= number <= _MOST_NUMBER:
            raise frames.Malformed("no HELLO of this version")
        self._hello = hello
        self.introduce()

    def introduce(self) -> None:
        """Compare the key with those of all revisions; wait a moment for a state that has it."""
        queue = self._models.queue_of_key(str(self._hello["key"]))
        if self._timer is not None:
            self._timer.cancel()
        if queue is None:
            self._owner.wait(self, True)
            self._timer = self._loop.call_later(_KEY_TIME, self.refuse, "its key is unknown")
            return
        self._owner.wait(self, False)
        self._timer = None
        if len(queue.kernels) >= _OF_REVISION:
            self.refuse(f"its revision has {_OF_REVISION} connections, which is the limit")
            return
        self._owner.known(self)
        self._reader.limit = _FRAME_LIMIT
        pid = self._process.pid if self._process is not None else 0
        claimed = self._hello.get("pid")
        number = cast(int, self._hello["kernel"])
        seat = KernelSeat(number, pid or (claimed if isinstance(claimed, int) else 0), self)
        self.seat, self._queue = seat, queue
        self.transport.write(frames.json_frame(frames.WELCOME, {
            "parallel_size": queue.limits.parallel_size, "retry": queue.limits.retry, "unanswered": True}))
        queue.join(seat)
        early, self._early = self._early, []
        for kind, payload in early:
            self._take(kind, payload)
        if self._owner.parted:
            self.bye()

    def refuse(self, reason: str) -> None:
        """Close the connection, and log why."""
        log.warning("The gateway closes the connection of a kernel (pid %d), because %s",
                    self._process.pid if self._process else 0, reason)
        self.transport.abort()

    # KernelPeer ---------------------------------------------------------------------------------------------------

    def send(self, requests: Sequence[QueuedRequest]) -> None:
        if self.seat is not None and len(self.seat.batches) == 1:
            # The kernel waits for this batch.
            self.transport.write(batch_frame(requests))
            return
        # A kernel that has batches gets the further ones of one turn of the loop in one system call.
        self._out.append(batch_frame(requests))
        if len(self._out) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out:
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))

    def cancel(self, number: int) -> None:
        self._flush()
        self.transport.write(frames.cancel(number))

    def kill(self) -> None:
        if self._process is not None:
            log.warning("The gateway ends the kernel %d of %s (pid %d), because it exceeds the execution timeout",
                        self.seat.number if self.seat else -1, self._queue.model if self._queue else "?",
                        self._process.pid)
            self._process.kill()
        self.transport.abort()

    def bye(self) -> None:
        """Give the kernel no further requests, and ask it to connect again."""
        if self.seat is not None and self._queue is not None:
            self._queue.set_leaving(self.seat)
            self._flush()
            self.transport.write(frames.frame(frames.BYE))
        else:
            self.transport.abort()
