"""The route of every page: changes need the CSRF token, and errors are pages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from local_backend.console import places
from local_backend.console.sessions import check_csrf

_READING = frozenset({"GET", "HEAD"})


class PageRoute(APIRoute):
    """A route that answers with a page."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **more: Any) -> None:
        super().__init__(path, endpoint, **{**more, "response_model": None, "include_in_schema": False})

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See the base class."""
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            if request.method not in _READING and request.scope["path"] != places.LOGON:
                await check_csrf(request)
            return await handle(request)

        return checked


def router() -> APIRouter:
    """Return a router for pages."""
    return APIRouter(route_class=PageRoute)
