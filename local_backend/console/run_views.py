"""The dialog with the saved views of the table of runs: it opens, saves and deletes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Form, Request
from starlette.responses import RedirectResponse, Response

from dlicmd.contract import wire
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.rendering import HEADERS, page
from local_backend.console.route import router as pages
from local_backend.console.runs_query import RunsQuery, TheQuery, columns_named, query_in
from local_backend.run_values import METRIC, ValueName, named
from local_backend.services.access import Caller
from local_backend.services.saved_views import LONGEST, StoredView
from local_backend.services.services import Services

router = pages()
VIEWS, CHANGE = f"{places.RUNS}/parts/views", f"{places.RUNS}/views"
#: A word that the page shows as a filter.
_FAVORITES = " is:favorite"
#: A column of the page → its field in the order of a view.
_FIELDS = {
    "name": wire.APP_NAME, "id": wire.ID, "user": wire.CREATOR, "state": wire.STATE, "started": wire.START_TIME,
    "duration": wire.DURATION, "workers": wire.NUM_WORKER, "tags": wire.TAGS, "favorite": wire.FAVORITE,
}
_COLUMNS = {field: name for name, field in _FIELDS.items()}


@dataclass(frozen=True)
class ViewLine:
    """A view in the list."""

    view: StoredView
    link: str
    is_shown: bool


def view_of(query: RunsQuery, name: str) -> StoredView:
    """Return what the table shows as a view with a name."""
    find = f"{query.find}{_FAVORITES}".strip() if query.favorites else query.find
    order = f"{_FIELDS.get(query.sort, query.sort)}:{'desc' if query.descending else 'asc'}"
    return StoredView(name, find, query.state, "" if order == f"{wire.ID}:desc" else order, query.everyone,
                      tuple(map(str, query.columns)))


def query_of_view(view: StoredView) -> RunsQuery:
    """Return what the table shows for a view."""
    words = f" {view.find}"
    is_favorites = words.endswith(_FAVORITES)
    query = RunsQuery(words.removesuffix(_FAVORITES).strip(), view.state, is_favorites, view.everyone,
                      columns=columns_named(view.columns))
    if not view.sort_by:
        return query
    field, _, direction = view.sort_by.rpartition(":")
    if direction not in {"asc", "desc"} or not field:
        field, direction = view.sort_by, "asc"
    value = named(field)
    query = replace(query, sort=_COLUMNS.get(field) or str(value if value.kind else ValueName(METRIC, field)))
    return replace(query, back=query.descending != (direction == "desc"))


@router.get(VIEWS)
def views(request: Request, services: TheServices, caller: TheCaller, query: TheQuery) -> Response:
    """Show the content of the dialog."""
    return _dialog(request, services, caller, query)


@router.post(CHANGE)
def change(
    *, request: Request, services: TheServices, caller: TheCaller, query: Annotated[str, Form()] = "",
    name: Annotated[str, Form()] = "", delete: Annotated[str, Form()] = "",
) -> Response:
    """Save what the table shows, or delete a view, and show the dialog again. Raises the errors of the service."""
    shown = query_in(query)
    if delete:
        services.saved_views.delete(caller, delete)
    else:
        services.saved_views.save(caller, view_of(shown, name.strip()))
    if "hx-request" not in request.headers:
        return RedirectResponse(shown.link(number=shown.number), 303, HEADERS)
    return _dialog(request, services, caller, shown)


def _dialog(request: Request, services: Services, caller: Caller, query: RunsQuery) -> Response:
    shown = view_of(query, "")
    lines = [ViewLine(one, query_of_view(one).link(), replace(one, name="") == shown)
             for one in services.saved_views.all(caller)]
    return page(request, "runs_views.html", lines=lines, query=query, change=CHANGE, longest=LONGEST)
