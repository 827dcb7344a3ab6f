"""GET /console/design: every part of the design system on one page."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from dlicmd.contract import states
from local_backend.api.depends import TheCaller
from local_backend.console import places
from local_backend.console.rendering import now, page
from local_backend.console.route import router as pages

router = pages()


@router.get(places.DESIGN)
async def design(request: Request, caller: TheCaller) -> Response:
    """Show every part."""
    return page(request, "design.html", states=sorted(states.ACTIVE | states.TERMINAL), now=now())
