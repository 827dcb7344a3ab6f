"""The models of the model store: results of runs, saved under a name, before they are deployed."""

from __future__ import annotations

import shlex
from functools import partial

from fastapi import Request
from starlette.concurrency import run_in_threadpool
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
from local_backend.services.model_sources import READY_MADE, DeploymentWords

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
    shown = [(row, f"dlim model deploy --saved {shlex.quote(row.name)}:{row.version}") for row in rows[at:at + ROWS]]
    return page(request, "saved_models.html", rows=shown, made=made, total=len(rows), number=table.number, size=ROWS,
                kernels=sorted(READY_MADE))


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


@router.post(places.SAVED + "/deploy")
async def deploy_saved(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Deploy a saved model, start it if the form says so, and lead to the page of the model."""
    form = await request.form()
    services.base.permit(caller, "model.deploy")
    words = DeploymentWords(kernel=field(form, "kernel") or None, name=field(form, "model") or None,
                            weight=field(form, "weight") or None)
    version = whole(field(form, "version"), "version")
    view = await assembled(services, caller, partial(
        services.model_sources.deploy_saved, caller, field(form, "name"), version, words))
    if field(form, "start"):
        await run_in_threadpool(services.models.start, caller, view.row.name)
    return done(request, service_path(view.row.name))
