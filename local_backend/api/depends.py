"""Parameters of every route: the services of the server, and the user who calls."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from local_backend.services.access import Caller
from local_backend.services.services import Services

#: Scope keys: the Caller that the guard admitted, and the token of the call (None for a call with a password).
CALLER, TOKEN = "dlicmd.caller", "dlicmd.token"


# Both are coroutines: FastAPI runs plain functions in threads, which costs two thread switches per call.
async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def _caller(request: Request) -> Caller:
    caller: Caller = request.scope[CALLER]
    return caller


TheServices = Annotated[Services, Depends(_services)]
TheCaller = Annotated[Caller, Depends(_caller)]
