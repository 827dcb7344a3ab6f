"""Tokens for programs: users make and revoke their own, administrators those of all users."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import EVERY_USER, UNNAMED, about
from local_backend.api.models.accounts import CreatedToken, NewToken, TokenObject
from local_backend.api.objects import token_object
from local_backend.api.route import Route

router = APIRouter(tags=["tokens"], route_class=Route)

_CALLERS = f"{EVERY_USER}, for their own tokens; administrators, for all"
Owner = Annotated[str | None, Query(description="user of the tokens, by default the caller")]


@router.get(wire.TOKENS)
@about(_CALLERS, extension=UNNAMED, errors={403: "auth.admin_only"})
def list_tokens(services: TheServices, caller: TheCaller, user: Owner = None) -> JsonAnswer[list[TokenObject]]:
    """List the tokens for programs of a user, oldest first. No answer contains the token itself."""
    return JsonAnswer([token_object(row) for row in services.tokens.list(caller, user)])


@router.post(wire.TOKENS)
@about(_CALLERS, extension=UNNAMED, errors={
    400: "body.json body.value token.invalid", 403: "auth.admin_only", 404: "user.not_found",
    409: "token.exists token.too_many",
})
def create(services: TheServices, caller: TheCaller, body: NewToken) -> JsonAnswer[CreatedToken]:
    """Make a token for a program. Only this answer contains the token: the server stores its SHA-256."""
    row, token = services.tokens.create(caller, body.name, body.scope, body.expiresIn, body.user)
    made: CreatedToken = {**token_object(row), "token": token}
    return JsonAnswer(made, headers={"Cache-Control": "no-store"})


@router.delete(wire.TOKENS + "/{name}", status_code=204)
@about(_CALLERS, extension=UNNAMED, errors={403: "auth.admin_only", 404: "token.not_found"})
def revoke(
    services: TheServices, caller: TheCaller, name: Annotated[str, Path(description="name or ID of the token")],
    user: Owner = None,
) -> Response:
    """Revoke a token for a program, by its name or id."""
    services.tokens.revoke(caller, name, user)
    return Response(status_code=204)
