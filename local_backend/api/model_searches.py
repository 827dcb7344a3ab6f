"""The paths of searches of the first product generation, below the paths of models. The name of the model counts for
nothing: this server keeps no models, and each search has its own code."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import EVERY_USER, about
from local_backend.api.models.searches import SearchCreated, SearchObject, SearchParts
from local_backend.api.route import Route
from local_backend.api.search_objects import search_object
from local_backend.api.searches import OWN, REFUSED, UNKNOWN, begin, created
from local_backend.services.load import READING
from local_backend.services.searches import SearchSelection

router = APIRouter(tags=["searches"], route_class=Route)

_ALL = wire.MODELS + "/{m}/hypersearch"
_ONE = _ALL + "/{t}"


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
    `gpuNum`, and the variables MAXITERATION and BATCHSIZE of the program."""
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
    """Stop a search at once."""
    services.searches.stop(caller, t, force=True)
    return Response(status_code=204)


@router.put(_ONE + "/restart")
@about(OWN, errors={400: "search.not_stopped", **UNKNOWN, 507: "quota.searches"})
def restart(services: TheServices, caller: TheCaller, m: str, t: str) -> JsonAnswer[SearchCreated]:
    """Let a stopped or failed search go on."""
    return JsonAnswer(created(services.searches.restart(caller, t).name))


@router.put(_ONE + "/update")
@about(OWN, errors={**UNKNOWN, 501: "search.models"})
def update(services: TheServices, caller: TheCaller, m: str, t: str) -> None:
    """Refuse to change a model: the local backend keeps no models."""
    services.searches.to_model(caller, t)


@router.post(_ONE + "/create/{new}")
@about(OWN, errors={**UNKNOWN, 501: "search.models"})
def make(services: TheServices, caller: TheCaller, m: str, t: str, new: str) -> None:
    """Refuse to make a model: the local backend keeps no models."""
    services.searches.to_model(caller, t)
