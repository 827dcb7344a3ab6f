"""Experiments: the list, and the page of one experiment with its runs."""

from __future__ import annotations

import secrets
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Request
from starlette.responses import RedirectResponse, Response

from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.changes import TheForm, done, field
from local_backend.console.rendering import HEADERS, page
from local_backend.console.route import router as pages
from local_backend.console.run import first_metrics
from local_backend.errors import Invalid
from local_backend.services.access import Caller
from local_backend.services.comparisons import MOST
from local_backend.services.services import Services

router = pages()

#: A name with its owner. `-` is the owner of other pages, and no user has this name.
ONE = places.EXPERIMENTS + "/{owner}/{name}"
#: The runs that the page of an experiment shows.
_RUNS = 20


def _label(owner: str, name: str) -> str:
    return f"{owner}/{name}"


#: OWNER/NAME of the path.
TheLabel = Annotated[str, Depends(_label)]


def experiment_path(label: str) -> str:
    """Return the path of the page of an experiment, by OWNER/NAME."""
    return f"{places.EXPERIMENTS}/{quote(label, safe='/')}"


@router.get(places.EXPERIMENTS)
def experiments_page(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Show the list of experiments."""
    return page(request, "experiments.html", rows=services.experiments.with_last_runs(caller))


@router.get(places.HOME + "/parts/experiments")
def experiments_part(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Show the table of experiments."""
    return page(request, "experiments_part.html", rows=services.experiments.with_last_runs(caller))


@router.get(places.EXPERIMENTS + "/{name}")
def named(services: TheServices, caller: TheCaller, name: str) -> Response:
    """Lead to the page of the experiment that the name alone means."""
    return RedirectResponse(experiment_path(services.experiments.find(caller, name).row.label), 303, HEADERS)


@router.get(ONE)
def experiment_page(
    request: Request, services: TheServices, caller: TheCaller, label: TheLabel, version: str = ""
) -> Response:
    """Show an experiment with its runs."""
    plan = services.experiments.find(caller, label, number_of(version))
    return page(request, "experiment.html", plan=plan, label=label, draft=plan.draft, run_key=secrets.token_hex(16),
                versions=services.experiments.versions(caller, label), **_runs(services, caller, label))


@router.get(ONE + "/runs")
def runs_part(request: Request, services: TheServices, caller: TheCaller, label: TheLabel) -> Response:
    """Show the runs of an experiment."""
    return page(request, "experiment_runs.html", label=label, **_runs(services, caller, label))


@router.post(ONE + "/run")
def run_again(
    request: Request, services: TheServices, caller: TheCaller, label: TheLabel, form: TheForm
) -> Response:
    """Run an experiment. The key of the page makes a second click begin no second run."""
    services.load.users.submission(caller.name)
    plan, _ = services.experiments.run(
        caller, label, number_of(field(form, "version")), field(form, "key")[:64] or None)
    return done(request, experiment_path(plan.row.label))


@router.post(ONE + "/runs/{run}")
def go_on(request: Request, services: TheServices, caller: TheCaller, label: TheLabel, run: str) -> Response:
    """Submit the model definitions of a run that have no exec yet."""
    services.load.users.submission(caller.name)
    plan, _ = services.experiments.go_on(caller, label, number_of(run) or 0)
    return done(request, experiment_path(plan.row.label))


@router.post(ONE + "/delete")
def delete(request: Request, services: TheServices, caller: TheCaller, label: TheLabel) -> Response:
    """Delete an experiment."""
    services.experiments.remove(caller, label)
    return done(request, places.EXPERIMENTS)


def number_of(text: str) -> int | None:
    """Return a number of a version or run; None for no text. Raises Invalid (`query.number`)."""
    if not text:
        return None
    if not text.isdecimal() or len(text) > 9:
        raise Invalid("query.number", f"'{text[:40]}' is not a number")
    return int(text)


def _runs(services: Services, caller: Caller, label: str) -> dict[str, Any]:
    """Return the last runs, and of each exec its parameters and its first metrics."""
    runs = services.experiments.runs(caller, label, _RUNS)
    rows = [row for run in runs for _, row in run.parts if row is not None]
    views = {view.row.id: view for view in services.execs.views(rows)}
    return {"runs": runs, "views": views, "metrics": {one: first_metrics(views[one].progress) for one in views},
            "compared": [*views][:MOST]}
