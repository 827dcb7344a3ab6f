"""Limits of bodies: their size and their coding. The bodies of submissions have a limit of their own, and are written
to disk as they arrive (submit/receive.py)."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from dlicmd.contract import wire
from local_backend.api.errors import BodyCompressed, BodyRefused
from local_backend.errors import TooLarge

#: Maximum bytes of a body. A tree of 10,000 resource plans has about 1,000,000.
LARGEST = 4 << 20
_PACKED = frozenset({"gzip", "x-gzip", "deflate", "compress", "x-compress", "br", "zstd"})


def bounded(scope: Scope, receive: Receive) -> Receive:
    """Return a `receive` for a call that raises BodyRefused when the body gets too large.

    Raises TooLarge when Content-Length is too large, BodyCompressed for a compressed body.
    """
    headers = Headers(scope=scope)
    for coding in headers.get("content-encoding", "").lower().split(","):
        if coding.strip() in _PACKED:
            raise BodyCompressed(
                "http.compressed",
                f"Content-Encoding: a body compressed with {coding.strip()} is not accepted; send the body "
                "uncompressed",
            )
    if scope["method"] == "POST" and scope["path"] == wire.EXECS:
        return receive
    declared = headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > LARGEST:
        raise _too_large()
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > LARGEST:
            raise BodyRefused(_too_large())
        return message

    return counted


def _too_large() -> TooLarge:
    return TooLarge("http.too_large", f"The body is larger than {LARGEST} bytes, the limit of this call")
