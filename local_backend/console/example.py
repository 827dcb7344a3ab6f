"""POST /console/example: train the sample that comes with dlicmd."""

from __future__ import annotations

from functools import partial

from fastapi import Request
from starlette.responses import Response

from local_backend.api.bulk import in_turn
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.changes import done
from local_backend.console.route import router as pages
from local_backend.services.load import UPLOAD

router = pages()


@router.post(places.EXAMPLE)
async def train(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Start a run of the sample, and lead the browser to it. Raises the errors of the service."""
    row = await in_turn(services.load, UPLOAD, caller.name, partial(services.example.submit, caller))
    return done(request, f"{places.RUNS}/{row.id}")
