"""The route of every call: strict JSON bodies, and errors of bodies with their codes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import Response

from dlicmd.contract import strict_json
from local_backend.api.bulk import in_turn, resting
from local_backend.api.depends import CALLER
from local_backend.api.errors import BodyRefused
from local_backend.api.guard import address_of
from local_backend.api.models.common import Body
from local_backend.errors import Busy, Invalid
from local_backend.services.load import BODY
from local_backend.services.throttle import network_of

#: Maximum bytes of a body that the event loop itself reads, which takes milliseconds.
_SMALL = 4 << 10


class _Strict(Request):
    async def body(self) -> bytes:
        """Return the whole body. The call rests until it has arrived."""
        async with resting():
            return await super().body()

    async def json(self) -> Any:
        """Return the body as JSON. A large body is read in the turn of the user; without a token, in the turn of the
        address, which is not the name of a user. Raises BodyRefused (`body.json`, `load.busy`)."""
        body, caller = await self.body(), self.scope[CALLER]
        try:
            if len(body) <= _SMALL:
                return strict_json.read(body)
            turn = caller.name if caller else f"@{network_of(address_of(self.scope))}"
            return await in_turn(self.app.state.services.load, BODY, turn, partial(strict_json.read, body))
        except ValueError as problem:
            raise BodyRefused(Invalid("body.json", f"The body {problem}")) from None
        except Busy as problem:
            raise BodyRefused(problem) from None


class Route(APIRoute):
    """A route whose body, if it has one, must be strict JSON. The endpoint returns the whole answer. Its type is only
    described (description.py): to validate each answer would take longer than to make it."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **more: Any) -> None:
        super().__init__(path, endpoint, **{**more, "response_model": None})

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See the base class."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            try:
                return await handle(_Strict(request.scope, request.receive))
            except RequestValidationError as problem:
                where = problem.errors()[0]["loc"]
                if where[0] == "body" and self.body_field is not None:
                    raise refused_field(self.body_field.field_info.annotation, where[1:]) from None
                raise

        return strict


def refused_field(model: Any, where: tuple[str | int, ...]) -> Invalid:
    """Return the error (`body.value`) for the field of a body at this place; for the first field if the body is no
    object. A field that is a list of bodies has the place in the list before the sentence of the inner field."""
    assert issubclass(model, Body)
    name = str(where[0]) if where else None
    inner = model.items_of(name) if len(where) > 2 and isinstance(where[1], int) else None
    if inner is not None:
        return Invalid("body.value", f"{name}.{where[1]}: {inner.refusal(str(where[2]))}")
    return Invalid("body.value", model.refusal(name))
