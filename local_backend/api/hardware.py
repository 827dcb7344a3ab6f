"""Hardware specifications of the experiment builder."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import EVERY_USER, about
from local_backend.api.experiment_objects import hardware_draft, hardware_object
from local_backend.api.models.experiments import HardwareObject, NewHardware
from local_backend.api.queries import whole
from local_backend.api.route import Route

router = APIRouter(tags=["experiments"], route_class=Route)

_ONE = wire.HARDWARE + "/{name:path}"
Reference = Annotated[str, Path(description="NAME or OWNER/NAME of the hardware specification")]


@router.get(wire.HARDWARE)
@about(EVERY_USER, extension=wire.EXT_EXPERIMENTS)
def list_hardware(services: TheServices, caller: TheCaller) -> JsonAnswer[list[HardwareObject]]:
    """List the predefined hardware specifications, and those that the caller may use, at their newest versions."""
    return JsonAnswer([hardware_object(one) for one in services.hardware.all(caller)])


@router.post(wire.HARDWARE)
@about(EVERY_USER, extension=wire.EXT_EXPERIMENTS, errors={
    400: "body.json body.value hardware.invalid hardware.not_found submission.hardware submission.resources",
    403: "hardware.of_another_user", 404: "hardware.not_found", 409: "hardware.predefined", 507: "quota.team_objects"})
def save_hardware(services: TheServices, caller: TheCaller, body: NewHardware) -> JsonAnswer[HardwareObject]:
    """Save a hardware specification, or a new version of the caller's specification of this name. What equals the
    newest version is not stored again."""
    return JsonAnswer(hardware_object(services.hardware.save(caller, hardware_draft(body))))


@router.get(_ONE + "/versions")
@about(EVERY_USER, extension=wire.EXT_EXPERIMENTS, errors={400: "hardware.not_found", 404: "hardware.not_found"})
def hardware_versions(services: TheServices, caller: TheCaller, name: Reference) -> JsonAnswer[list[HardwareObject]]:
    """List all versions of a hardware specification, newest first."""
    return JsonAnswer([hardware_object(one) for one in services.hardware.versions(caller, name)])


@router.get(_ONE)
@about(EVERY_USER, extension=wire.EXT_EXPERIMENTS, errors={
    400: "hardware.not_found query.number", 404: "hardware.not_found"})
def get_hardware(
    services: TheServices, caller: TheCaller, name: Reference,
    version: Annotated[str | None, Query(description="number of the version; by default the newest one")] = None,
) -> JsonAnswer[HardwareObject]:
    """Return a version of a hardware specification."""
    number = whole(version, wire.VERSION, 1) if version else None
    return JsonAnswer(hardware_object(services.hardware.find(caller, name, number)))


@router.delete(_ONE, status_code=204)
@about("the owner of the hardware specification and administrators", extension=wire.EXT_EXPERIMENTS, errors={
    400: "hardware.not_found", 403: "hardware.of_another_user", 404: "hardware.not_found",
    409: "hardware.in_use hardware.predefined"})
def delete_hardware(services: TheServices, caller: TheCaller, name: Reference) -> Response:
    """Delete a hardware specification with all versions. One that an experiment uses is not deleted."""
    services.hardware.remove(caller, name)
    return Response(status_code=204)
