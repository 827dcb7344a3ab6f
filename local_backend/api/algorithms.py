"""Algorithms of searches. These routes come before those of searches, because `algorithm` is not a search."""

from __future__ import annotations

from functools import partial
from typing import Annotated, cast

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api import uploads
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk, in_turn
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import EVERY_USER, about
from local_backend.api.models.searches import AlgorithmObject, AlgorithmParts, Importances
from local_backend.api.route import Route
from local_backend.api.searches import OWN
from local_backend.services.load import READING, UPLOAD

router = APIRouter(tags=["searches"], route_class=Route)


@router.get(wire.ALGORITHMS)
@about(EVERY_USER)
def list_algorithms(
    services: TheServices,
    _caller: TheCaller,
    kind: Annotated[str | None, Query(alias="type", description="`BUILD_IN` or `USER_PLUGIN`")] = None,
) -> JsonAnswer[list[AlgorithmObject]]:
    """List the algorithms of searches, first the built-in ones."""
    return JsonAnswer([cast("AlgorithmObject", one) for one in services.algorithms.list(kind)])


@router.get(wire.ALGORITHMS + "/{name}")
@about(EVERY_USER)
def get(services: TheServices, _caller: TheCaller, name: str) -> JsonAnswer[AlgorithmObject]:
    """Return one algorithm; an empty object if there is none of this name."""
    found = services.algorithms.find(name)
    return JsonAnswer(cast("AlgorithmObject", found or {}))


@router.post(wire.ALGORITHM_INSTALL)
@about(EVERY_USER, body={"multipart/form-data": AlgorithmParts}, errors={
    400: "search.plugin submission.archive submission.body", 408: "quota.upload_seconds",
    409: "search.algorithm_exists", 413: "submission.too_large", 429: "load.busy quota.uploads",
    507: "storage.failed storage.full",
})
async def install(request: Request, services: TheServices, caller: TheCaller) -> JsonAnswer[AlgorithmObject]:
    """Install an algorithm: `data` describes it, and a packed folder with `optimizer.py` at its top is its code.
    Without a file, `path` in `data` names a folder of the server's machine below `DLI_PLUGIN_ROOTS`."""
    async with uploads.upload_of(request, services, caller, "algorithm.install") as (upload, _folder):
        made = await in_turn(
            services.load, UPLOAD, caller.name, partial(services.algorithms.install, caller, upload.data, upload))
    return JsonAnswer(cast("AlgorithmObject", made))


@router.delete(wire.ALGORITHMS + "/{name}", status_code=204)
@about("the user who installed the algorithm, and administrators", errors={
    403: "search.algorithm_of_another_user", 404: "search.algorithm_not_found", 409: "search.algorithm_in_use"})
def delete(services: TheServices, caller: TheCaller, name: str) -> Response:
    """Remove an installed algorithm that no search uses."""
    services.algorithms.delete(caller, name)
    return Response(status_code=204)


@router.get(wire.SEARCHES + "/{n}/importances")
@about(OWN, extension=wire.EXT_SEARCHES, errors={
    404: "search.not_found", 429: "load.busy", 503: "search.importances"})
@bulk(READING, stream=False)
def importances(services: TheServices, caller: TheCaller, n: str) -> JsonAnswer[Importances]:
    """Return how much each parameter of a search matters for the objective."""
    definition, known = services.searches.known(caller, n)
    return JsonAnswer({"importances": services.algorithms.importances(definition, known)})
