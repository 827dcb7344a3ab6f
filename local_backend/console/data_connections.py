"""GET /console/data/connections: forms that add, change, share, test and remove connections. A page never contains a
secret: the field of one is empty, and left empty, it keeps the secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from starlette.datastructures import FormData
from starlette.responses import Response

from local_backend.api.bulk import in_turn
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.changes import TheForm, done, texts_of
from local_backend.console.rendering import page
from local_backend.console.route import router as pages
from local_backend.console.session_pages import texts
from local_backend.errors import AccessDenied
from local_backend.services.load import TEST

router = pages()

#: Begins the names of the fields of a form that are values of the connection.
_VALUE = "value."
_ALL = "all"


@router.get(places.CONNECTION_NEW)
def new(request: Request, services: TheServices, caller: TheCaller, kind: str = "") -> Response:
    """Ask for the kind of a new connection, then for its values."""
    kinds = services.connections.kinds()
    found = next((one for one in kinds if one.name == kind), None)
    return page(request, "data_connection.html", kinds=kinds, kind=found, row=None, values={}, secrets={}, shared="",
                everybody=False)


@router.get(places.CONNECTION_EDIT)
def edit(request: Request, services: TheServices, caller: TheCaller, name: str = "") -> Response:
    """Show the values of a connection, without its secrets."""
    row = services.connections.found(caller, name)
    if not services.connections.may_change(caller, row):
        raise AccessDenied("connection.of_another_user", f"Connection {row.name!r} is not yours to change")
    kinds = services.connections.kinds()
    shared = row.shared_with
    return page(
        request, "data_connection.html", kinds=kinds, kind=next((one for one in kinds if one.name == row.kind), None),
        row=row, secrets=services.connections.secrets(caller, row), everybody=shared is True,
        values={key: value for key, value in row.values.items() if not isinstance(value, Mapping)},
        shared="" if isinstance(shared, bool) else ", ".join(shared),
    )


@router.post(places.CONNECTION_NEW)
def add(request: Request, services: TheServices, caller: TheCaller, form: TheForm) -> Response:
    """Add a connection."""
    given = texts(form, "name", "kind")
    services.connections.add(caller, given["name"], given["kind"], _values(form), _shared(form), replace=False)
    return done(request, places.DATA)


@router.post(places.CONNECTION_EDIT)
def change(request: Request, services: TheServices, caller: TheCaller, form: TheForm) -> Response:
    """Change a connection. Empty secrets stay as they are."""
    services.connections.change(caller, texts(form, "id")["id"], _values(form), _shared(form))
    return done(request, places.DATA)


@router.post(places.CONNECTION_REMOVE)
def remove(request: Request, services: TheServices, caller: TheCaller, form: TheForm) -> Response:
    """Remove a connection."""
    services.connections.remove(caller, texts(form, "id")["id"])
    return done(request, places.DATA)


@router.post(places.CONNECTION_TEST)
async def test(request: Request, services: TheServices, caller: TheCaller, form: TheForm) -> Response:
    """Show whether the server of a connection accepts it, as a part of the page."""
    name = texts(form, "id")["id"]
    problem = await in_turn(services.load, TEST, caller.name, lambda: services.connections.test(caller, name))
    return page(request, "data_tested.html", problem=problem)


def _values(form: FormData) -> dict[str, Any]:
    """Return the values in a form, without empty ones."""
    return {name.removeprefix(_VALUE): value for name, value in form.multi_items()
            if name.startswith(_VALUE) and isinstance(value, str) and value}


def _shared(form: FormData) -> list[str] | bool:
    """Return the users that a connection is shared with; True for all."""
    if _ALL in texts_of(form, "everybody"):
        return True
    return [one.strip() for one in texts(form, "shared")["shared"].split(",") if one.strip()]
