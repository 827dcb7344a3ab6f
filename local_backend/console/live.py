"""GET /console/live: tells a page which of its parts to load again (server-sent events).

The events carry no content. `changed`: an exec of any user has changed its state, its slots or its message. `tick`:
something that has no event may have changed, such as the progress of a running exec. With `run`, both are about one
exec. A page loads only the parts that are on it, and a hidden page holds no stream (htmx-sse.js)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from local_backend.api.bulk import hold
from local_backend.api.depends import TOKEN, TheCaller, TheServices
from local_backend.console import places
from local_backend.console.rendering import HEADERS
from local_backend.console.route import router as pages
from local_backend.services.services import Services

router = pages()
#: Least seconds between two events, seconds after which a page looks again although it heard of no change, and seconds
#: between two checks of the session.
_PAUSE, _TICK, _CHECK = 0.5, 2.0, 30.0


@router.get(places.LIVE)
async def live(request: Request, services: TheServices, caller: TheCaller, run: str = "") -> Response:
    """Stream the events of a page."""
    if run:
        await run_in_threadpool(services.execs.find, caller, run)
    hold(services.load.users.stream(caller.name))
    events = _events(services, request.scope[TOKEN], run or None)
    return StreamingResponse(events, headers=HEADERS, media_type="text/event-stream")


async def _events(services: Services, token: str | None, run: str | None) -> AsyncIterator[str]:
    checked = time.monotonic()
    with services.execs.listening(run) as news:
        yield "retry: 1000\n\n"
        while not services.machine.closing:
            try:
                await asyncio.wait_for(news.wait(), _TICK)
                name = "changed"
            except asyncio.TimeoutError:  # same class as the built-in TimeoutError only since Python 3.11
                name = "tick"
            news.clear()
            if time.monotonic() - checked > _CHECK:
                checked = time.monotonic()
                if token is not None and await run_in_threadpool(services.logons.of_token, token) is None:
                    return
            yield f"event: {name}\ndata: 1\n\n"
            await asyncio.sleep(_PAUSE)
