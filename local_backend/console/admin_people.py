"""GET /console/admin/users and /console/admin/tokens: users of a team's server, and tokens for programs."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from fastapi import Request
from starlette.responses import Response

from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.queries import whole
from local_backend.console import places
from local_backend.console.admin import admin_page, admin_router
from local_backend.console.changes import TheForm, done
from local_backend.console.rendering import now
from local_backend.console.session_pages import texts
from local_backend.errors import NotFound
from local_backend.services.access import ADMIN, INFERENCE, READ, SUBMIT, Caller
from local_backend.services.services import Services
from local_backend.store.users import ROLES

router = admin_router()

_USER = places.ADMIN_USERS + "/{name}"
_DAY = 86_400
#: Scope of a token → what it permits.
_SCOPES = {READ: "calls that change nothing", SUBMIT: "also jobs and models of the user", ADMIN: "all calls",
           INFERENCE: "only requests to models"}


def _check_several(services: Services) -> None:
    """Raise NotFound on a server for its own user alone: it has no such pages."""
    if services.base.settings.embedded:
        raise NotFound("http.no_such_path", "This server has no other users")


@router.get(places.ADMIN_USERS)
def users(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Show the users."""
    _check_several(services)
    return admin_page(request, services, "admin_users.html", users=services.users.list(caller), roles=ROLES,
                      owner=services.base.settings.user)


@router.post(places.ADMIN_USERS)
def add_user(request: Request, services: TheServices, caller: TheCaller, form: TheForm) -> Response:
    """Add a user."""
    _check_several(services)
    given = texts(form, "name", "password", "role")
    services.users.add(caller, given["name"], given["password"], given["role"])
    return done(request, places.ADMIN_USERS)


@router.post(_USER + "/role")
def set_role(
    request: Request, services: TheServices, caller: TheCaller, form: TheForm, name: str
) -> Response:
    """Change the role of a user."""
    _check_several(services)
    services.users.set_role(caller, name, texts(form, "role")["role"])
    return done(request, places.ADMIN_USERS)


@router.post(_USER + "/password")
def set_password(
    request: Request, services: TheServices, caller: TheCaller, form: TheForm, name: str
) -> Response:
    """Set the password of a user."""
    _check_several(services)
    services.users.set_password(caller, name, texts(form, "password")["password"])
    return done(request, places.ADMIN_USERS)


@router.post(_USER + "/remove")
def remove_user(request: Request, services: TheServices, caller: TheCaller, name: str) -> Response:
    """Remove a user."""
    _check_several(services)
    services.users.remove(caller, name)
    return done(request, places.ADMIN_USERS)


@router.get(places.ADMIN_TOKENS)
def tokens(request: Request, services: TheServices, caller: TheCaller, user: str = "") -> Response:
    """Show the tokens of a user, by default of the caller."""
    return _tokens(request, services, caller, user or caller.name)


@router.post(places.ADMIN_TOKENS)
def create_token(request: Request, services: TheServices, caller: TheCaller, form: TheForm) -> Response:
    """Make a token, and show it once."""
    given = texts(form, "user", "name", "scope", "days")
    user = given["user"] or caller.name
    seconds = whole(given["days"], "days", 1, 5) * _DAY
    row, text = services.tokens.create(caller, given["name"], given["scope"], seconds, user)
    return _tokens(request, services, caller, user, made=row.name or "", text=text)


@router.post(places.ADMIN_TOKENS + "/revoke")
def revoke_token(request: Request, services: TheServices, caller: TheCaller, form: TheForm) -> Response:
    """Revoke a token."""
    given = texts(form, "user", "id")
    services.tokens.revoke(caller, given["id"], given["user"] or caller.name)
    return done(request, f"{places.ADMIN_TOKENS}?{urlencode({'user': given['user']}, quote_via=quote)}")


def _tokens(  # noqa: PLR0917
    request: Request, services: Services, caller: Caller, user: str, made: str = "", text: str = ""
) -> Response:
    everyone = [] if services.base.settings.embedded else [row.name for row in services.users.list(caller)]
    return admin_page(
        request, services, "admin_tokens.html", user=user, users=sorted({*everyone, caller.name, user}),
        tokens=services.tokens.list(caller, user), scopes=_SCOPES, made=made, text=text, now=now(),
        days=services.base.settings.api_token_days,
    )
