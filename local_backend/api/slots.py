"""PUT /execs/{id}/slots: a running elastic exec is given another number of slots."""

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
    """Fix the slots of a running elastic exec to `slots`, at once; its workers come and go in the following moments.
    With 0 it is parked, with null the scheduler decides again. 409 when that is not possible now, or never for this
    exec; nothing is changed then. For administrators: fixed slots are not shared out."""
    resized = services.execs.resize(caller, exec_id, body.get(wire.SLOTS, -1) if isinstance(body, dict) else -1)
    return {wire.ID: exec_id, wire.BEFORE: resized.before, wire.SLOTS: resized.after}
