"""GET /console: the slots with who holds them, the queue, and what runs."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.responses import Response

from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.slots_view import slots_view
from local_backend.console import places
from local_backend.console.rendering import page
from local_backend.console.route import router as pages
from local_backend.services.access import Caller
from local_backend.services.services import Services

router = pages()


@router.get(places.HOME)
def overview(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Show the whole page."""
    return page(request, "overview.html", **_found(request, services, caller))


@router.get(places.HOME + "/parts/overview")
def overview_part(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Show the part that changes."""
    return page(request, "overview_part.html", **_found(request, services, caller))


def _found(request: Request, services: Services, caller: Caller) -> dict[str, Any]:
    view = slots_view(services, caller, str(request.base_url))
    return {
        "view": view,
        "names": {one["id"]: one.get("appName", one["id"]) for one in (*view["running"], *view["queue"])},
        "free": sum(slot["state"] == "free" for slot in view["slots"]),
    }
