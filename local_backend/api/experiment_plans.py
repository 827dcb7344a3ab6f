"""Experiments of the experiment builder, and their runs."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk, in_turn
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import EVERY_USER, about
from local_backend.api.experiment_objects import check_object, experiment_draft, experiment_object, run_object
from local_backend.api.models.experiments import ExperimentPlanObject, NewExperiment, PlanCheckObject, RunObject
from local_backend.api.queries import whole
from local_backend.api.route import Route
from local_backend.api.submission_headers import key_of
from local_backend.services.load import READING, UPLOAD

router = APIRouter(tags=["experiments"], route_class=Route)

_ONE = wire.PLANS_OF_EXPERIMENTS + "/{name:path}"
Reference = Annotated[str, Path(description="NAME or OWNER/NAME of the experiment")]
Version = Annotated[str | None, Query(description="number of the version; by default the newest one")]
#: The errors of all calls about one experiment.
_UNKNOWN = {400: "experiment.not_found", 404: "experiment.not_found"}


@router.get(wire.PLANS_OF_EXPERIMENTS)
@about(EVERY_USER, extension=wire.EXT_EXPERIMENTS, errors={429: "load.busy"})
@bulk(READING, stream=False)
def list_plans(services: TheServices, caller: TheCaller) -> JsonAnswer[list[ExperimentPlanObject]]:
    """List the experiments that the caller may use, at their newest versions, each with the last run of the caller."""
    return JsonAnswer([experiment_object(plan, last) for plan, last in services.experiments.with_last_runs(caller)])


@router.post(wire.PLANS_OF_EXPERIMENTS)
@about(EVERY_USER, extension=wire.EXT_EXPERIMENTS, errors={
    400: "body.json body.value data.kind_unusable definition.code_gone definition.not_found experiment.invalid "
         "experiment.not_found hardware.invalid hardware.not_found submission.command submission.data_source "
         "submission.environment submission.framework submission.hardware submission.never_schedulable "
         "submission.no_program submission.option submission.resources submission.too_long",
    403: "experiment.of_another_user", 404: "definition.not_found experiment.not_found hardware.not_found",
    500: "volume.unreadable", 507: "quota.team_objects"})
def save_plan(services: TheServices, caller: TheCaller, body: NewExperiment) -> JsonAnswer[ExperimentPlanObject]:
    """Save an experiment, or a new version of the caller's experiment of this name. The newest versions of its model
    definitions and hardware specifications are fixed, unless the body names versions. What can never run is refused.
    What equals the newest version is not stored again."""
    return JsonAnswer(experiment_object(services.experiments.save(caller, experiment_draft(body))))


@router.post(wire.PLANS_OF_EXPERIMENTS + "/check")
@about(EVERY_USER, extension=wire.EXT_EXPERIMENTS, errors={400: "body.json body.value", 500: "volume.unreadable"})
def check_plan(services: TheServices, caller: TheCaller, body: NewExperiment) -> JsonAnswer[PlanCheckObject]:
    """Return all mistakes in an experiment, and what would run. Nothing is stored."""
    return JsonAnswer(check_object(services.experiments.check(caller, experiment_draft(body))))


@router.post(_ONE + "/run")
@about(EVERY_USER, extension=wire.EXT_EXPERIMENTS, errors={
    400: "experiment.not_found query.number submission.key", 404: "experiment.not_found",
    429: "load.busy quota.rate"}, headers={
    wire.KEY_HEADER: "key of the run; a call with the same key submits only the model definitions without an exec"})
async def run_plan(
    request: Request, services: TheServices, caller: TheCaller, name: Reference, version: Version = None
) -> JsonAnswer[RunObject]:
    """Run an experiment: submit one exec for each model definition. A model definition that the server refuses has
    `code` and `message`; the others run."""
    key, number = key_of(request.headers), whole(version, wire.VERSION, 1) if version else None
    services.load.users.submission(caller.name)
    run = partial(services.experiments.run, caller, name, number, key)
    return JsonAnswer(run_object(*await in_turn(services.load, UPLOAD, caller.name, run)))


@router.get(_ONE + "/runs")
@about(EVERY_USER, extension=wire.EXT_EXPERIMENTS, errors={
    400: "experiment.not_found query.number", 404: "experiment.not_found", 429: "load.busy"})
@bulk(READING, stream=False)
def list_plan_runs(
    services: TheServices, caller: TheCaller, name: Reference,
    limit: Annotated[str, Query(description="maximum number of runs")] = "20",
) -> JsonAnswer[list[RunObject]]:
    """List the last runs of an experiment that the caller began, newest first. Administrators get those of all
    users."""
    plan = services.experiments.find(caller, name)
    found = services.experiments.runs(caller, name, whole(limit, "limit", 1, 4))
    return JsonAnswer([run_object(plan, one) for one in found])


@router.post(_ONE + "/runs/{run}")
@about("the user who began the run", extension=wire.EXT_EXPERIMENTS, errors={
    400: "experiment.not_found query.number", 404: "experiment.not_found experiment.run_not_found",
    409: "experiment.complete", 429: "load.busy quota.rate"})
async def go_on(
    services: TheServices, caller: TheCaller, name: Reference,
    run: Annotated[str, Path(description="number of the run")],
) -> JsonAnswer[RunObject]:
    """Submit the model definitions of a run that have no exec yet, because the server refused them earlier."""
    services.load.users.submission(caller.name)
    work = partial(services.experiments.go_on, caller, name, whole(run, "run", 1))
    return JsonAnswer(run_object(*await in_turn(services.load, UPLOAD, caller.name, work)))


@router.get(_ONE + "/versions")
@about(EVERY_USER, extension=wire.EXT_EXPERIMENTS, errors=_UNKNOWN)
def plan_versions(
    services: TheServices, caller: TheCaller, name: Reference
) -> JsonAnswer[list[ExperimentPlanObject]]:
    """List all versions of an experiment, newest first."""
    return JsonAnswer([experiment_object(one) for one in services.experiments.versions(caller, name)])


@router.get(_ONE)
@about(EVERY_USER, extension=wire.EXT_EXPERIMENTS, errors={
    400: "experiment.not_found query.number", 404: "experiment.not_found"})
def get_plan(
    services: TheServices, caller: TheCaller, name: Reference, version: Version = None
) -> JsonAnswer[ExperimentPlanObject]:
    """Return a version of an experiment, with the last run of the caller."""
    found = services.experiments.find(caller, name, whole(version, wire.VERSION, 1) if version else None)
    last = next(iter(services.experiments.runs(caller, found.row.label, 1)), None)
    return JsonAnswer(experiment_object(found, last))


@router.delete(_ONE, status_code=204)
@about("the owner of the experiment and administrators", extension=wire.EXT_EXPERIMENTS, errors={
    400: "experiment.not_found", 403: "experiment.of_another_user", 404: "experiment.not_found"})
def delete_plan(services: TheServices, caller: TheCaller, name: Reference) -> Response:
    """Delete an experiment with all versions. The execs of its runs stay."""
    services.experiments.remove(caller, name)
    return Response(status_code=204)
