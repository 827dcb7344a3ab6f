"""Saved views: what lists of execs show, under a name."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import EVERY_USER, about
from local_backend.api.models.saved_views import NewView, ViewObject
from local_backend.api.route import Route
from local_backend.services.saved_views import StoredView

router = APIRouter(tags=["execs"], route_class=Route)


@router.get(wire.VIEWS)
@about(EVERY_USER, extension=wire.EXT_VIEWS)
def list_views(services: TheServices, caller: TheCaller) -> JsonAnswer[list[ViewObject]]:
    """List the caller's saved views, in the order of their names."""
    return JsonAnswer([_shown(one) for one in services.saved_views.all(caller)])


@router.post(wire.VIEWS)
@about(EVERY_USER, extension=wire.EXT_VIEWS, errors={400: "body.json body.value query.find query.state view.invalid"})
def save_view(services: TheServices, caller: TheCaller, body: NewView) -> JsonAnswer[ViewObject]:
    """Save a view of the caller, and replace the view of this name."""
    view = StoredView(body.name, body.find, body.state, body.sort_by, body.all, tuple(body.columns))
    services.saved_views.save(caller, view)
    return JsonAnswer(_shown(view))


@router.delete(wire.VIEWS + "/{name:path}", status_code=204)
@about(EVERY_USER, extension=wire.EXT_VIEWS, errors={404: "view.not_found"})
def delete_view(
    services: TheServices, caller: TheCaller, name: Annotated[str, Path(description="name of the view")],
) -> Response:
    """Delete a view of the caller."""
    services.saved_views.delete(caller, name)
    return Response(status_code=204)


def _shown(view: StoredView) -> ViewObject:
    return {"name": view.name, "find": view.find, "state": view.state, "sort_by": view.sort_by, "all": view.everyone,
            "columns": list(view.columns)}
