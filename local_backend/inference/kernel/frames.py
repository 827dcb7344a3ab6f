"""Frames between a kernel and the gateway (docs/kernel-protocol.md).

The kernel connects to the Unix socket of the gateway. Each direction is a row of frames: the number of bytes that
follow (uint32), a type (uint8), the payload. All integers are big-endian. This module imports the standard library
only, because kernels use it in any Python environment.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Version of the protocol that HELLO names.
VERSION = 1
#: From the kernel. HELLO: a JSON object with `version`, `key`, `kernel` (its number) and `pid`, or without `pid`.
HELLO = 1
#: The kernel takes tasks from now on.
READY = 2
#: A part of the answer to a task: see `Reply`.
REPLY = 3
#: The kernel takes no further tasks. It answers those that it has, and ends. The gateway says BYE to it, so that the
#: kernel knows that no further batch is on its way.
LEAVING = 4
#: Ids of tasks (uint64 each) that the kernel has returned from without an answer, which may still come. Sent only to a
#: gateway whose WELCOME has `unanswered`: it need not wait for these tasks before it sends the next batch.
UNANSWERED = 5
#: From the gateway. WELCOME: a JSON object, which may have `parallel_size` (batches that the kernel runs at the same
#: time), `unanswered` (true) and `retry` (whether a task may be run again). The answer to HELLO; a gateway that refuses
#: closes instead.
WELCOME = 16
#: Tasks that one call of the kernel handles together: see `KernelTask`.
BATCH = 17
#: The id of a task (uint64) whose client is gone. A kernel may skip it.
CANCEL = 18
#: The gateway is being replaced. The kernel answers what it has, closes, and connects again.
BYE = 19

#: Flags of a reply: further parts follow; the task failed, and the body is a sentence; a JSON object precedes the body.
MORE, FAILED, HAS_META = 1, 2, 4

_HEAD = struct.Struct(">IB")
_COUNT = struct.Struct(">I")
_ID = struct.Struct(">Q")
_TASK = struct.Struct(">QII")
_REPLY = struct.Struct(">QB")
#: The head of a frame and `_REPLY`.
_PLAIN_REPLY = struct.Struct(">IBQB")
#: Bytes of the length before each frame.
_LENGTH = 4
#: Most bytes of a frame of a kernel that has not sent a valid HELLO.
HELLO_LIMIT = 4096


class Malformed(Exception):
    """The peer sent bytes that are not a frame of this protocol."""


@dataclass(frozen=True)
class KernelTask:
    """One request as a kernel gets it."""

    id: int
    body: bytes
    #: `content_type` of the body, `session`, `deadline` (epoch seconds), `header_length` (the bytes of JSON at the
    #: beginning of a body with the binary tensor extension of the Open Inference Protocol). Members may be absent.
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """An answer, or one part of it if `more` parts follow."""

    id: int
    body: bytes
    more: bool = False
    failed: bool = False
    #: `content_type` and `header_length`, as in `KernelTask`.
    meta: Mapping[str, Any] = field(default_factory=dict)


def frame(kind: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return _HEAD.pack(len(payload) + 1, kind) + payload


def json_frame(kind: int, value: Mapping[str, Any]) -> bytes:
    """Return a frame whose payload is a JSON object."""
    return frame(kind, json.dumps(value).encode())


def batch(tasks: Iterable[KernelTask]) -> bytes:
    """Return a BATCH frame. Its payload: the number of tasks (uint32); for each task its id (uint64), the lengths of
    its metadata and its body (uint32 each), its metadata (a JSON object, or nothing), its body."""
    parts, count = [b""], 0
    for task in tasks:
        meta = json.dumps(task.meta).encode() if task.meta else b""
        parts += [_TASK.pack(task.id, len(meta), len(task.body)), meta, task.body]
        count += 1
    parts[0] = _COUNT.pack(count)
    return frame(BATCH, b"".join(parts))


def cut_tasks(payload: bytes | memoryview) -> Iterator[tuple[int, bytes | memoryview, bytes | memoryview]]:
    """Yield the id, the metadata and the body of each task of a BATCH frame, as slices of it. Raises Malformed."""
    try:
        (count,) = _COUNT.unpack_from(payload)
        at, size = _COUNT.size, len(payload)
        for _ in range(count):
            number, meta, body = _TASK.unpack_from(payload, at)
            at += _TASK.size
            middle, end = at + meta, at + meta + body
            if end > size:
                raise Malformed("a task is longer than its frame")
            yield number, payload[at:middle], payload[middle:end]
            at = end
    except struct.error:
        raise Malformed("a task is cut off") from None


def tasks_of(payload: bytes | memoryview) -> Iterator[KernelTask]:
    """Yield the tasks of a BATCH frame. Raises Malformed."""
    for number, meta, body in cut_tasks(payload):
        yield KernelTask(number, bytes(body), _object(meta) if meta else {})


def reply(answer: Reply) -> bytes:
    """Return a REPLY frame. Its payload: the id of the task (uint64), flags (uint8), the body. With HAS_META, the
    length of the metadata (uint32) and the metadata (a JSON object) precede the body."""
    flags = (MORE if answer.more else 0) | (FAILED if answer.failed else 0) | (HAS_META if answer.meta else 0)
    return reply_front(answer.id, flags, answer.meta, len(answer.body)) + answer.body


def reply_front(number: int, flags: int, meta: Mapping[str, Any], size: int) -> bytes:
    """Return a REPLY frame without its body, which has `size` bytes. `flags` has HAS_META if `meta` is not empty."""
    if not meta:
        return _PLAIN_REPLY.pack(_PLAIN_REPLY.size - _LENGTH + size, REPLY, number, flags)
    text = json.dumps(meta).encode()
    front = _REPLY.pack(number, flags) + _COUNT.pack(len(text)) + text
    return _HEAD.pack(1 + len(front) + size, REPLY) + front


def reply_of(payload: bytes | memoryview) -> Reply:
    """Return the reply of a REPLY frame. Raises Malformed."""
    try:
        number, flags = _REPLY.unpack_from(payload)
        at, meta = _REPLY.size, {}
        if flags & HAS_META:
            (length,) = _COUNT.unpack_from(payload, at)
            at += _COUNT.size
            if at + length > len(payload):
                raise Malformed("the metadata is longer than its frame")
            meta = _object(payload[at:at + length])
            at += length
    except struct.error:
        raise Malformed("a reply is cut off") from None
    return Reply(number, bytes(payload[at:]), bool(flags & MORE), bool(flags & FAILED), meta)


def unanswered(numbers: Iterable[int]) -> bytes:
    """Return an UNANSWERED frame for the tasks with these ids."""
    return frame(UNANSWERED, b"".join(_ID.pack(one) for one in numbers))


def unanswered_of(payload: bytes | memoryview) -> list[int]:
    """Return the ids of an UNANSWERED frame. Raises Malformed."""
    if len(payload) % _ID.size:
        raise Malformed("the ids are cut off")
    return [number for (number,) in _ID.iter_unpack(payload)]


def cancel(number: int) -> bytes:
    """Return a CANCEL frame for the task with this id."""
    return frame(CANCEL, _ID.pack(number))


def cancelled(payload: bytes | memoryview) -> int:
    """Return the id of a CANCEL frame. Raises Malformed."""
    if len(payload) != _ID.size:
        raise Malformed("a cancellation is cut off")
    return int(_ID.unpack(payload)[0])


def object_of(payload: bytes | memoryview) -> dict[str, Any]:
    """Return the JSON object of a HELLO or WELCOME frame. Raises Malformed."""
    return _object(payload)


def _object(text: bytes | memoryview) -> dict[str, Any]:
    try:
        found = json.loads(bytes(text))
    except (ValueError, RecursionError):
        raise Malformed("the metadata is not JSON") from None
    if not isinstance(found, dict):
        raise Malformed("the metadata is not an object")
    return found


class FrameReader:
    """Cuts the bytes of one connection into frames."""

    def __init__(self, limit: int | None = None) -> None:
        """`limit`: most bytes of a frame; None for no limit. Change it at any time."""
        self.limit = limit
        self._buffer = bytearray()

    @property
    def size(self) -> int:
        """Bytes of a frame that has arrived in part."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Take received bytes; return the frames that are complete now, as (type, payload). Raises Malformed."""
        buffer: bytes | bytearray = self._buffer
        if buffer:
            buffer += data
        else:
            buffer = data
        limit = math.inf if self.limit is None else self.limit
        found, at, size = [], 0, len(buffer)
        while size - at >= _LENGTH:
            (length,) = _COUNT.unpack_from(buffer, at)
            if length < 1 or length > limit:
                raise Malformed(f"a frame of {length} bytes")
            end = at + _LENGTH + length
            if end > size:
                break
            found.append((buffer[at + _LENGTH], bytes(buffer[at + _LENGTH + 1:end])))
            at = end
        if buffer is data:
            self._buffer += data[at:]
        else:
            del self._buffer[:at]
        return found
