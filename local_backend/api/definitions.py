"""Model definitions of the experiment builder."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import ValidationError
from starlette.responses import Response

from dlicmd.contract import strict_json, wire
from local_backend.api import uploads
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk, in_turn
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import EVERY_USER, about
from local_backend.api.experiment_objects import definition_draft, definition_object
from local_backend.api.models.execs import Code
from local_backend.api.models.experiments import DefinitionObject, DefinitionParts, NewDefinition
from local_backend.api.queries import whole
from local_backend.api.route import Route, refused_field
from local_backend.api.submitted_code import code_file
from local_backend.errors import Invalid
from local_backend.services.load import READING, UPLOAD

router = APIRouter(tags=["experiments"], route_class=Route)

#: A name may contain the name of the owner and a slash.
_ONE = wire.DEFINITIONS + "/{name:path}"
Reference = Annotated[str, Path(description="NAME or OWNER/NAME of the model definition")]
Version = Annotated[str | None, Query(description="number of the version; by default the newest one")]
_SAVED = {
    400: "body.json body.value definition.invalid definition.not_found submission.archive submission.body "
         "submission.command submission.environment submission.files submission.framework submission.no_program "
         "submission.never_schedulable submission.option submission.resources submission.too_long definition.code_gone",
    403: "definition.of_another_user", 404: "definition.not_found", 408: "quota.upload_seconds",
    413: "submission.too_large", 429: "load.busy quota.rate quota.uploads", 500: "volume.unreadable",
    507: "quota.bytes quota.team_objects storage.failed storage.full",
}


@router.get(wire.DEFINITIONS)
@about(EVERY_USER, extension=wire.EXT_EXPERIMENTS)
def list_definitions(services: TheServices, caller: TheCaller) -> JsonAnswer[list[DefinitionObject]]:
    """List the model definitions that the caller may use, at their newest versions."""
    return JsonAnswer([definition_object(one) for one in services.definitions.all(caller)])


@router.post(wire.DEFINITIONS)
@about(EVERY_USER, extension=wire.EXT_EXPERIMENTS, errors=_SAVED, body={"multipart/form-data": DefinitionParts})
async def save_definition(request: Request, services: TheServices, caller: TheCaller) -> JsonAnswer[DefinitionObject]:
    """Save a model definition, or a new version of the caller's definition of this name. The part `data` is the
    definition, and the file its code. Without a file, the new version has the code of the newest one. What equals the
    newest version is not stored again."""
    async with uploads.upload_of(request, services, caller, "definition.save") as (upload, folder):
        draft = definition_draft(_read(upload.data or ""))
        save = partial(services.definitions.save, caller, draft, upload, folder / "code")
        return JsonAnswer(definition_object(await in_turn(services.load, UPLOAD, caller.name, save)))


@router.get(_ONE + "/code")
@about(EVERY_USER, extension=wire.EXT_EXPERIMENTS, errors={
    400: "definition.not_found query.number", 404: "definition.not_found"})
@bulk(READING)
def definition_code(
    services: TheServices, caller: TheCaller, name: Reference, version: Version = None
) -> JsonAnswer[Code]:
    """Return the files of a version of a model definition, small ones with their text."""
    found = services.definitions.find(caller, name, _number(version))
    files, complete = services.definitions.code(found)
    return JsonAnswer({"files": [code_file(file) for file in files], "complete": complete})


@router.get(_ONE + "/versions")
@about(EVERY_USER, extension=wire.EXT_EXPERIMENTS, errors={400: "definition.not_found", 404: "definition.not_found"})
def definition_versions(
    services: TheServices, caller: TheCaller, name: Reference
) -> JsonAnswer[list[DefinitionObject]]:
    """List all versions of a model definition, newest first."""
    return JsonAnswer([definition_object(one) for one in services.definitions.versions(caller, name)])


@router.get(_ONE)
@about(EVERY_USER, extension=wire.EXT_EXPERIMENTS, errors={
    400: "definition.not_found query.number", 404: "definition.not_found"})
def get_definition(
    services: TheServices, caller: TheCaller, name: Reference, version: Version = None
) -> JsonAnswer[DefinitionObject]:
    """Return a version of a model definition."""
    return JsonAnswer(definition_object(services.definitions.find(caller, name, _number(version))))


@router.delete(_ONE, status_code=204)
@about("the owner of the model definition and administrators", extension=wire.EXT_EXPERIMENTS, errors={
    400: "definition.not_found", 403: "definition.of_another_user", 404: "definition.not_found",
    409: "definition.in_use"})
def delete_definition(services: TheServices, caller: TheCaller, name: Reference) -> Response:
    """Delete a model definition with all versions. Runs keep their code. A definition that an experiment uses is not
    deleted."""
    services.definitions.remove(caller, name)
    return Response(status_code=204)


def _read(text: str) -> NewDefinition:
    """Return the definition in the part `data`. Raises Invalid."""
    try:
        return NewDefinition.model_validate(strict_json.read(text))
    except ValidationError as problem:
        raise refused_field(NewDefinition, problem.errors()[0]["loc"]) from None
    except ValueError as problem:
        raise Invalid("body.json", f"The part '{wire.PART_DATA}' {problem}") from None


def _number(version: str | None) -> int | None:
    return whole(version, wire.VERSION, 1) if version else None
