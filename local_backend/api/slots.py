"""PUT /execs/{id}/slots: change the number of slots of a running elastic exec."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body

from dlicmd.contract import wire
from local_backend.api.bodies import JsonRoute
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.errors import answers

router = APIRouter(tags=["execs"], route_class=JsonRoute)


@router.put(wire.EXECS + "/{exec_id}/slots", responses=answers(409, 503))
def resize(
    services: TheServices, caller: TheCaller, exec_id: str, body: Annotated[Any, Body()] = None
) -> dict[str, str | int]:
    """Fix the number of slots of a running elastic exec to `slots`, at once. Its workers start and stop in the
    following moments. 0 parks the exec. null returns the decision to the scheduler. The answer is 409 when the exec
    cannot be resized now, or never; nothing changes then. Only for administrators, because the scheduler does not
    share out fixed slots."""
    resized = services.execs.resize(caller, exec_id, body.get(wire.SLOTS, -1) if isinstance(body, dict) else -1)
    return {wire.ID: exec_id, wire.BEFORE: resized.before, wire.SLOTS: resized.after}
