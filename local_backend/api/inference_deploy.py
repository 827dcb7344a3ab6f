"""Deployments: archives of models, runtimes, and models that were saved from execs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool

from dlicmd.contract import dlim, wire
from local_backend.api import uploads
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import in_turn
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import EVERY_USER, about
from local_backend.api.errors import BodyRefused
from local_backend.api.inference_models import OWNS, SEES, json_of, object_of, shown
from local_backend.api.inference_objects import loading_object, runtime_object, saved_object
from local_backend.api.models.inference import (
    DlimStatus,
    ModelArchive,
    ModelLoadingObject,
    ModelObject,
    ModelSpace,
    NewSavedModel,
    RuntimeList,
    RuntimeObject,
    SavedModelDeployment,
    SavedModelObject,
)
from local_backend.api.queries import whole
from local_backend.api.route import Route
from local_backend.errors import Invalid
from local_backend.services.access import Caller
from local_backend.services.load import UPLOAD
from local_backend.services.model_sources import DeploymentWords
from local_backend.services.services import Services

T = TypeVar("T")

router = APIRouter(tags=["inference"], route_class=Route)

_UNLOADABLE = "model.class model.pickle model.weights"
#: Refusals of a deployment, without those of an upload.
ADDED = {
    400: f"body.json body.value model.description model.files model.name {_UNLOADABLE}",
    403: "model.of_another_user",
    429: "load.busy",
    507: "quota.bytes quota.models storage.failed storage.full",
}
_REFUSED = {
    400: f"model.description model.files model.name submission.archive submission.body {_UNLOADABLE}",
    403: "model.of_another_user", 404: "runtime.not_found", 408: "quota.upload_seconds",
    413: "submission.too_large", 429: "load.busy quota.rate quota.uploads",
    507: "quota.bytes quota.models storage.failed storage.full",
}
#: Who sees and uses a runtime.
RUNTIMES = "every user, for their own runtimes, the built-in ones and those of administrators; administrators, for all"
_BODY = {"multipart/form-data": ModelArchive, "application/octet-stream": bytes}
KernelType = Annotated[str | None, Query(description="name of a ready-made kernel: `onnx`, `torch`, `sklearn`, "
                                                     "`xgboost` or `huggingface`")]
ModelName = Annotated[str | None, Query(description="name of the model, if model.json does not say it; only with "
                                                    "`kernel_type`")]
_RUNTIME = dlim.RUNTIMES + "/{r}"
_SAVED = dlim.STORE + "/{name}"
_VERSION = Annotated[str | None, Query(description="version of the saved model")]


@router.post(dlim.DEPLOYMENT)
@router.post(dlim.MODELS)
@about(EVERY_USER, errors={**_REFUSED, 409: "model.exists"}, body=_BODY)
async def deploy(
    request: Request, services: TheServices, caller: TheCaller, kernel_type: KernelType = None, name: ModelName = None
) -> JsonAnswer[ModelObject]:
    """Deploy a new model: an archive (tar, tar.gz or zip) with `model.json`, `README.md` and the file of the kernel."""
    return await _deployed(request, services, caller, None, kernel_type, name)


@router.post(dlim.DEPLOYMENT + "/{m}")
@about(OWNS, errors={**_REFUSED, 404: "model.not_found runtime.not_found"}, body=_BODY)
async def redeploy(
    request: Request, services: TheServices, caller: TheCaller, m: str, kernel_type: KernelType = None
) -> JsonAnswer[ModelObject]:
    """Deploy the next revision of a model. A started model moves to it when its kernels are ready; if they cannot
    start, the earlier revision continues."""
    return await _deployed(request, services, caller, m, kernel_type, None)


@about(OWNS, errors={**_REFUSED, 404: "model.not_found runtime.not_found"}, body=_BODY)
async def publish(request: Request, services: TheServices, caller: TheCaller, m: str) -> JsonAnswer[ModelObject]:
    """Publish a model: with an archive, deploy its next revision; without a body or with JSON, do nothing, because
    models are published when they are deployed."""
    empty = request.headers.get("content-length", "0") in ("", "0") and "transfer-encoding" not in request.headers
    if empty or request.headers.get("content-type", "").startswith("application/json"):
        view = await run_in_threadpool(services.models.publish, caller, m)
        return JsonAnswer(shown(request, services, view), 201)
    answer = await _deployed(request, services, caller, m, None, None)
    answer.status_code = 201
    return answer


async def _deployed(  # noqa: PLR0917
    request: Request, services: Services, caller: Caller, expected: str | None, kernel_type: str | None,
    name: str | None,
) -> JsonAnswer[ModelObject]:
    action = "model.deploy" if expected is None else "model.redeploy"
    services.base.permit(caller, action)
    async with uploads.upload_of(request, services, caller, action, packed=True) as (upload, folder):
        view = await in_turn(services.load, UPLOAD, caller.name, partial(
            services.models.deploy, caller, upload, folder / "model", expected, kernel_type, name))
    return JsonAnswer(shown(request, services, view))


# --- runtimes


@router.get(dlim.RUNTIMES)
@about(RUNTIMES)
def list_runtimes(services: TheServices, caller: TheCaller) -> JsonAnswer[RuntimeList]:
    """List the runtimes, built-in ones first."""
    return JsonAnswer({"runtimes": [runtime_object(row) for row in services.runtimes.list(caller)]})


@router.post(dlim.RUNTIMES)
@about(EVERY_USER, errors={400: "body.json runtime.invalid", 409: "runtime.exists", 507: "quota.models"},
       body=RuntimeObject)
async def create_runtime(request: Request, services: TheServices, caller: TheCaller) -> JsonAnswer[RuntimeObject]:
    """Add a runtime. Users use their own runtimes and those of administrators."""
    given = await json_of(request)
    return JsonAnswer(runtime_object(await run_in_threadpool(services.runtimes.create, caller, given)))


@router.get(_RUNTIME)
@about(RUNTIMES, errors={404: "runtime.not_found"})
def get_runtime(services: TheServices, caller: TheCaller, r: str) -> JsonAnswer[RuntimeObject]:
    """Return one runtime."""
    return JsonAnswer(runtime_object(services.runtimes.find(caller, r)))


@router.put(_RUNTIME)
@about("the user who made the runtime, and administrators", errors={
    400: "body.json runtime.invalid", 403: "runtime.of_another_user", 404: "runtime.not_found"}, body=RuntimeObject)
async def change_runtime(
    request: Request, services: TheServices, caller: TheCaller, r: str
) -> JsonAnswer[RuntimeObject]:
    """Replace a runtime. Started models keep the former one until their next start."""
    given = await json_of(request)
    return JsonAnswer(runtime_object(await run_in_threadpool(services.runtimes.change, caller, r, given)))


@router.delete(_RUNTIME)
@about("the user who made the runtime, and administrators", errors={
    403: "runtime.of_another_user", 404: "runtime.not_found", 409: "runtime.in_use"})
def delete_runtime(services: TheServices, caller: TheCaller, r: str) -> JsonAnswer[DlimStatus]:
    """Remove a runtime that no model uses."""
    services.runtimes.delete(caller, r)
    return JsonAnswer({"status": "OK"})


# --- the model store


@router.get(dlim.STORE)
@about("every user, for their own saved models and those in spaces; administrators, for all", extension=wire.EXT_MODELS)
def list_saved(services: TheServices, caller: TheCaller) -> JsonAnswer[list[SavedModelObject]]:
    """List the models that were saved from execs, by name and version."""
    return JsonAnswer([saved_object(row) for row in services.model_sources.saved(caller)])


@router.post(dlim.STORE, status_code=201)
@about(EVERY_USER, extension=wire.EXT_MODELS, body=NewSavedModel, errors={
    400: "body.json body.value exec.no_result exec.not_found model.description model.files",
    403: "model.of_another_user", 409: "exec.not_finished", 429: "load.busy",
    507: "quota.bytes quota.models storage.failed storage.full"})
async def save(request: Request, services: TheServices, caller: TheCaller) -> JsonAnswer[SavedModelObject]:
    """Save the result of a finished exec under a name, as its next version."""
    services.base.permit(caller, "model.save")
    body = await object_of(request)
    name, exec_id = (text_of(body, key, required=True) for key in ("name", "exec"))
    row = await assembled(services, caller, partial(
        services.model_sources.save, caller, name, exec_id, text_of(body, "path")))
    return JsonAnswer(saved_object(row), 201)


@router.delete(_SAVED)
@about("the user who saved the model, and administrators", extension=wire.EXT_MODELS, errors={
    400: "query.number", 403: "model.of_another_user", 404: "model.not_saved"})
def unsave(services: TheServices, caller: TheCaller, name: str, version: _VERSION = None) -> JsonAnswer[DlimStatus]:
    """Remove one version of a saved model, or all. Models that were deployed from it stay."""
    services.model_sources.remove(caller, name, whole(version, "version", 1) if version else None)
    return JsonAnswer({"status": "OK"})


@router.put(f"{_SAVED}/{dlim.TO_SPACE}")
@about("the user who saved the model, and administrators", extension=wire.EXT_MODELS, body=ModelSpace, errors={
    400: "body.json body.value model.space", 403: "model.of_another_user", 404: "model.not_saved"})
async def to_space(
    request: Request, services: TheServices, caller: TheCaller, name: str
) -> JsonAnswer[SavedModelObject]:
    """Promote a saved model to a space. Every user then sees it, and may deploy it."""
    body = await object_of(request)
    row = await run_in_threadpool(
        services.model_sources.promote, caller, name, text_of(body, "space"), _number(body, "version"))
    return JsonAnswer(saved_object(row))


@router.post(f"{_SAVED}/{dlim.DEPLOY}")
@about(SEES, extension=wire.EXT_MODELS, body=SavedModelDeployment, errors={
    **ADDED, 404: "model.not_saved runtime.not_found"})
async def deploy_saved(
    request: Request, services: TheServices, caller: TheCaller, name: str
) -> JsonAnswer[ModelObject]:
    """Deploy a saved model. Its lineage becomes the source of the revision."""
    body = await object_of(request)
    view = await assembled(services, caller, partial(
        services.model_sources.deploy_saved, caller, name, _number(body, "version"), words_of(body)))
    return JsonAnswer(shown(request, services, view))


@router.get(f"{_SAVED}/{dlim.DEPLOY}")
@about(SEES, extension=wire.EXT_MODELS, errors={400: "query.number", 404: "model.not_saved"})
def loading(  # noqa: PLR0917
    services: TheServices, caller: TheCaller, name: str, version: _VERSION = None,
    kernel: Annotated[str, Query(description="`kernel` of the deployment")] = "",
    weight: Annotated[str, Query(description="`weight` of the deployment")] = "",
) -> JsonAnswer[ModelLoadingObject]:
    """Return the kernel, the weights and the class that a deployment of a saved model uses, and all in its files."""
    words = DeploymentWords(kernel or None, weight=weight or None)
    return JsonAnswer(loading_object(services.model_sources.loading(
        caller, name, whole(version, "version", 1) if version else None, words)))


async def assembled(services: Services, caller: Caller, work: Callable[[Path], T]) -> T:
    """Do work that copies files into a new folder, in the user's turn of bulk work. Remove the folder afterwards."""
    folder = services.submissions.folder()
    try:
        return await in_turn(services.load, UPLOAD, caller.name, partial(work, folder / "model"))
    finally:
        await run_in_threadpool(shutil.rmtree, folder, ignore_errors=True)


def words_of(body: Mapping[str, Any]) -> DeploymentWords:
    """Return what a request says about a model that is made of an exec. Raises BodyRefused (`body.value`)."""
    kernel = text_of(body, "kernel") or text_of(body, "kernel_type")
    return DeploymentWords(
        kernel or None, text_of(body, "name") or None, text_of(body, "runtime") or None,
        text_of(body, "weight") or None, text_of(body, "tag") or None, _mapping(body, wire.ATTRIBUTES),
        _mapping(body, wire.ENVIRONMENTS))


def text_of(body: Mapping[str, Any], key: str, *, required: bool = False) -> str:
    """Return a text of a body, empty if it is missing. Raises BodyRefused (`body.value`)."""
    value = body.get(key)
    if value is None:
        value = ""
    if not isinstance(value, str) or (required and not value):
        raise BodyRefused(Invalid("body.value", f"{key} must be a text" + (" that is not empty" if required else "")))
    return value


def _number(body: Mapping[str, Any], key: str) -> int | None:
    value = body.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise BodyRefused(Invalid("body.value", f"{key} must be a whole number"))
    return value


def _mapping(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = body.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict) or any(isinstance(one, dict | list) for one in value.values()):
        raise BodyRefused(Invalid("body.value", f"{key} must be an object with texts"))
    return value


