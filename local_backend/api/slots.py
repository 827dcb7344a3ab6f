"""PUT /execs/{id}/slots: change the number of slots of a running elastic exec."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import ADMINISTRATORS, about
from local_backend.api.models.execs import Resized, SlotsChange
from local_backend.api.route import Route

router = APIRouter(tags=["execs"], route_class=Route)


@router.put(wire.EXECS + "/{exec_id}/slots")
@about(ADMINISTRATORS, extension=wire.EXT_SLOTS, body=SlotsChange, errors={
    400: "exec.not_found body.json exec.slots", 403: "auth.admin_only", 409: "exec.not_resizable",
    503: "exec.resize_timeout",
})
def resize(
    services: TheServices, caller: TheCaller, exec_id: str, body: Annotated[Any, Body()] = None
) -> JsonAnswer[Resized]:
    """Fix the number of slots of a running elastic exec to `slots`. Its workers start and stop in the
    following moments. 0 parks the exec. null returns the decision to the scheduler. The answer is 409 when the exec
    cannot be resized now, or never; nothing changes then. Only for administrators, because the scheduler does not
    share out fixed slots."""
    resized = services.execs.resize(caller, exec_id, body.get(wire.SLOTS, -1) if isinstance(body, dict) else -1)
    return JsonAnswer({"id": exec_id, "before": resized.before, "slots": resized.after})
