"""The experiment builder: a form that the server checks while it is filled in."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.datastructures import FormData
from starlette.responses import Response

from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.experiment_objects import draft_body
from local_backend.console import places
from local_backend.console.builder_data import data_values
from local_backend.console.builder_form import (
    AS_JSON,
    FOLDER,
    IN_VOLUME,
    BuilderForm,
    DataRow,
    PartRow,
    form_of,
    form_of_draft,
    read,
    source_of,
)
from local_backend.console.changes import TheForm, done, field, texts_of
from local_backend.console.experiments import experiment_path, number_of
from local_backend.console.rendering import page
from local_backend.console.route import router as pages
from local_backend.errors import BackendError
from local_backend.scheduler.model import CPU
from local_backend.services.access import Caller
from local_backend.services.experiment_plans import ELASTIC, FRAMEWORKS, MULTI, SINGLE, PlanProblem
from local_backend.services.load import PREVIEW
from local_backend.services.services import Services

router = pages()

#: Buttons that save; all others change the form.
_SAVE, _RUN = "save", "run"
#: Where the form sends its changes, and what their answers replace.
PLACE: dict[str, Any] = {"form_path": places.EXPERIMENT_FORM, "form_target": "#builder-part"}
#: Nodes of a model definition → how the form names them.
_NODES = {SINGLE: "single node", MULTI: "multi node", ELASTIC: "elastic nodes"}


@router.get(places.NEW_EXPERIMENT)
def new(  # noqa: PLR0917
    request: Request, services: TheServices, caller: TheCaller, of: str = "", version: str = "",
    volume: Annotated[str | None, Query()] = None, path: str = "", choose: str = "",
) -> Response:
    """Show the form: empty, with the experiment `of`, or with the `path` in a `volume` (empty: in the data folder).
    With `choose`, a user chooses the data: the folder of the first row is open."""
    if of:
        plan = services.experiments.find(caller, of, number_of(version))
        form = form_of_draft(plan.draft)
    else:
        form = BuilderForm(parts=[PartRow(1)] if services.definitions.all(caller) else [])
    if volume is not None:
        row = DataRow(1, IN_VOLUME if volume else FOLDER, path=path, volume=volume)
        form = replace(form, data=[row])
    if choose:
        form = form.choosing_data()
    return page(request, "builder.html", **_values(services, caller, form, asked=False, editing=of))


@router.post(places.EXPERIMENT_FORM)
def changed(request: Request, services: TheServices, caller: TheCaller, form: TheForm) -> Response:
    """Return the form after a change of a field or a row, with the mistakes so far and what would run."""
    filled = _form(form).changed_by(texts_of(form, "op"))
    values = _values(services, caller, filled, asked=False, editing=field(form, "editing"))
    return page(request, "builder_part.html", **values)


@router.post(places.EXPERIMENT_FORM + "/preview")
@bulk(PREVIEW, stream=False)
def preview(request: Request, services: TheServices, caller: TheCaller, form: TheForm) -> Response:
    """Show what a data source contains."""
    key = field(form, "preview")
    row = next((one for one in _form(form).data if str(one.key) == key), DataRow(0, AS_JSON))
    try:
        found = services.data.preview(caller, [source_of(row)])
    except (BackendError, ValueError) as problem:
        found = [{"ok": False, "message": str(problem)}]
    return page(request, "builder_preview.html", found=found[0])


@router.post(places.EXPERIMENTS)
def save(request: Request, services: TheServices, caller: TheCaller, form: TheForm) -> Response:
    """Save the experiment, and run it if the button says so. An experiment with mistakes comes back with them."""
    op, filled = field(form, "op"), _form(form)
    values = _values(services, caller, filled.changed(op), asked=op in (_SAVE, _RUN), editing=field(form, "editing"))
    if op not in (_SAVE, _RUN) or values["problems"]:
        status = 400 if values["problems"] else 200
        return page(request, "builder.html", status, **values)
    plan = services.experiments.save(caller, read(filled).draft)
    if op == _RUN:
        services.load.users.submission(caller.name)
        services.experiments.run(caller, plan.row.label, plan.row.version, field(form, "key")[:64] or None)
    return done(request, experiment_path(plan.row.label))


def _form(form: FormData) -> BuilderForm:
    return form_of({name: value for name, value in form.multi_items() if isinstance(value, str)})


def _values(
    services: Services, caller: Caller, form: BuilderForm, *, asked: bool, editing: str
) -> dict[str, Any]:
    """Return what the form shows. Before a user has `asked` to save, missing values are no mistakes."""
    reading = read(form)
    check = services.experiments.check(caller, reading.draft)
    found = [*reading.problems, *check.problems]
    shown = found if asked else [one for one in found if not _is_unfilled(one, form)]
    problems: dict[str, str] = {}
    for one in shown:
        problems.setdefault(one.field, one.message)
    return {
        "form": form, "editing": editing, "left_out": (), "uploaded": "", "problems": problems,
        "summaries": check.summaries, "ready": not found,
        "node_words": _NODES, "usual_nodes": {name: nodes for nodes, name in FRAMEWORKS.items()},
        "has_gpu": bool(services.hardware.supervisor.machine.kinds - {CPU}), "hardware": services.hardware.all(caller),
        "known": {one.row.label: one for one in services.definitions.all(caller)},
        "run_key": secrets.token_hex(16), "command": json.dumps(draft_body(reading.draft), indent=1),
        **PLACE, **data_values(services, caller, form),
    }


def _is_unfilled(problem: PlanProblem, form: BuilderForm) -> bool:
    """Return whether a mistake is only that a field is still empty."""
    if problem.field in ("name", "definitions"):
        return not (form.name if problem.field == "name" else form.parts)
    where, _, name = problem.field.partition(".")
    number = name.partition(".")[0]
    if where == "data":
        return any(not (row.path or row.json or row.connection) for row in form.data)
    return number.isdecimal() and int(number) < len(form.parts) and not form.parts[int(number)].definition
