"""Execs: submit, list, show, stop, delete."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Literal, cast

from fastapi import APIRouter, Query, Request
from pydantic import WithJsonSchema
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend import logs
from local_backend.api import uploads
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import in_turn
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import EVERY_USER, OWN_EXECS, about
from local_backend.api.inference_deploy import ADDED, assembled, words_of
from local_backend.api.inference_models import object_of, shown
from local_backend.api.models.execs import Exec, Submission, SubmissionForm, SubmissionParts, Submitted, Why
from local_backend.api.models.inference import ModelObject, SavedModelDeployment
from local_backend.api.objects import saying, why
from local_backend.api.queries import whole
from local_backend.api.route import Route
from local_backend.api.showing import Endings, show, show_json
from local_backend.api.submission_headers import is_strict, key_of, wants_details
from local_backend.errors import BackendError, Invalid, TooSlow
from local_backend.run_values import METRIC, ValueName, named
from local_backend.services.access import Caller
from local_backend.services.execs import ExecSelection, states_named
from local_backend.services.load import UPLOAD
from local_backend.services.services import Services
from local_backend.services.submissions import SubmissionRequest as Asked

router = APIRouter(tags=["execs"], route_class=Route)

_SORTABLE: Mapping[str, str | ValueName] = {
    wire.ID: "number", wire.STATE: "state", wire.FRAMEWORK: "framework", wire.APP_NAME: "app_name",
    wire.CREATE_TIME: "number", wire.START_TIME: "start_time", wire.END_TIME: "end_time", wire.CREATOR: "creator",
    wire.NUM_WORKER: "num_worker", wire.DURATION: "duration", wire.TAGS: "tag", wire.FAVORITE: "favorite",
    **{name: ValueName(METRIC, name) for name in (wire.LOSS, wire.ACCURACY)},
}
#: The body of a submission. The route itself reads the body as it arrives.
_BODY = {
    "multipart/form-data": SubmissionParts, "application/x-www-form-urlencoded": SubmissionForm,
    "application/json": Submission,
}
_REFUSED = {
    400: "data.kind_unusable query.value submission.archive submission.body submission.command submission.data_part "
         "submission.data_source submission.environment submission.files submission.framework submission.hardware "
         "submission.key submission.key_deleted submission.metrics submission.never_schedulable submission.no_program "
         "submission.option submission.resources submission.too_long",
    403: "auth.admin_only", 409: "submission.key_in_use", 413: "submission.too_large", 422: "submission.key_mismatch",
    500: "volume.unreadable",
    408: "quota.upload_seconds", 429: "load.busy quota.rate quota.uploads",
    507: "quota.active quota.bytes quota.execs storage.failed storage.full storage.keys storage.unknown",
}
#: The errors of a submission that need no file.
_CHECKED = {
    400: "data.kind_unusable query.value submission.archive submission.body submission.command submission.data_part "
         "submission.data_source submission.environment submission.framework submission.hardware submission.metrics "
         "submission.never_schedulable submission.option submission.resources submission.too_long",
    403: "auth.admin_only", 413: "submission.too_large", 500: "volume.unreadable",
    408: "quota.upload_seconds", 429: "load.busy quota.uploads", 507: "storage.failed storage.full storage.keys",
}
_DETAILS = {
    wire.PREFER: f"`{wire.DETAILS}`: with `{wire.ARGUMENTS}`, `{wire.LAST_METRICS}`, `{wire.ALL_METRICS}`, "
                 f"`{wire.PARAMETERS}` and labels; without it, all values but `dataSource` are scalars",
}
#: A number, or nothing.
_NUMBER = WithJsonSchema({"type": "string", "pattern": "^[0-9]{0,10}$"})


def _endings(request: Request) -> Endings:
    endings: Endings = request.app.state.endings
    return endings


@router.get(wire.EXECS)
@about(OWN_EXECS, errors={400: "query.find query.number query.sort query.state query.value"}, headers=_DETAILS)
def list_execs(
    *,
    request: Request,
    services: TheServices,
    caller: TheCaller,
    limit: Annotated[str | None, _NUMBER] = None,
    state: str | None = None,
    sort_by: str | None = None,
    everyone: Annotated[bool, Query(alias=wire.ALL)] = False,
    search: Annotated[str | None, Query(description="name of a search: only its experiments are listed")] = None,
    find: Annotated[str, Query(description="words that find execs: `state:running tag:best lr=0.1 f1>0.9`")] = "",
    offset: Annotated[str | None, Query(
        json_schema_extra={"pattern": "^[0-9]{0,10}$"}, description="number of execs to leave out")] = None,
    kind: Annotated[Literal["training", "service"], Query(
        description="`service`: the execs that run the kernels of models, instead of trainings")] = "training",
) -> JsonAnswer[list[Exec]]:
    """List the caller's execs, oldest first. Administrators get the execs of all users with `all`. `state` is one
    state or a comma-separated list. `sort_by` is `field[:asc|desc]`. Instead of a field, it takes the name of a metric
    or a parameter: `metric.f1`, `param.lr`, or `f1` for the metric if a listed exec has it, otherwise for the
    parameter. Execs without the value come last. `limit` is the maximum number of execs. The header `X-Total-Count` of
    the answer has their number without the limit."""
    wanted, most = states_named(state), whole(limit, "limit", 0) if limit else None
    column, descending = _order(sort_by)
    begin = whole(offset, wire.OFFSET, 0) if offset else 0
    selection = ExecSelection(wanted, column, descending, most, everyone, search, kind, find, begin)
    rows, total = services.execs.list(caller, selection)
    labels = services.labels.of(caller, rows) if wants_details(request.headers) else None
    found = b",".join(show_json(_endings(request), services.execs.views(rows), str(request.base_url), labels))
    return JsonAnswer(b"[" + found + b"]", headers={wire.TOTAL: str(total)})


@router.post(wire.EXECS)
@about(EVERY_USER, errors=_REFUSED, body=_BODY, headers={
    wire.KEY_HEADER: "key of the submission; send the same key again when the submission is repeated",
    wire.PREFER: f"`{wire.STRICT}`: refuse what the server cannot run; without it, the exec is created in state ERROR",
})
async def submit(
    *,
    request: Request,
    services: TheServices,
    caller: TheCaller,
    args: str | None = None,
    sig_name: str | None = Query(
        None, alias="sigName", max_length=200, description="returned in the answer, otherwise ignored"
    ),
) -> JsonAnswer[Submitted]:
    """Submit an exec. `args` is the command line; without it, the `args` of the `data` part count. The body contains
    the files and `data`."""
    folder = services.submissions.folder()
    try:
        key = _key(request, services, caller)
        services.load.users.submission(caller.name)
        with services.load.users.upload(caller.name):
            upload = await uploads.received(request, services, caller, folder, keyed=key is not None)
        asked = Asked(args, upload, sig_name, key, is_strict(request.headers))
        made = await in_turn(services.load, UPLOAD, caller.name, partial(services.submissions.submit, caller, asked))
    except TooSlow:
        raise
    except BackendError:
        await uploads.drain(request.stream())
        raise
    except ClientDisconnect:
        return JsonAnswer(b"", 400)
    finally:
        await run_in_threadpool(shutil.rmtree, folder, ignore_errors=True)
    logs.about(exec=made.row.id)
    base_url = str(request.base_url)
    shown = cast("Submitted", await run_in_threadpool(show, services.execs.view(made.row), base_url))
    if made.warnings:
        shown["warning"] = "; ".join(made.warnings)
    return JsonAnswer(shown)


@router.post(wire.CHECK, status_code=204)
@about(EVERY_USER, extension=wire.EXT_CHECK, errors=_CHECKED,
       body={"application/x-www-form-urlencoded": SubmissionForm})
async def check(
    request: Request, services: TheServices, caller: TheCaller, args: str | None = None,
) -> Response:
    """Refuse what a submission with `Prefer: handling=strict` refuses, except for checks of files. Nothing is
    stored."""
    folder = services.submissions.folder()
    try:
        with services.load.users.upload(caller.name):
            upload = await uploads.received(request, services, caller, folder, keyed=True)
        await in_turn(
            services.load, UPLOAD, caller.name, partial(services.submissions.check, caller, args, upload.data))
    finally:
        await run_in_threadpool(shutil.rmtree, folder, ignore_errors=True)
    return Response(status_code=204)


@router.delete(wire.EXECS, status_code=204)
@about(f"{EVERY_USER}, for their own execs")
def delete_all(services: TheServices, caller: TheCaller) -> Response:
    """Delete all execs of the caller, not those of other users that an administrator sees. Running execs are stopped
    first."""
    services.execs.delete_all(caller)
    return Response(status_code=204)


@router.get(wire.EXECS + "/{exec_id}/why")
@about(OWN_EXECS, extension=wire.EXT_WHY, errors={400: "exec.not_found"})
def why_it_waits(services: TheServices, caller: TheCaller, exec_id: str) -> JsonAnswer[Why]:
    """Return what a pending exec needs, which execs hold slots, and what the user can do."""
    pending = services.execs.pending(caller, exec_id)
    shown = why(pending.view, pending.rivals)
    said = saying(pending.view.row, pending.view.progress)
    if said and "message" not in shown:
        shown["message"] = said
    return JsonAnswer(shown)


@router.get(wire.EXECS + "/{exec_id}")
@about(OWN_EXECS, errors={400: "exec.not_found"}, headers=_DETAILS)
def get(request: Request, services: TheServices, caller: TheCaller, exec_id: str) -> JsonAnswer[Exec]:
    """Return one exec."""
    row = services.execs.find(caller, exec_id)
    labels = services.labels.of(caller, [row]) if wants_details(request.headers) else None
    (found,) = show_json(_endings(request), services.execs.views([row]), str(request.base_url), labels)
    return JsonAnswer(found)


@router.delete(wire.EXECS + "/{exec_id}", status_code=204)
@about(OWN_EXECS, errors={400: "exec.not_found"})
def delete(services: TheServices, caller: TheCaller, exec_id: str) -> Response:
    """Delete an exec and its files. A running exec is stopped first. The exec disappears from every list
    immediately."""
    services.execs.delete(caller, exec_id)
    return Response(status_code=204)


@router.post(wire.EXECS + "/{exec_id}/stop", status_code=204)
@about(OWN_EXECS, errors={400: "exec.not_found exec.ended"})
def stop(services: TheServices, caller: TheCaller, exec_id: str) -> Response:
    """Stop an exec."""
    services.execs.stop(caller, exec_id)
    return Response(status_code=204)


@router.post(wire.EXECS + "/{exec_id}/deploy")
@about(OWN_EXECS, body=SavedModelDeployment, errors={
    **ADDED, 400: f"{ADDED[400]} exec.not_found", 404: "runtime.not_found", 409: "exec.not_finished"})
async def deploy(request: Request, services: TheServices, caller: TheCaller, exec_id: str) -> JsonAnswer[ModelObject]:
    """Deploy the result of a finished exec as a model; if the model exists, as its next revision. Files of kernel and
    weights are looked for in the result, then in the submitted code."""
    words = words_of(await object_of(request))
    view = await assembled(services, caller, partial(services.model_sources.deploy_exec, caller, exec_id, words))
    return JsonAnswer(shown(request, services, view))


def _key(request: Request, services: Services, caller: Caller) -> str | None:
    """Return the idempotency key of a submission, None without one. Raises Invalid, and records it."""
    try:
        return key_of(request.headers)
    except Invalid as problem:
        services.submissions.refused(caller, problem)
        raise


def _order(sort_by: str | None) -> tuple[str | ValueName, bool]:
    """Return what a list is sorted by, and whether the order is descending."""
    text = sort_by or wire.ID
    name, _, direction = text.rpartition(":")
    if direction not in {"", "asc", "desc"} or not name:
        name, direction = text, ""
    return _SORTABLE.get(name) or named(name), direction == "desc"
