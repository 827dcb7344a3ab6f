"""Searches for hyper-parameters: WMLA's calls, and calls for large searches."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api import uploads
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk, in_turn
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import EVERY_USER, about
from local_backend.api.models.searches import (
    ExperimentObject,
    ExperimentValues,
    SearchCreated,
    SearchObject,
    SearchParts,
)
from local_backend.api.queries import whole
from local_backend.api.route import Route
from local_backend.api.search_objects import experiment_object, search_object
from local_backend.api.submission_headers import is_strict
from local_backend.errors import Invalid
from local_backend.services.access import Caller
from local_backend.services.load import READING, UPLOAD
from local_backend.services.searches import MOST_POINTS, SEARCH_SORTABLE, SORTABLE, SearchRequest, SearchSelection
from local_backend.services.services import Services
from local_backend.store.searches import EXPERIMENT_STATES, STATES, Page

router = APIRouter(tags=["searches"], route_class=Route)

OWN = "every user, for their own searches; administrators, for all searches"
_ONE = wire.SEARCHES + "/{n}"
#: What a submission that needs no strict handling is refused for, and a search is refused for, too.
REFUSED = {
    400: "data.kind_unusable search.algorithm search.definition search.space submission.archive submission.body "
         "submission.command submission.data_part submission.data_source submission.environment submission.files "
         "submission.framework submission.metrics submission.never_schedulable submission.no_program submission.option "
         "submission.resources submission.too_long",
    403: "auth.admin_only", 404: "search.not_found", 408: "quota.upload_seconds", 409: "search.exists",
    413: "submission.too_large", 429: "load.busy quota.rate quota.uploads", 500: "volume.unreadable",
    507: "quota.active quota.bytes quota.execs quota.searches storage.failed storage.full storage.keys storage.unknown",
}
#: What a search of stored code is refused for, too.
_STORED = {400: "again.credentials again.files_gone again.unsupported definition.code_gone exec.not_found",
           403: "exec.of_another_user", 404: "definition.not_found"}
UNKNOWN = {404: "search.not_found"}
Name = str


@router.get(wire.SEARCHES)
@about(OWN, errors={400: "query.number query.sort query.state", 429: "load.busy"})
@bulk(READING, stream=False)
def list_searches(  # noqa: PLR0917
    services: TheServices,
    caller: TheCaller,
    state: Annotated[str | None, Query(description="one state, or several separated by commas")] = None,
    name: Annotated[str | None, Query(description="name of a search")] = None,
    limit: Annotated[str | None, Query(description="maximum number of searches")] = None,
    offset: Annotated[str | None, Query(description="number of searches to skip")] = None,
    sort: Annotated[str | None, Query(description="`FIELD`, `FIELD:asc` or `FIELD:desc`")] = None,
) -> JsonAnswer[list[SearchObject]]:
    """List searches with their experiments, oldest first. Administrators get those of all users. The header
    `X-Total-Count` of the answer has their number without the limit."""
    column, down = _order(sort, "createtime", SEARCH_SORTABLE)
    views, total = services.searches.list(caller, SearchSelection(
        _states(state, STATES), name or None, column, down, whole(limit, "limit", 0) if limit else None,
        whole(offset, "offset", 0) if offset else 0))
    return JsonAnswer([search_object(view) for view in views], headers={wire.TOTAL: str(total)})


@router.post(wire.SEARCHES)
@about(EVERY_USER, errors={status: f"{codes} {_STORED.get(status, '')}".strip() for status, codes in REFUSED.items()},
       body={"multipart/form-data": SearchParts})
async def create(request: Request, services: TheServices, caller: TheCaller) -> JsonAnswer[SearchCreated]:
    """Start a search. The body contains its definition as `data`, and the code as a file; or `modelSpec` of the
    definition names an exec or a model definition, whose code is used."""
    return await begin(request, services, caller)


@router.delete(wire.SEARCHES, status_code=204)
@about(f"{EVERY_USER}, for their own searches", errors={409: "search.active"})
def delete_all(services: TheServices, caller: TheCaller) -> Response:
    """Delete all searches of the caller. Their execs stay. If a search is not over, nothing is deleted."""
    services.searches.delete_all(caller)
    return Response(status_code=204)


@router.get(_ONE)
@about(OWN, errors={**UNKNOWN, 429: "load.busy"})
@bulk(READING, stream=False)
def get(
    services: TheServices,
    caller: TheCaller,
    n: Name,
    experiments: Annotated[str | None, Query(description="`none`: leave out the experiments")] = None,
) -> JsonAnswer[SearchObject]:
    """Return one search with its experiments."""
    return JsonAnswer(search_object(services.searches.view(caller, n, brief=experiments == wire.NONE)))


@router.put(_ONE, status_code=204)
@about(OWN, errors={400: "search.ended", **UNKNOWN})
def stop(services: TheServices, caller: TheCaller, n: Name) -> Response:
    """Stop a search and its running experiments."""
    services.searches.stop(caller, n)
    return Response(status_code=204)


@router.put(_ONE + "/force", status_code=204)
@about(OWN, errors={400: "search.ended", **UNKNOWN})
def force(services: TheServices, caller: TheCaller, n: Name) -> Response:
    """Stop a search, and kill its running experiments. They may end after the answer."""
    services.searches.stop(caller, n, force=True)
    return Response(status_code=204)


@router.put(_ONE + "/restart")
@about(OWN, errors={400: "search.not_stopped", **UNKNOWN, 507: "quota.searches"})
def restart(services: TheServices, caller: TheCaller, n: Name) -> JsonAnswer[SearchCreated]:
    """Continue a stopped or failed search. Experiments that the stop has killed run again; the others keep their
    results."""
    return JsonAnswer(created(services.searches.restart(caller, n).name))


@router.delete(_ONE, status_code=204)
@about(OWN, errors={**UNKNOWN, 409: "search.active"})
def delete(services: TheServices, caller: TheCaller, n: Name) -> Response:
    """Delete a search that is over. Its execs stay."""
    services.searches.delete(caller, n)
    return Response(status_code=204)


@router.get(_ONE + "/experiments")
@about(OWN, extension=wire.EXT_SEARCHES, errors={400: "query.number query.sort query.state", **UNKNOWN})
def experiments(  # noqa: PLR0917
    services: TheServices,
    caller: TheCaller,
    n: Name,
    sort: Annotated[str | None, Query(description="key of an experiment to sort by")] = None,
    down: Annotated[bool, Query(description="whether the order is descending")] = False,
    limit: Annotated[str, Query(description="maximum number of experiments")] = "100",
    offset: Annotated[str, Query(description="number of experiments to skip")] = "0",
    state: Annotated[str | None, Query(description="one state, or several separated by commas")] = None,
) -> JsonAnswer[list[ExperimentObject]]:
    """List some experiments of a search. The header `X-Total-Count` of the answer has their number without the
    limit."""
    column, _ = _order(sort, "id", SORTABLE)
    page = Page(_states(state, EXPERIMENT_STATES), column, down, whole(limit, "limit", 0), whole(offset, "offset", 0))
    _, definition, rows, total = services.searches.experiments(caller, n, page)
    return JsonAnswer([experiment_object(row, definition) for row in rows], headers={wire.TOTAL: str(total)})


@router.get(_ONE + "/experiments/{experiment}/values")
@about(OWN, extension=wire.EXT_SEARCHES, errors={
    400: "query.number", 404: "experiment.not_found search.not_found", 429: "load.busy"})
@bulk(READING, stream=False)
def values(
    services: TheServices,
    caller: TheCaller,
    n: Name,
    experiment: str,
    points: Annotated[str, Query(description=f"maximum number of points, at most {MOST_POINTS}")] = "200",
) -> JsonAnswer[ExperimentValues]:
    """Return the values of the objective in one experiment, as it reports them while it runs. Of a long curve, the
    smallest and the largest value of each part are returned."""
    most = min(whole(points, "points", 2), MOST_POINTS)
    metric, found = services.searches.values(caller, n, whole(experiment, "experiment", 0), most)
    shown: ExperimentValues = {"metric": metric, "points": [list(point) for point in found]}
    return JsonAnswer(shown)


async def begin(
    request: Request, services: Services, caller: Caller, *, legacy: bool = False
) -> JsonAnswer[SearchCreated]:
    """Start a search of a request with files. With `legacy`, its definition may have `resDef` and no modelSpec."""
    async with uploads.upload_of(request, services, caller, "hpo.create") as (upload, folder):
        asked = SearchRequest(upload.data, upload, legacy, is_strict(request.headers))
        row = await in_turn(services.load, UPLOAD, caller.name, partial(
            services.stored_searches.create, caller, asked, folder / "code"))
    return JsonAnswer(created(row.name), 201 if legacy else 200)


def created(name: str) -> SearchCreated:
    """Return the answer for a search that has begun."""
    return {"uid": name, "href": wire.search_path(name)}


def _order(sort: str | None, default: str, known: dict[str, str]) -> tuple[str, bool]:
    name, _, direction = (sort or default).partition(":")
    if name not in known or direction not in {"", "asc", "desc"}:
        raise Invalid("query.sort", f"sort: write FIELD:asc or FIELD:desc; fields are {', '.join(known)}")
    return known[name], direction == "desc"


def _states(text: str | None, known: tuple[str, ...]) -> list[str] | None:
    if text is None or not text.strip():
        return None
    found = [word.strip().upper() for word in text.split(",")]
    if not set(found) <= set(known):
        raise Invalid("query.state", f"state: known states are {', '.join(known)}")
    return found
