"""POST /execs/{id}/verify: run an exec again for a few steps, with two numbers of workers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Query, Request

from dlicmd.contract import wire
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.errors import answers
from local_backend.api.showing import show

router = APIRouter(tags=["execs"])


@router.post(wire.EXECS + "/{exec_id}/verify", responses=answers(403))
def verify(
    request: Request, services: TheServices, caller: TheCaller, exec_id: str, steps: int = Query(20, ge=1, le=10**6),
) -> dict[str, Any]:
    """Submit an elastic exec again as a new exec, to verify the first `steps` steps. The new exec computes these steps
    with two numbers of workers and compares them. It ends FINISHED when the results are equal, else ERROR."""
    made = services.submissions.verify(caller, exec_id, steps)
    return show(services.execs.view(made), str(request.base_url))
