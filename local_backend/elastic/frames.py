"""Messages between the hub and a worker: a JSON object and raw bytes, length-prefixed, on a stream socket."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

#: Head of a frame: bytes of the JSON, bytes of the attachment.
_HEAD = struct.Struct("<IQ")
#: Maximum number of bytes in a frame of a peer that has not sent its key yet.
HELLO_LIMIT = 4096

Message = dict[str, Any]


def send_frame(connection: socket.socket, message: Message, attachment: bytes = b"") -> None:
    """Send one message. Raises OSError when the peer is gone."""
    connection.sendall(packed(message, len(attachment)))
    if attachment:
        connection.sendall(attachment)


def packed(message: Message, attachment_size: int = 0) -> bytes:
    """Return a message as the bytes that are sent, without its attachment."""
    text = json.dumps(message).encode()
    return _HEAD.pack(len(text), attachment_size) + text


def receive_frame(connection: socket.socket, limit: int | None = None) -> tuple[Message, bytes] | None:
    """Return the next message and its attachment, or None when the peer has closed the connection.

    Raises ValueError when the frame is malformed or, with `limit`, larger than that many bytes.
    """
    head = _read(connection, _HEAD.size)
    if head is None:
        return None
    text_size, attachment_size = _HEAD.unpack(head)
    if limit is not None and text_size + attachment_size > limit:
        raise ValueError("the frame is too large")
    text = _read(connection, text_size)
    attachment = _read(connection, attachment_size)
    if text is None or attachment is None:
        return None
    message = json.loads(text)
    if not isinstance(message, dict):
        raise ValueError("the message is not an object")
    return message, attachment


def _read(connection: socket.socket, size: int) -> bytes | None:
    """Return exactly `size` bytes, or None when the connection ends before."""
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        try:
            count = connection.recv_into(view)
        except ConnectionError:
            return None
        if count == 0:
            return None
        view = view[count:]
    return bytes(buffer)
