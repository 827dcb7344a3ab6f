"""The calls of clients of WMLA 1.2 to Conductor: the applications of an instance group, with the GPUs that they use
now, and the logs of their processes."""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter
from starlette.responses import Response

from local_backend.api.accept import TEXT
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import OWN_EXECS, about
from local_backend.api.logs import Log, as_text, of_driver, of_executor
from local_backend.api.models.applications import MeasuredApplication
from local_backend.api.objects import INSTANCE_ID
from local_backend.api.route import Route
from local_backend.api.scheduler import CHOICE_ERRORS, Choice, chosen
from local_backend.errors import NotFound
from local_backend.runtime.utilisation import Use
from local_backend.services.load import READING

router = APIRouter(tags=["scheduler"], route_class=Route)

_APPLICATIONS = "/platform/rest/conductor/v1/instances/{instance}/applications"
_MIB = 1 << 20
_UNSEEN = Use(0.0, 0)


@router.get(_APPLICATIONS)
@about(OWN_EXECS, errors={**CHOICE_ERRORS, 400: f"{CHOICE_ERRORS[400]} instance.not_found"})
def applications(
    services: TheServices, caller: TheCaller, instance: str, choice: Choice
) -> JsonAnswer[list[MeasuredApplication]]:
    """List applications, selected and shown as in `/scheduler/applications`. Each also has its number of GPU slots
    (`gpuslots`), the memory in use on these GPUs in MiB (`gpumemused.total`), and the sum of their utilization in
    percent (`gpudevutil.total`). `instance` is the `sigId` of an exec."""
    _check(instance)
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


@router.get(_APPLICATIONS + "/{app_id}/logs/{log}/download")
@about(OWN_EXECS, errors={400: "exec.no_executor exec.not_found instance.not_found query.log"}, media=TEXT)
@bulk(READING)
def driver_log(services: TheServices, caller: TheCaller, instance: str, app_id: str, log: Log) -> Response:
    """Return a log of the driver as text: `stdout`, `stderr` or `launcherlog`. An exec that is not elastic has no
    driver: the answer is the log of its first executor, because lists name a driver for every exec."""
    _check(instance)
    row = services.execs.find(caller, app_id)
    return as_text(services, of_driver(services, row, log) if row.elastic else of_executor(services, row, "1", log))


@router.get(_APPLICATIONS + "/{app_id}/{number}/logs/{log}/download")
@about(OWN_EXECS, errors={
    400: "exec.no_executor exec.not_found instance.not_found query.log query.number",
}, media=TEXT)
@bulk(READING)
def executor_log(  # noqa: PLR0917
    services: TheServices, caller: TheCaller, instance: str, app_id: str, number: str, log: Log
) -> Response:
    """Return a log of executor `number` (the `id` in `executors`) as text. Lines of programs that are not elastic start
    with the number of their task."""
    _check(instance)
    return as_text(services, of_executor(services, services.execs.find(caller, app_id), number, log))


def _check(instance: str) -> None:
    """Raise NotFound (`instance.not_found`) for any other instance group than the only one."""
    if instance != INSTANCE_ID:
        raise NotFound("instance.not_found", f"Instance group {instance[:80]!r} is not found")
