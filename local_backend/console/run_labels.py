"""POST /console/runs/{id}/labels: the tags and the note of a run, and whether it is a favorite."""

from __future__ import annotations

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.rendering import HEADERS, page
from local_backend.console.route import router as pages
from local_backend.console.session_pages import texts
from local_backend.services.access import Caller
from local_backend.services.labels import LabelChange
from local_backend.services.services import Services
from local_backend.store.labels import Labels

router = pages()


def labels_of(services: Services, caller: Caller, run: str) -> Labels:
    """Return the labels of a run. Raises NotFound (`exec.not_found`)."""
    return services.labels.of(caller, [services.execs.find(caller, run)]).get(run, Labels())


@router.post(places.RUNS + "/{run}/labels")
async def change(request: Request, services: TheServices, caller: TheCaller, run: str) -> Response:
    """Change the labels, and show them."""
    wanted = texts(await request.form(), "favorite", "tags", "note")
    changed = await run_in_threadpool(_changed, services, caller, run, wanted)
    place = f"{places.RUNS}/{run}"
    if "hx-request" in request.headers:
        return page(request, "run_labels.html", labels=changed, place=place)
    return RedirectResponse(place, 303, HEADERS)


def _changed(services: Services, caller: Caller, run: str, wanted: dict[str, str]) -> Labels:
    """Make the labels those of the form; the button for favorites changes only that. Raises the errors of services."""
    now = labels_of(services, caller, run)
    if wanted["favorite"]:
        return services.labels.change(caller, [run], LabelChange(favorite=not now.favorite))[run]
    tags = wanted["tags"].replace(",", " ").split()
    change = LabelChange(
        add=[tag for tag in tags if tag not in now.tags], remove=[tag for tag in now.tags if tag not in tags],
        note=wanted["note"],
    )
    return services.labels.change(caller, [run], change)[run]
