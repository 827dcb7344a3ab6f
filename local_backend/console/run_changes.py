"""The actions on a run: stop, delete, run again, edit and run, save its model."""

from __future__ import annotations

from functools import partial

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from dlicmd.contract.argv import split_args
from local_backend.api.bulk import in_turn
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.inference_deploy import assembled
from local_backend.console import places
from local_backend.console.rendering import HEADERS, page
from local_backend.console.route import router as pages
from local_backend.console.run import about
from local_backend.console.session_pages import texts
from local_backend.errors import Invalid
from local_backend.services.load import UPLOAD
from local_backend.submit.again import Changes

router = pages()
_TAB = "/again"


def _to(path: str) -> Response:
    return RedirectResponse(path, 303, HEADERS)


@router.post(places.RUNS + "/{run}/stop")
def stop(services: TheServices, caller: TheCaller, run: str) -> Response:
    """Stop a run."""
    services.execs.stop(caller, run)
    return _to(f"{places.RUNS}/{run}")


@router.post(places.RUNS + "/{run}/delete")
def delete(services: TheServices, caller: TheCaller, run: str) -> Response:
    """Delete a run and its files."""
    services.execs.delete(caller, run)
    return _to(places.RUNS)


@router.get(places.RUNS + "/{run}/again")
def ask_again(request: Request, services: TheServices, caller: TheCaller, run: str) -> Response:
    """Ask what should differ when the run is submitted again."""
    found = about(request, services, caller, run, _TAB)
    row = found["row"]
    return page(request, "run_again.html", **found, problem="",
                given={"name": row.app_name, "workers": str(row.num_worker), "arguments": found["words"]})


@router.post(places.RUNS + "/{run}/again")
async def again(request: Request, services: TheServices, caller: TheCaller, run: str) -> Response:
    """Submit the run again, with the changes of a form. A form without fields changes nothing."""
    form = await request.form()
    given = texts(form, "name", "workers", "arguments")
    found = await run_in_threadpool(about, request, services, caller, run, _TAB)
    row = found["row"]
    edited = "arguments" in form
    try:
        changes = _changes(given, row.app_name, row.num_worker, found["words"]) if edited else Changes()
        services.load.users.submission(caller.name)
        made = await in_turn(services.load, UPLOAD, caller.name, partial(
            services.submissions.repeat, caller, run, changes))
    except Invalid as problem:
        if not edited:
            raise
        return page(request, "run_again.html", 400, **found, given=given, problem=str(problem))
    return _to(f"{places.RUNS}/{made.id}")


def _changes(given: dict[str, str], name: str, workers: int, words: str) -> Changes:
    """Return the changes that a form makes. Raises Invalid (`query.number`)."""
    number = given["workers"].strip()
    if not (number.isascii() and number.isdigit() and len(number) <= 9 and int(number) > 0):
        raise Invalid("query.number", f"workers: {number[:40]!r} is not a whole number of at least 1")
    return Changes(
        given["name"] if given["name"] != name else None, int(number) if int(number) != workers else None,
        tuple(split_args(given["arguments"])) if given["arguments"].strip() != words else None)


@router.post(places.RUNS + "/{run}/save")
async def save(request: Request, services: TheServices, caller: TheCaller, run: str) -> Response:
    """Save the model of a finished run in the model store."""
    services.base.permit(caller, "model.save")
    name = texts(await request.form(), "name")["name"].strip()
    await assembled(services, caller, partial(services.model_sources.save, caller, name, run, ""))
    return _to(f"{places.RUNS}/{run}/lineage")
