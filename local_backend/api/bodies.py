"""Limits of bodies: their size, their coding and their pace. The bodies of submissions have a limit of size of their
own, and are written to disk as they arrive (submit/receive.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from dlicmd.contract import dlim, wire
from local_backend.api.errors import BodyCompressed, BodyRefused
from local_backend.api.pages import pages_of
from local_backend.errors import TooLarge, TooSlow
from local_backend.services.access import Caller

#: Maximum bytes of a body: of an administrator, of another user, and of a call without a token. A tree of 10,000
#: resource plans has about 1,000,000, and 10,000 ids to stop have about 200,000.
LARGEST, LARGEST_OF_USER, LARGEST_WITHOUT_TOKEN = 4 << 20, 256 << 10, 32 << 10
#: A body must arrive with this many bytes per second on average. Its first bytes may take PATIENCE seconds.
LEAST_RATE, PATIENCE = 1024, 30.0
_UPLOADS = frozenset({
    wire.EXECS, wire.SEARCHES, wire.ALGORITHM_INSTALL, wire.DEFINITIONS, wire.DATA_FILES, dlim.DEPLOYMENT, dlim.MODELS,
})
_PACKED = frozenset({"gzip", "x-gzip", "deflate", "compress", "x-compress", "br", "zstd"})


def bounded(scope: Scope, receive: Receive, begun: Callable[[], bool], caller: Caller | None) -> Receive:
    """Return a `receive` for a call of this caller that raises BodyRefused when the body gets too large or arrives too
    slowly. `begun` returns whether the answer has begun: a body that is too slow then counts as a client that
    disconnected.

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
    pages = pages_of(scope)
    if scope["method"] == "POST" and (
            is_upload(scope["path"]) or (pages is not None and pages.is_upload(scope["path"]))):
        return _paced(receive, begun)
    most = None if pages is None or caller is None else pages.largest(scope["path"])
    if most is None:
        most = _most(scope["path"], caller)
    declared = headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > most:
        raise _too_large(most)
    received, receive = 0, _paced(receive, begun)

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
            raise BodyRefused(_too_large(most))
        return message

    return counted


def is_upload(path: str) -> bool:
    """Return whether the body of a POST contains files or a request for a model, and has a limit of its own."""
    return (path in _UPLOADS or path.startswith((f"{dlim.DEPLOYMENT}/", f"{dlim.INFERENCE}/"))
            or (path.startswith(f"{wire.EDI_MODELS}/") and path != f"{wire.EDI_MODELS}/new")
            or (path.startswith(wire.MODELS + "/") and path.endswith("/hypersearch")))


def _paced(receive: Receive, begun: Callable[[], bool]) -> Receive:
    received, waited, more = 0, 0.0, True

    async def paced() -> Message:
        nonlocal received, waited, more
        if not more:
            return await receive()  # waits until the client disconnects
        start = time.monotonic()
        try:
            message = await asyncio.wait_for(receive(), max(0.0, PATIENCE + received / LEAST_RATE - waited))
        except asyncio.TimeoutError:
            if begun():
                return {"type": "http.disconnect"}
            sentence = f"The body arrives too slowly ({received} bytes); send {LEAST_RATE} bytes or more a second"
            raise BodyRefused(TooSlow("http.too_slow", sentence)) from None
        # Only the time of the client counts, not the time in which the server stores what has arrived.
        waited += time.monotonic() - start
        received += len(message.get("body", b""))
        more = bool(message.get("more_body", False))
        return message

    return paced


def _most(path: str, caller: Caller | None) -> int:
    """Return the maximum bytes of a body. The server keeps a body in memory until its last byte, which may take more
    than an hour, and anyone can send many bodies to calls without a token. A check has the text of a submission, and
    counts as an upload."""
    if caller is None:
        return LARGEST_WITHOUT_TOKEN
    return LARGEST if caller.admin or path == wire.CHECK else LARGEST_OF_USER


def _too_large(most: int) -> TooLarge:
    return TooLarge("http.too_large", f"The body is larger than {most} bytes, the limit of this call")
