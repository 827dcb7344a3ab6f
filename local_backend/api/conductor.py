"""The call of first-generation clients to Conductor: the applications of an instance group, with the GPUs that they
use now."""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter

from local_backend.api.as_json import JsonAnswer
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import OWN_EXECS, about
from local_backend.api.models.applications import MeasuredApplication
from local_backend.api.objects import INSTANCE_ID
from local_backend.api.route import Route
from local_backend.api.scheduler import CHOICE_ERRORS, Choice, chosen
from local_backend.errors import NotFound
from local_backend.runtime.utilisation import Use

router = APIRouter(tags=["scheduler"], route_class=Route)

_MIB = 1 << 20
_UNSEEN = Use(0.0, 0)


@router.get("/platform/rest/conductor/v1/instances/{instance}/applications")
@about(OWN_EXECS, errors={**CHOICE_ERRORS, 400: f"{CHOICE_ERRORS[400]} instance.not_found"})
def applications(
    services: TheServices, caller: TheCaller, instance: str, choice: Choice
) -> JsonAnswer[list[MeasuredApplication]]:
    """List applications, selected and shown as in `/scheduler/applications`. Each also has its number of GPU slots
    (`gpuslots`), the memory in use on these GPUs in MiB (`gpumemused.total`), and the sum of their utilization in
    percent (`gpudevutil.total`). `instance` is the `sigId` of an exec."""
    if instance != INSTANCE_ID:
        raise NotFound("instance.not_found", f"Instance group {instance[:80]!r} is not found")
    devices: dict[str, list[str]] = {}
    for place in services.machine.places():
        for holder in place.holders if place.slot.device else ():
            devices.setdefault(holder.exec_id, []).append(place.slot.device)
    # The same objects, with three more fields.
    found = cast("list[MeasuredApplication]", chosen(choice, services, caller))
    held = {shown["id"]: devices.get(shown["id"], []) for shown in found}
    used = services.machine.use_of(device for several in held.values() for device in several)
    for shown in found:
        uses = [used.get(device, _UNSEEN) for device in held[shown["id"]]]
        shown["gpuslots"] = shown["used_gpu"]
        shown["gpumemused"] = {"total": sum(use.memory for use in uses) // _MIB}
        shown["gpudevutil"] = {"total": round(100 * sum(use.busy for use in uses), 1)}
    return JsonAnswer(found)
