"""Bodies of calls: small texts, and bounded, except those of submissions, which have a limit of their own and go to
disk as they arrive (submit/receive.py)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope

from dlicmd.contract import strict_json, wire
from local_backend.api.errors import ApiError

#: Bytes; a tree of ten thousand resource plans has about one million.
LARGEST = 4 << 20
_PACKED = frozenset({"gzip", "x-gzip", "deflate", "compress", "x-compress", "br", "zstd"})


def bounded(scope: Scope, receive: Receive) -> Receive:
    """`receive` for a call, which ends it with ApiError (413) when its body is too large.

    Raises ApiError: 413 when the call says so itself, 415 for a body that is packed.
    """
    headers = Headers(scope=scope)
    for coding in headers.get("content-encoding", "").lower().split(","):
        if coding.strip() in _PACKED:
            raise ApiError(415, f"Content-Encoding: a body that is packed by {coding.strip()} is not taken; send it as "
                                "it is", {"Accept-Encoding": "identity"})
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
            raise _too_large()
        return message

    return counted


class _Strict(Request):
    async def json(self) -> Any:
        """The body. Raises ApiError."""
        try:
            return strict_json.read(await self.body())
        except ValueError as problem:
            raise ApiError(400, f"The body {problem}") from None


class JsonRoute(APIRoute):
    """A route whose body, if it has one, is JSON as we take it from everybody."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See the base class."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(_Strict(request.scope, request.receive))

        return strict


def _too_large() -> ApiError:
    return ApiError(413, f"The body is larger than {LARGEST} bytes, the most that this call takes")
