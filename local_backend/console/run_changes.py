"""The actions on a run: stop, delete, run again, edit and run, save its model."""

from __future__ import annotations

import json
from functools import partial
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from dlicmd.contract.argv import split_args
from dlicmd.contract.data_sources import FS, LOCATION, PATHS, TYPE
from dlicmd.contract.secret import MASK
from local_backend.api.bulk import in_turn
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.inference_deploy import assembled
from local_backend.console import places
from local_backend.console.builder_data import data_values
from local_backend.console.builder_form import BuilderForm, data_rows, form_of, sources_of
from local_backend.console.changes import TheForm, texts_of
from local_backend.console.rendering import HEADERS, page
from local_backend.console.route import router as pages
from local_backend.console.run import about
from local_backend.console.session_pages import texts
from local_backend.errors import Invalid
from local_backend.services.access import Caller
from local_backend.services.experiment_plans import PlanProblem
from local_backend.services.load import UPLOAD
from local_backend.services.object_words import in_object_words
from local_backend.services.services import Services
from local_backend.store.execs import ExecRow
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
def ask_again(
    request: Request, services: TheServices, caller: TheCaller, run: str, choose: str = ""
) -> Response:
    """Ask what should differ when the run is submitted again. With `choose`, a user chooses other data: the folder of
    the first data row is open."""
    found = about(request, services, caller, run, _TAB)
    row = found["row"]
    given = {"name": row.app_name, "workers": str(row.num_worker), "arguments": found["words"]}
    form = BuilderForm(data=data_rows(_sources(row)))
    if choose:
        form = form.choosing_data()
    return page(request, "run_again.html", **found, problem="", given=given, **_data(services, caller, row, form))


@router.post(places.RUNS + "/{run}/again/form")
def changed(request: Request, services: TheServices, caller: TheCaller, run: str, form: TheForm) -> Response:
    """Return the data rows after a change of the form."""
    row = services.execs.find(caller, run)
    rows = form_of({name: value for name, value in form.multi_items() if isinstance(value, str)})
    return page(request, "builder_data.html", **_data(services, caller, row, rows.changed_by(texts_of(form, "op"))))


def _data(services: Services, caller: Caller, row: ExecRow, form: BuilderForm) -> dict[str, Any]:
    """Return the values of the template `builder_data.html` for the data rows of the form."""
    return {"form": form, "problems": {}, "form_path": f"{places.RUNS}/{row.id}/again/form", "form_target": "#data",
            "keeps_data": MASK in (row.data_source or ""), **data_values(services, caller, form)}


def _sources(row: ExecRow) -> list[Any]:
    """Return the data sources of a run. One that named only a path has a source with this path."""
    if row.data_source:
        found: list[Any] = json.loads(row.data_source)
        return found
    named = dict(pair.partition("=")[::2] for pair in row.workload.data.datastore_meta.split(","))
    return [{TYPE: FS, LOCATION: {PATHS: named["data_path"]}}] if named.get("data_path") else []


@router.post(places.RUNS + "/{run}/again")
async def again(request: Request, services: TheServices, caller: TheCaller, run: str) -> Response:
    """Submit the run again, with the changes of a form. A form without fields changes nothing."""
    form = await request.form()
    given = texts(form, "name", "workers", "arguments")
    found = await run_in_threadpool(about, request, services, caller, run, _TAB)
    row = found["row"]
    edited = "arguments" in form
    rows = form_of({name: value for name, value in form.multi_items() if isinstance(value, str)})
    try:
        changes = _changes(given, row, found["words"], rows if "data-rows" in form else None) if edited else Changes()
        services.load.users.submission(caller.name)
        made = await in_turn(services.load, UPLOAD, caller.name, partial(
            services.submissions.repeat, caller, run, changes))
    except Invalid as problem:
        if not edited:
            raise
        more = await run_in_threadpool(_data, services, caller, row, rows)
        return page(request, "run_again.html", 400, **found, given=given, problem=in_object_words(str(problem)), **more)
    return _to(f"{places.RUNS}/{made.id}")


def _changes(given: dict[str, str], row: ExecRow, words: str, rows: BuilderForm | None) -> Changes:
    """Return the changes that a form makes; `rows` are its data, if it has any. Raises Invalid (`query.number`,
    `submission.data_source`)."""
    number = given["workers"].strip()
    if not (number.isascii() and number.isdigit() and len(number) <= 9 and int(number) > 0):
        raise Invalid("query.number", f"workers: {number[:40]!r} is not a whole number of at least 1")
    problems: list[PlanProblem] = []
    before = _sources(row)
    sources = before if rows is None else sources_of(rows.data, problems)
    if problems:
        raise Invalid(problems[0].code, problems[0].message)
    return Changes(
        given["name"] if given["name"] != row.app_name else None,
        int(number) if int(number) != row.num_worker else None,
        tuple(split_args(given["arguments"])) if given["arguments"].strip() != words else None,
        None if sources == before or MASK in (row.data_source or "") else sources)


@router.post(places.RUNS + "/{run}/save")
async def save(request: Request, services: TheServices, caller: TheCaller, run: str) -> Response:
    """Save the model of a finished run in the model store, and lead to it."""
    services.base.permit(caller, "model.save")
    given = texts(await request.form(), "name", "whole")
    path = "." if given["whole"] else ""
    row = await assembled(services, caller, partial(
        services.model_sources.save, caller, given["name"].strip(), run, path))
    return _to(f"{places.SAVED}?{urlencode({'now': f'{row.name}:{row.version}'})}")
