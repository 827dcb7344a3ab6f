"""The paths of searches of the first product generation, below the paths of models. Each search has its own code, so
the name of the model counts only for `update`: the saved model that gets the best result as its next version."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import EVERY_USER, about
from local_backend.api.inference_deploy import assembled
from local_backend.api.inference_objects import saved_object
from local_backend.api.models.inference import SavedModelObject
from local_backend.api.models.searches import SearchCreated, SearchObject, SearchParts
from local_backend.api.route import Route
from local_backend.api.search_objects import search_object
from local_backend.api.searches import OWN, REFUSED, UNKNOWN, begin, created
from local_backend.services.load import READING
from local_backend.services.searches import SearchSelection

router = APIRouter(tags=["searches"], route_class=Route)

_ALL = wire.MODELS + "/{m}/hypersearch"
_ONE = _ALL + "/{t}"
#: Refusals of saving a result as a model.
_NOT_SAVED = {
    400: "exec.no_result exec.not_found model.description model.files", 403: "model.of_another_user",
    404: "search.not_found", 429: "load.busy", 507: "quota.bytes quota.models storage.failed storage.full",
}


@router.get(_ALL)
@about(OWN, errors={429: "load.busy"})
@bulk(READING, stream=False)
def list_searches(services: TheServices, caller: TheCaller, m: str) -> JsonAnswer[list[SearchObject]]:
    """List searches with their experiments, oldest first."""
    return JsonAnswer([search_object(view) for view in services.searches.list(caller, SearchSelection())[0]])


@router.post(_ALL, status_code=201)
@about(EVERY_USER, errors=REFUSED, body={"multipart/form-data": SearchParts})
async def create(request: Request, services: TheServices, caller: TheCaller, m: str) -> JsonAnswer[SearchCreated]:
    """Start a search. `resDef` of its definition stands for the command line: `framework`, `distribute`, `workerNum`,
    `gpuNum`, and the variables MAXITERATION, BATCHSIZE and INITWEIGHTPATH of the program. `miniteration` is the
    smallest resource of Hyperband, `resourceInstanceId` stands for `sigName`, and `syncMode` must be SYNC."""
    return await begin(request, services, caller, legacy=True)


@router.get(_ONE)
@about(OWN, errors={**UNKNOWN, 429: "load.busy"})
@bulk(READING, stream=False)
def get(services: TheServices, caller: TheCaller, m: str, t: str) -> JsonAnswer[SearchObject]:
    """Return one search with its experiments."""
    return JsonAnswer(search_object(services.searches.view(caller, t)))


@router.delete(_ONE, status_code=204)
@about(OWN, errors={**UNKNOWN, 409: "search.active"})
def delete(services: TheServices, caller: TheCaller, m: str, t: str) -> Response:
    """Delete a search that is over. Its execs stay."""
    services.searches.delete(caller, t)
    return Response(status_code=204)


@router.put(_ONE + "/stop", status_code=204)
@about(OWN, errors={400: "search.ended", **UNKNOWN})
def stop(services: TheServices, caller: TheCaller, m: str, t: str) -> Response:
    """Stop a search and its running experiments."""
    services.searches.stop(caller, t)
    return Response(status_code=204)


@router.put(_ONE + "/force", status_code=204)
@about(OWN, errors={400: "search.ended", **UNKNOWN})
def force(services: TheServices, caller: TheCaller, m: str, t: str) -> Response:
    """Stop a search, and kill its running experiments."""
    services.searches.stop(caller, t, force=True)
    return Response(status_code=204)


@router.put(_ONE + "/restart")
@about(OWN, errors={400: "search.not_stopped", **UNKNOWN, 507: "quota.searches"})
def restart(services: TheServices, caller: TheCaller, m: str, t: str) -> JsonAnswer[SearchCreated]:
    """Continue a stopped or failed search."""
    return JsonAnswer(created(services.searches.restart(caller, t).name))


@router.put(_ONE + "/update")
@about(OWN, errors={**_NOT_SAVED, 409: "exec.not_finished search.no_best"})
async def update(services: TheServices, caller: TheCaller, m: str, t: str) -> JsonAnswer[SavedModelObject]:
    """Save the result of the best experiment as the next version of the saved model `m`."""
    row = await assembled(services, caller, partial(
        services.model_sources.save_best, caller, t, m, new=False))
    return JsonAnswer(saved_object(row))


@router.post(_ONE + "/create/{new}", status_code=201)
@about(OWN, errors={**_NOT_SAVED, 409: "exec.not_finished model.exists search.no_best"})
async def make(services: TheServices, caller: TheCaller, m: str, t: str, new: str) -> JsonAnswer[SavedModelObject]:
    """Save the result of the best experiment as a new saved model."""
    row = await assembled(services, caller, partial(
        services.model_sources.save_best, caller, t, new, new=True))
    return JsonAnswer(saved_object(row), 201)
