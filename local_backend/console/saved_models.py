"""The models of the model store: results of runs, saved under a name, before they are deployed."""

from __future__ import annotations

import shlex
from functools import partial
from typing import Any

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import ImmutableMultiDict
from starlette.responses import Response

from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.inference_deploy import assembled
from local_backend.console import places
from local_backend.console.changes import done, field
from local_backend.console.queries import TheTable
from local_backend.console.rendering import page
from local_backend.console.route import router as pages
from local_backend.console.service_changes import whole
from local_backend.console.services import service_path
from local_backend.services.model_sources import DeploymentWords

router = pages()

#: Saved models of a page.
ROWS = 25


@router.get(places.SAVED)
def saved_page(
    request: Request, services: TheServices, caller: TheCaller, table: TheTable, now: str = ""
) -> Response:
    """Show the saved models, newest versions first. The model `now` (NAME:VERSION), which was just saved, is first."""
    rows = sorted(services.model_sources.saved(caller), key=lambda row: (row.name, -row.version))
    made = next((row for row in rows if f"{row.name}:{row.version}" == now), None)
    if made is not None:
        rows = [made, *(row for row in rows if row is not made)]
    at = (table.number - 1) * ROWS
    return page(request, "saved_models.html", rows=rows[at:at + ROWS], made=made, total=len(rows), number=table.number,
                size=ROWS)


@router.post(places.SAVED + "/promote")
async def to_space(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Put a saved model into a space."""
    form = await request.form()
    version = whole(field(form, "version"), "version")
    await run_in_threadpool(
        services.model_sources.promote, caller, field(form, "name"), field(form, "space"), version)
    return done(request, places.SAVED)


@router.post(places.SAVED + "/delete")
async def unsave(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Remove one version of a saved model."""
    form = await request.form()
    version = whole(field(form, "version"), "version")
    await run_in_threadpool(services.model_sources.remove, caller, field(form, "name"), version)
    return done(request, places.SAVED)


@router.get(places.SAVED + "/deploy")
def deployment(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Show the form of a deployment: what it uses, and what else the files of the model have."""
    query = request.query_params
    name, version = query.get("name", ""), whole(query.get("version", ""), "version")
    words = _words(query)
    command = ["dlim", "model", "deploy", "--saved", f"{name}:{version}"]
    command += ["--kernel", words.kernel] if words.kernel else []
    command += ["--weight", words.weight] if words.weight else []
    for key, value in words.attributes.items():
        command += ["--attribute", f"{key}={value}"]
    command += ["--name", words.name] if words.name and words.name != name else []
    found = services.model_sources.loading(caller, name, version, words)
    return page(request, "saved_model_deploy.html", loading=found, name=name, version=version, words=words,
                command=shlex.join(command))


@router.post(places.SAVED + "/deploy")
async def deploy_saved(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Deploy a saved model, start it if the form says so, and lead to the page of the model."""
    form = await request.form()
    services.base.permit(caller, "model.deploy")
    words = _words(form)
    version = whole(field(form, "version"), "version")
    view = await assembled(services, caller, partial(
        services.model_sources.deploy_saved, caller, field(form, "name"), version, words))
    if field(form, "start"):
        await run_in_threadpool(services.models.start, caller, view.row.name)
    return done(request, service_path(view.row.name))


def _words(given: ImmutableMultiDict[str, Any]) -> DeploymentWords:
    """Return what a form says about a deployment."""
    def text(name: str) -> str:
        value = given.get(name, "")
        return value.strip() if isinstance(value, str) else ""

    attributes = {key: text(key) for key in ("class", "class_args", "allow_pickle") if text(key)}
    return DeploymentWords(kernel=text("kernel") or None, name=text("model") or None, weight=text("weight") or None,
                           attributes=attributes)
