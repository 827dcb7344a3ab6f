"""Write batches and read replies without an object for each of them: these run for each request."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from local_backend.inference.gateway.tasks import QueuedRequest
from local_backend.inference.kernel import frames

#: Length of the frame, its type, the number of tasks; then the id, and the lengths of metadata and body.
_ONE = struct.Struct(">IBIQII")
_HEAD = struct.Struct(">IBI")
_TASK = struct.Struct(">QII")
_REPLY = struct.Struct(">QB")
_LENGTH = struct.Struct(">I")


def batch_frame(requests: Sequence[QueuedRequest]) -> bytes:
    """Return the BATCH frame of requests, as `frames.batch` does for tasks."""
    if len(requests) == 1:
        (request,) = requests
        meta, body = request.meta, request.body
        head = _ONE.pack(21 + len(meta) + len(body), frames.BATCH, 1, request.id, len(meta), len(body))
        return b"".join((head, meta, body))
    parts, size = [b""], 5
    for request in requests:
        meta, body = request.meta, request.body
        size += _TASK.size + len(meta) + len(body)
        parts += (_TASK.pack(request.id, len(meta), len(body)), meta, body)
    parts[0] = _HEAD.pack(size, frames.BATCH, len(requests))
    return b"".join(parts)


def read_reply(payload: bytes) -> tuple[int, int, bytes, bytes]:
    """Return the id, the flags, the metadata and the body of a REPLY frame. Raises Malformed."""
    try:
        number, flags = _REPLY.unpack_from(payload)
        if not flags & frames.HAS_META:
            return number, flags, b"", payload[_REPLY.size:]
        (length,) = _LENGTH.unpack_from(payload, _REPLY.size)
        at = _REPLY.size + _LENGTH.size + length
        if at > len(payload):
            raise frames.Malformed("the metadata is longer than its frame")
    except struct.error:
        raise frames.Malformed("a reply is cut off") from None
    return number, flags, payload[at - length:at], payload[at:]
