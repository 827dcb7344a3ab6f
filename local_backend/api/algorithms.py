"""Algorithms of searches. These routes come before those of searches, because `algorithm` is no search."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import EVERY_USER, about
from local_backend.api.models.searches import AlgorithmObject, Importances
from local_backend.api.route import Route
from local_backend.api.searches import OWN
from local_backend.services.algorithms import AlgorithmRow
from local_backend.services.load import READING

router = APIRouter(tags=["searches"], route_class=Route)


@router.get(wire.ALGORITHMS)
@about(EVERY_USER)
def list_algorithms(
    services: TheServices,
    _caller: TheCaller,
    kind: Annotated[str | None, Query(alias="type", description="`BUILD_IN` or `USER_PLUGIN`")] = None,
) -> JsonAnswer[list[AlgorithmObject]]:
    """List the algorithms of searches, first the built-in ones."""
    return JsonAnswer([algorithm_object(one) for one in services.algorithms.list(kind)])


@router.get(wire.ALGORITHMS + "/{name}")
@about(EVERY_USER)
def get(services: TheServices, _caller: TheCaller, name: str) -> JsonAnswer[AlgorithmObject]:
    """Return one algorithm; an empty object if there is none of this name."""
    found = services.algorithms.find(name)
    return JsonAnswer(b"{}" if found is None else algorithm_object(found))


@router.get(wire.SEARCHES + "/{n}/importances")
@about(OWN, extension=wire.EXT_SEARCHES, errors={
    404: "search.not_found", 429: "load.busy", 503: "search.importances"})
@bulk(READING, stream=False)
def importances(services: TheServices, caller: TheCaller, n: str) -> JsonAnswer[Importances]:
    """Return how much each parameter of a search matters for the objective."""
    return JsonAnswer({"importances": services.algorithms.importances(caller, n)})


def algorithm_object(one: AlgorithmRow) -> AlgorithmObject:
    """Return an algorithm as the contract shows it."""
    return {"name": one.name, "type": one.type, "remoteExec": one.remote_exec}
