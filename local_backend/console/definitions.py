"""Model definitions: the list, the page of one with its code, and the upload of a new one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from urllib.parse import quote

from fastapi import Request
from starlette.responses import Response

from local_backend.api import uploads
from local_backend.api.bulk import bulk, in_turn
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.builder import PLACE
from local_backend.console.builder_form import shared_of
from local_backend.console.changes import done
from local_backend.console.experiments import TheLabel, number_of
from local_backend.console.rendering import page
from local_backend.console.route import router as pages
from local_backend.errors import Invalid
from local_backend.services.definitions import AUTO, DefinitionDraft
from local_backend.services.load import READING, UPLOAD

router = pages()

ONE = places.DEFINITIONS + "/{owner}/{name}"


def definition_path(label: str) -> str:
    """Return the path of the page of a model definition, by OWNER/NAME."""
    return f"{places.DEFINITIONS}/{quote(label, safe='/')}"


@router.get(places.DEFINITIONS)
def definitions_page(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Show the list of model definitions."""
    return page(request, "definitions.html", definitions=services.definitions.all(caller),
                embedded=services.base.settings.embedded)


@router.get(ONE)
@bulk(READING, stream=False)
def definition_page(
    request: Request, services: TheServices, caller: TheCaller, label: TheLabel, version: str = ""
) -> Response:
    """Show a model definition with its versions and its code."""
    found = services.definitions.find(caller, label, number_of(version))
    return page(request, "definition.html", found=found, versions=services.definitions.versions(caller, label),
                files=services.definitions.code(found)[0], embedded=services.base.settings.embedded)


@router.post(places.DEFINITIONS)
async def save(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Save a model definition with the files of the form. The upload of the experiment builder gets itself back, and
    the page then adds the definition to the experiment; any other form leads to the page of the definition."""
    async with uploads.upload_of(request, services, caller, "definition.save", folders=True) as (upload, folder):
        texts = upload.texts
        work = partial(services.definitions.save_sent, caller, _draft(texts), upload, folder / "code")
        made, left_out = await in_turn(services.load, UPLOAD, caller.name, work)
    if "builder" not in texts:
        return done(request, definition_path(made.row.label))
    return page(request, "builder_upload.html", uploaded=made.row.label, left_out=left_out, known=[made], **PLACE)


@router.post(ONE + "/delete")
def delete(request: Request, services: TheServices, caller: TheCaller, label: TheLabel) -> Response:
    """Delete a model definition."""
    services.definitions.remove(caller, label)
    return done(request, places.DEFINITIONS)


def _draft(texts: Mapping[str, str]) -> DefinitionDraft:
    """Return the model definition that the fields of a form describe. Their names begin with `new-`."""
    values = {name: texts.get(f"new-{name}", "").strip() for name in (
        "name", "description", "framework", "command", "conda", "environment", "share", "users")}
    shared = shared_of(values["share"], values["users"]) if values["share"] else None
    return DefinitionDraft(values["name"], values["description"], values["framework"] or AUTO, values["command"],
                           values["conda"] or None, _environment(values["environment"]), shared)


def _environment(text: str) -> dict[str, str]:
    found = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = line.partition("=")
        if not equals:
            sentence = f"environment: '{line[:80]}' has no '='; write one NAME=VALUE per line"
            raise Invalid("definition.invalid", sentence)
        found[name.strip()] = value.strip()
    return found
