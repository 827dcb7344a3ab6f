"""Models that answer requests: WMLA's calls below /dlim/v1, and calls about revisions, traffic, logs and sharing."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dlicmd.contract import dlim, wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import about
from local_backend.api.errors import BodyRefused
from local_backend.api.guard import host_name
from local_backend.api.inference_objects import (
    instance_object,
    load_object,
    model_object,
    revision_object,
    stream_uri,
)
from local_backend.api.models.inference import (
    SHOWN,
    InstanceObject,
    LoadObject,
    ModelExtensions,
    ModelObject,
    ModelWhyObject,
    ReadmeObject,
    RevisionObject,
    StreamingObject,
)
from local_backend.api.queries import whole
from local_backend.api.route import Route
from local_backend.errors import Invalid
from local_backend.services.load import READING
from local_backend.services.model_views import ModelView
from local_backend.services.services import Services

router = APIRouter(tags=["inference"], route_class=Route)

SEES = "every user, for their own models and those shared with them; administrators, for all models"
OWNS = "the user who deployed the model, and administrators"
NOT_FOUND = {404: "model.not_found"}
NOT_OWN = {403: "model.of_another_user", 404: "model.not_found"}
_ONE = dlim.MODELS + "/{m}"


def shown(request: Request, services: Services, view: ModelView) -> ModelObject:
    """Return a model as the answer to a request shows it."""
    host = host_name(request.headers.get("host", "")) or ""
    return model_object(view, host, services.base.settings.paths.bundle(view.main.bundle))


async def json_of(request: Request) -> Any:
    """Return the JSON of a body, None without a body. Raises BodyRefused."""
    return await request.json() if await request.body() else None


async def object_of(request: Request) -> dict[str, Any]:
    """Return the JSON object of a body; empty without a body. Raises BodyRefused."""
    found = await json_of(request)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BodyRefused(Invalid("body.value", "The body must be a JSON object"))
    return found


@router.get(dlim.MODELS)
@about(SEES)
def list_models(request: Request, services: TheServices, caller: TheCaller) -> JsonAnswer[list[ModelObject]]:
    """List the models that the caller sees, by name."""
    return JsonAnswer([shown(request, services, view) for view in services.models.list(caller)])


@router.get(dlim.EXTENSION)
@about(SEES)
def extensions(request: Request, services: TheServices, caller: TheCaller) -> JsonAnswer[ModelExtensions]:
    """List the models with their resource plans."""
    views = services.models.list(caller)
    return JsonAnswer({
        "model_list": [shown(request, services, view) for view in views],
        "extension_list": [{"name": view.row.name, "resource_plan": view.profile.resource_plan.lstrip("/")}
                           for view in views],
    })


@router.get(_ONE)
@about(SEES, errors=NOT_FOUND)
def get(request: Request, services: TheServices, caller: TheCaller, m: str) -> JsonAnswer[ModelObject]:
    """Return one model with its revisions."""
    return JsonAnswer(shown(request, services, services.models.view(caller, m)))


@router.put(_ONE)
@about(OWNS, errors={400: "body.json body.value model.description model.files", **NOT_OWN, 409: "model.started"},
       body=dict[str, Any])
async def change(request: Request, services: TheServices, caller: TheCaller, m: str) -> JsonAnswer[ModelObject]:
    """Change `tag`, `attributes`, `mk_environments` or `framework` of a stopped model. Other keys are ignored."""
    view = await run_in_threadpool(services.models.change_description, caller, m, await object_of(request))
    return JsonAnswer(shown(request, services, view))


@router.delete(_ONE)
@about(OWNS, errors={**NOT_OWN, 409: "model.started"}, media="")
def undeploy(services: TheServices, caller: TheCaller, m: str) -> Response:
    """Remove a stopped model with all its revisions and logs."""
    services.models.undeploy(caller, m)
    return Response(status_code=200)


@router.put(f"{_ONE}/{dlim.START}")
@about(OWNS, errors={**NOT_OWN, 507: "quota.models"}, media="")
def start(services: TheServices, caller: TheCaller, m: str) -> Response:
    """Start a model: it gets kernels, and answers requests. A failed revision is tried again."""
    services.models.start(caller, m)
    return Response(status_code=200)


@router.put(f"{_ONE}/{dlim.STOP}")
@about(OWNS, errors=NOT_OWN, media="")
def stop(services: TheServices, caller: TheCaller, m: str) -> Response:
    """Stop a model when it has answered the requests that it has."""
    services.models.stop(caller, m)
    return Response(status_code=200)


@router.get(f"{_ONE}/{dlim.INSTANCE}")
@about(SEES, errors=NOT_FOUND)
def instance(services: TheServices, caller: TheCaller, m: str) -> JsonAnswer[InstanceObject]:
    """Return what a model does now, with its kernels."""
    return JsonAnswer(instance_object(services.models.view(caller, m)))


@router.get(f"{_ONE}/{dlim.README}")
@about(SEES, errors=NOT_FOUND)
def readme(services: TheServices, caller: TheCaller, m: str) -> JsonAnswer[ReadmeObject]:
    """Return the README of a model."""
    return JsonAnswer({"readme": services.models.readme(caller, m)})


@router.put(f"{_ONE}/{dlim.README}")
@about(OWNS, errors={400: "body.json body.value model.readme", **NOT_OWN}, body=ReadmeObject)
async def change_readme(
    request: Request, services: TheServices, caller: TheCaller, m: str
) -> JsonAnswer[ReadmeObject]:
    """Replace the README of a model."""
    text = (await object_of(request)).get("readme")
    return JsonAnswer({"readme": await run_in_threadpool(services.models.change_readme, caller, m, text)})


@router.get(f"{_ONE}/{dlim.STREAMING}")
@about(SEES, errors=NOT_FOUND)
def streaming(request: Request, services: TheServices, caller: TheCaller, m: str) -> JsonAnswer[StreamingObject]:
    """Return where a model takes requests by gRPC."""
    address = services.models.view(caller, m).address
    host = host_name(request.headers.get("host", "")) or ""
    return JsonAnswer({"streaming_service_uri": "" if address is None else stream_uri(address, host)})


@router.get(f"{_ONE}/{dlim.PROFILE}")
@about(SEES, errors=NOT_FOUND)
def profile(services: TheServices, caller: TheCaller, m: str) -> JsonAnswer[dict[str, Any]]:
    """Return the profile of a model: how many kernels it may have, what each one gets, and how requests are
    bounded."""
    return JsonAnswer(services.models.profile(caller, m))


@router.put(f"{_ONE}/{dlim.PROFILE}")
@about(OWNS, errors={400: "body.json model.profile", **NOT_OWN, 409: "model.started"}, body=dict[str, Any])
async def change_profile(
    request: Request, services: TheServices, caller: TheCaller, m: str
) -> JsonAnswer[dict[str, Any]]:
    """Change the profile of a model. Keys that the body leaves out stay. What kernels get at their start changes only
    while the model is stopped; everything else takes effect immediately."""
    given = await json_of(request)
    return JsonAnswer(await run_in_threadpool(services.models.change_profile, caller, m, given))


# --- beyond the contract


@router.get(f"{_ONE}/{dlim.REVISIONS}")
@about(SEES, extension=wire.EXT_MODELS, errors=NOT_FOUND)
def revisions(services: TheServices, caller: TheCaller, m: str) -> JsonAnswer[list[RevisionObject]]:
    """List the revisions of a model, oldest first."""
    view = services.models.view(caller, m)
    return JsonAnswer([revision_object(view, one) for one in view.revisions])


@router.put(f"{_ONE}/{dlim.TRAFFIC}")
@about(OWNS, extension=wire.EXT_MODELS, errors={400: "body.json body.value model.traffic", **NOT_OWN},
       body=dict[str, int])
async def traffic(request: Request, services: TheServices, caller: TheCaller, m: str) -> JsonAnswer[ModelObject]:
    """Split the requests of a model among revisions by weight: `{"3": 90, "4": 10}`. A revision without kernels gets
    requests when its kernels are ready; until then, the others get all."""
    view = await run_in_threadpool(services.models.set_traffic, caller, m, await object_of(request))
    return JsonAnswer(shown(request, services, view))


@router.put(f"{_ONE}/{dlim.PROMOTE}")
@about(OWNS, extension=wire.EXT_MODELS, errors={
    400: "query.number", 403: "model.of_another_user", 404: "model.no_revision model.not_found"})
def promote(
    request: Request, services: TheServices, caller: TheCaller, m: str,
    revision: Annotated[str | None, Query(description="number of the revision, by default the newest one")] = None,
) -> JsonAnswer[ModelObject]:
    """Give all requests to a revision, when its kernels are ready. The others then drain."""
    number = whole(revision, "revision", 1) if revision else None
    return JsonAnswer(shown(request, services, services.models.promote(caller, m, number)))


@router.put(f"{_ONE}/{dlim.ROLLBACK}")
@about(OWNS, extension=wire.EXT_MODELS, errors={**NOT_OWN, 409: "model.no_earlier_revision"})
def rollback(request: Request, services: TheServices, caller: TheCaller, m: str) -> JsonAnswer[ModelObject]:
    """Give all requests to the revision before. A revision that is to take over does not."""
    return JsonAnswer(shown(request, services, services.models.rollback(caller, m)))


@router.put(f"{_ONE}/{dlim.SHARED}", status_code=204)
@about(OWNS, extension=wire.EXT_MODELS, errors={400: "body.json model.shared", **NOT_OWN}, body=list[str] | bool)
async def share(request: Request, services: TheServices, caller: TheCaller, m: str) -> Response:
    """Share a model: a list of users, or `true` for all users. They see the model and send requests."""
    given = await json_of(request)
    await run_in_threadpool(services.models.share, caller, m, given)
    return Response(status_code=204)


@router.get(f"{_ONE}/{dlim.LOGS}")
@about(OWNS, extension=wire.EXT_MODELS, errors={
    400: "query.log query.number", 403: "model.of_another_user", 404: "model.no_revision model.not_found",
    507: "exec.result_failed"}, media="text/plain", answer_headers={
    dlim.NEXT_OFFSET: "offset of the next part; send it as `from`"})
@bulk(READING, stream=False)
def logs(  # noqa: PLR0917
    services: TheServices, caller: TheCaller, m: str,
    kernel: Annotated[str | None, Query(description="number of a kernel, by default the newest one")] = None,
    stream: Annotated[str, Query(description="`stdout`, `stderr` or `launcherlog`")] = dlim.STDERR,
    start: Annotated[str, Query(alias=dlim.FROM, description=f"`{dlim.NEXT_OFFSET}` of the answer before")] = "0",
    revision: Annotated[str | None, Query(description="number of a revision")] = None,
) -> Response:
    """Return a part of what a kernel has written. Without `kernel`, later parts continue with kernels that have started
    since."""
    piece = services.model_logs.read(
        caller, m, stream, whole(kernel, "kernel", 1) if kernel else None, whole(start, dlim.FROM, 0, 18),
        whole(revision, "revision", 1) if revision else None)
    return Response(piece.content, headers={dlim.NEXT_OFFSET: str(piece.end)}, media_type="text/plain; charset=utf-8")


@router.get(f"{_ONE}/{dlim.LOAD}")
@about(SEES, extension=wire.EXT_MODELS, errors=NOT_FOUND)
def load(services: TheServices, caller: TheCaller, m: str) -> JsonAnswer[list[LoadObject]]:
    """Return what a model did in the last 15 minutes, in steps of 5 seconds, oldest first. Empty if nothing is known,
    because the model or the server has just started."""
    return JsonAnswer([load_object(point) for point in services.models.view(caller, m).points])


@router.get(f"{_ONE}/{dlim.WHY}")
@about(SEES, extension=wire.EXT_MODELS, errors=NOT_FOUND)
def why(services: TheServices, caller: TheCaller, m: str) -> JsonAnswer[ModelWhyObject]:
    """Return why a model does not serve, or has fewer kernels than it wants, and what to do."""
    found = services.model_logs.why(caller, m)
    answer: ModelWhyObject = {"state": SHOWN[found.state]}
    for key, value in (("message", found.sentence), ("advice", found.advice), ("starts", found.starts)):
        if value:
            answer[key] = value  # type: ignore[literal-required]
    return JsonAnswer(answer)


